"""Issue 8: of two controllers on one PostgreSQL journal, one takes over when the other fails."""

from __future__ import annotations

from uuid import uuid4

import pytest

from surefoot.controller.store import Journal
from surefoot.controller.store.codec import encode_event
from surefoot.controller.store.queries import ADD_EVENTS
from surefoot.core.event import Event
from surefoot.testing.failover import controllers, processes
from surefoot.testing.postgres import new_database

STOPPED = (2, 3, 8, 9)
"""Rounds whose leader is stopped and then goes on."""


@pytest.fixture(scope="module")
def journal(postgres: str) -> str:
    return new_database(postgres, f"f{uuid4().hex}")


@pytest.mark.parametrize("seed", range(5))
def test_a_leader_that_is_killed_or_stopped_within_a_write_is_replaced(
    journal: str, seed: int
) -> None:
    found = processes(seed, journal)
    assert found.wrong == []
    assert found.launched > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_control_loop_goes_on_where_another_died_or_stood_still(journal: str, seed: int) -> None:
    assert controllers(seed, journal) == ()


def test_a_round_catches_a_journal_without_a_fence(
    journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfenced(self: Journal, facts: list[Event], *, now_ms: int | None = None) -> int:
        with self._link.begin():
            self.seq = self._newest()
            for fact in facts:
                self.seq += 1
                kind, body = encode_event(fact)
                row = {"run": self.run, "seq": self.seq, "at_ms": 0, "kind": kind, "body": body}
                self._link.execute(ADD_EVENTS, row)
        return self.seq

    monkeypatch.setattr(Journal, "extend", unfenced)
    monkeypatch.setattr("surefoot.testing.failover.LIMIT_S", 3)
    assert any(processes(seed, journal).wrong for seed in STOPPED)
