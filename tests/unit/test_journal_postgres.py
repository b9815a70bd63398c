"""What only a journal on a server has to withstand: lost connections, rivals, passwords."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError, OperationalError

from surefoot.controller.store import Store
from surefoot.controller.store import engine as database
from surefoot.controller.store.queries import HOLD_LEASE, held
from surefoot.controller.store.schema import versions
from surefoot.core.event import MetricSeen, RunStarted
from surefoot.errors import ConfigError, FencedError
from surefoot.testing import postgres as rig
from surefoot.testing.postgres import new_database


@pytest.fixture
def where(postgres: str) -> str:
    return new_database(postgres, f"p{uuid4().hex}")


@pytest.fixture
def store(where: str) -> Iterator[Store]:
    store = Store(where)
    yield store
    store.close()


def cut(store: Store) -> None:
    """End every other session of the database, as a server that restarts does."""
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    with store.engine.begin() as link:
        link.execute(text(f"{others} AND datname = current_database()"))


def test_a_write_goes_on_when_the_server_cut_the_connection(store: Store) -> None:
    journal = store.acquire("a", "me", now_ms=0)
    journal.append(RunStarted(1, "a"))
    for at_ms in (2, 3):
        cut(store)
        assert journal.append(MetricSeen(at_ms, "x", 1.0)) == at_ms
    cut(store)
    journal.renew(4)
    cut(store)
    assert journal.next_generation() >= 1
    assert [seq for seq, _ in store.events("a")] == [1, 2, 3]


def test_an_event_whose_commit_was_not_confirmed_is_there_once(store: Store) -> None:
    journal = store.acquire("a", "me", now_ms=0)
    link, lost = journal._link, []

    class Deaf:
        """The connection goes after the server has committed, before the answer comes."""

        def __enter__(self) -> None:
            self.inside = link.begin()
            self.inside.__enter__()

        def __exit__(self, *why: object) -> None:
            self.inside.__exit__(*why)  # type: ignore[arg-type]
            if not lost and why[0] is None:
                lost.append(1)
                cut(store)
                with link.begin():
                    link.execute(select(1))

    class Link:
        def begin(self) -> Deaf:
            return Deaf()

        def __getattr__(self, name: str) -> object:
            return getattr(link, name)

    journal._link = Link()  # type: ignore[assignment]
    assert journal.extend([RunStarted(1, "a"), MetricSeen(2, "x", 1.0)]) == 2
    assert lost
    assert journal.append(MetricSeen(3, "x", 1.0)) == 3
    assert [seq for seq, _ in store.events("a")] == [1, 2, 3]


def test_a_server_that_stays_away_ends_the_writing_and_leaves_the_journal_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = rig.absent()
    if why is not None:
        pytest.skip(why)
    monkeypatch.setattr("surefoot.controller.store.journal.AGAIN_S", (0.01, 0.01))
    with rig.server() as url:
        store = Store(url)
        journal = store.acquire("a", "me", now_ms=0)
        journal.append(RunStarted(1, "a"))
    with pytest.raises(OperationalError):
        journal.append(MetricSeen(2, "x", 1.0))
    assert journal.seq == 1
    journal.release()
    journal.release()
    store.close()


def test_a_fenced_controller_is_told_so_after_a_lost_connection_too(store: Store) -> None:
    old = store.acquire("a", "first", now_ms=0, lease_ms=10)
    old.append(RunStarted(1, "a"))
    cut(store)
    new = store.acquire("a", "second", now_ms=100)
    with pytest.raises(FencedError):
        old.append(MetricSeen(101, "x", 1.0))
    assert new.append(MetricSeen(102, "x", 1.0)) == 2


def test_a_leader_that_stands_still_within_a_write_does_not_keep_its_successor_out(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database.SESSION, "idle_in_transaction_session_timeout", "500ms")
    one, two = Store(where), Store(where)
    old = one.acquire("a", "first", now_ms=0, lease_ms=10)
    stuck = one.engine.connect()
    stuck.begin()
    stuck.execute(HOLD_LEASE, held("a", fence=old.fence, expires_ms=10))  # no commit follows
    new = two.acquire("a", "second", now_ms=100)
    assert new.append(RunStarted(101, "a")) == 1
    with pytest.raises(DBAPIError):
        stuck.commit()
        stuck.execute(select(1))
    stuck.close()
    with pytest.raises(FencedError):
        old.append(MetricSeen(102, "x", 1.0))
    one.close()
    two.close()


def test_of_many_controllers_that_start_at_once_one_leads(where: str) -> None:
    def start(number: int) -> int:
        store = Store(where)
        try:
            return store.acquire("a", f"host:{number}", now_ms=0).fence
        except FencedError:
            return 0
        finally:
            store.close()

    with ThreadPoolExecutor(8) as pool:
        fences = sorted(pool.map(start, range(8)))
    assert fences == [0] * 7 + [1]
    store = Store(where)
    with store.engine.connect() as link:
        assert link.execute(select(func.count()).select_from(versions)).scalar_one() == 1
    store.close()


def test_a_session_has_limits_and_durable_commits(store: Store) -> None:
    with store.engine.connect() as link:
        told = {name: link.execute(text(f"SHOW {name}")).scalar_one() for name in database.SESSION}
        assert link.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
    assert told["idle_in_transaction_session_timeout"] == "5s"
    assert told["lock_timeout"] == "10s"


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    bad = f"postgresql://me:hunter2@/runs?host={tmp_path}&password=hunter2"
    for where in (bad, "oracle://me:hunter2@db/x", "postgresql+psycopg://me:hunter2@db:port/x"):
        with pytest.raises(ConfigError) as caught:
            Store(where)
        assert "hunter2" not in f"{caught.value} {caught.value.hint} {caught.value!r}"
        assert caught.value.hint


def test_a_place_is_shown_without_its_password() -> None:
    url = database.place_of("postgresql://me:hunter2@db.lan:5433/runs?sslmode=require")
    assert url.drivername == "postgresql+psycopg"
    assert database.shown(url) == "postgresql+psycopg://me:***@db.lan:5433/runs"
    assert database.shown(database.place_of("/x/journal.db")) == "/x/journal.db"
