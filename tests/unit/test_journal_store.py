"""The journal keeps what was appended, and only one controller may append."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import update

from surefoot.controller.recover import is_dead, this_process
from surefoot.controller.store import Store
from surefoot.controller.store.schema import events, versions
from surefoot.core.event import MetricSeen, RunStarted
from surefoot.errors import ConfigError, FencedError
from surefoot.testing.postgres import new_database


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Both databases that hold a journal, each empty."""
    if request.param == "sqlite":
        return str(tmp_path / "journal.db")
    return new_database(request.getfixturevalue("postgres"), f"j{uuid4().hex}")


@pytest.fixture
def store(where: str) -> Iterator[Store]:
    store = Store(where)
    yield store
    store.close()


def test_events_come_back_in_order_with_rising_numbers(store: Store) -> None:
    journal = store.acquire("a", "me", now_ms=0)
    facts = [RunStarted(5, "a"), MetricSeen(6, "x", 1.0), MetricSeen(7, "x", 2.0)]
    assert journal.append(facts[0]) == 1
    assert journal.extend(facts[1:]) == 3
    assert journal.events() == list(enumerate(facts, 1))
    assert journal.events(after=2) == [(3, facts[2])]


def test_runs_do_not_mix(store: Store) -> None:
    one, two = store.acquire("one", "me", now_ms=0), store.acquire("two", "me", now_ms=0)
    one.append(RunStarted(10, "one"))
    two.append(RunStarted(20, "two"))
    one.append(MetricSeen(30, "x", 1.0))
    assert [e.at_ms for _, e in store.events("two")] == [20]
    assert [(r.run, r.first_ms, r.last_ms, r.seq) for r in store.runs()] == [
        ("one", 10, 30, 2),
        ("two", 20, 20, 1),
    ]


def test_a_second_controller_is_refused_while_the_first_lives(store: Store) -> None:
    store.acquire("a", "first", now_ms=1_000, lease_ms=10_000)
    with pytest.raises(FencedError, match="led by first") as caught:
        store.acquire("a", "second", now_ms=10_999)
    assert caught.value.hint


def test_an_expired_lease_is_taken_over_and_the_old_one_is_fenced(store: Store) -> None:
    old = store.acquire("a", "first", now_ms=0, lease_ms=10_000)
    old.append(RunStarted(1, "a"))
    new = store.acquire("a", "second", now_ms=10_001)
    new.append(MetricSeen(2, "x", 1.0))
    for write in (
        lambda: old.append(RunStarted(3, "a")),
        lambda: old.renew(3),
        old.next_generation,
    ):
        with pytest.raises(FencedError):
            write()
    assert [e.at_ms for _, e in store.events("a")] == [1, 2]
    old.release()
    assert new.append(MetricSeen(4, "x", 1.0)) == 3


def test_every_append_keeps_the_lease(store: Store) -> None:
    journal = store.acquire("a", "first", now_ms=0, lease_ms=10_000)
    journal.append(RunStarted(9_000, "a"))
    with pytest.raises(FencedError):
        store.acquire("a", "second", now_ms=15_000)
    store.acquire("a", "second", now_ms=19_001)


def test_a_released_lease_is_free_at_once(store: Store) -> None:
    journal = store.acquire("a", "first", now_ms=0)
    journal.release()
    journal.release()
    assert store.acquire("a", "second", now_ms=1).fence == 2


def test_numbers_of_generations_rise_over_controllers(store: Store) -> None:
    first = store.acquire("a", "me", now_ms=0)
    assert [first.next_generation(), first.next_generation()] == [1, 2]
    second = store.acquire("a", "me", now_ms=0)
    assert second.generation == 2
    assert second.next_generation() == 3
    assert second.next_generation(above=40) == 41
    assert second.next_generation(above=7) == 42


def test_a_lease_of_a_process_that_died_is_taken_over_at_once(store: Store) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = this_process().replace(str(os.getpid()), str(child.pid))
    store.acquire("a", owner, now_ms=0)
    with pytest.raises(FencedError):
        store.acquire("a", this_process(), now_ms=1, is_dead=is_dead)
    child.communicate(b"\n")
    assert store.acquire("a", this_process(), now_ms=1, is_dead=is_dead).fence == 2
    assert not is_dead("another-host:1")
    assert not is_dead("nonsense")


def test_a_row_that_cannot_be_read_is_set_aside_and_the_rest_is_used(store: Store) -> None:
    journal = store.acquire("a", "me", now_ms=0)
    journal.extend([RunStarted(1, "a"), MetricSeen(2, "x", 1.0), MetricSeen(3, "x", 2.0)])
    with store.engine.begin() as link:
        link.execute(update(events).where(events.c.seq == 2).values(kind="FromTheFuture"))
    assert [seq for seq, _ in store.events("a")] == [1, 3]
    assert [(bad.run, bad.seq) for bad in store.unreadable] == [("a", 2)]
    assert "FromTheFuture" in store.unreadable[0].why


def test_a_newer_schema_is_refused(store: Store, where: str) -> None:
    with store.engine.begin() as link:
        link.execute(update(versions).values(version=99))
    with pytest.raises(ConfigError, match="newer Surefoot"):
        Store(where)


KILLED = """
import sys
from surefoot.controller.store import Store
from surefoot.core.event import MetricSeen
journal = Store(sys.argv[1]).acquire("a", "child", now_ms=0)
n = 0
while True:
    n += 1
    journal.append(MetricSeen(n, "x", float(n)))
    print(n, flush=True)
"""


def test_what_was_appended_survives_a_kill_at_any_moment(where: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, where], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    told = 0
    for line in child.stdout:
        told = int(line)
        if told >= 20:
            os.kill(child.pid, signal.SIGKILL)
            break
    told = max([told, *(int(line) for line in child.stdout if line.strip())])
    child.wait()
    numbers = [seq for seq, _ in Store(where).events("a")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= told


def test_readers_do_not_wait_for_a_writer(store: Store) -> None:
    journal = store.acquire("a", "me", now_ms=0)
    journal.append(RunStarted(1, "a"))
    with store.engine.begin():  # a writer in the middle of a transaction
        assert len(store.events("a")) == 1
