"""Storms round the real controller, and proof that they would catch what they are there to catch.

Repeat one with: python -m surefoot.testing.chaos --seed SEED
"""

from __future__ import annotations

import os

import pytest
from chaos_mutants import PLANTED, Patch

from surefoot.testing.chaos import crashes, shrink, storm, storms
from surefoot.testing.chaos_faults import Fault, draw

FIRST = int(os.environ.get("SEED", "0"))
COUNT = int(os.environ.get("STORMS", "300"))
WITHIN = 60
"""Seeds within which each planted fault is caught here; the bar is 2,000, counted from seed 0."""

FROM = {"forget_orphans": 80, "follow_the_calendar_back": 180}
"""Where to begin for those that only rare storms show, to save time."""


def test_storms_leave_nothing_astray() -> None:
    failed = [s for chunk in storms(range(FIRST, FIRST + COUNT)) for s in chunk.failed]
    assert not failed, "\n".join([str(failed), *(shrink(storm(s)).tell() for s in failed[:3])])


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_killed_at_any_write_or_call_goes_on(seed: int) -> None:
    """Every operation is tried by the benchmark; here one in 61."""
    found = crashes(seed, every=61, first=seed)
    assert not found, "\n".join(verdict.tell() for verdict in found)


def test_a_seed_is_the_same_storm_each_time() -> None:
    assert storm(7).events == storm(7).events
    assert draw(7) == draw(7) != draw(8)


@pytest.mark.parametrize(("name", "plant"), PLANTED.items(), ids=PLANTED.keys())
def test_a_planted_fault_is_caught(
    name: str, plant: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    first = FROM.get(name, 0)
    assert any(storm(seed).wrong for seed in range(first, first + WITHIN)), "no storm noticed"


def test_a_failing_seed_is_shortened_and_tells_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    PLANTED["take_a_live_lease"](monkeypatch)
    faults = (Fault("rival", 60_000), Fault("silent_loss", 200_000), Fault("kill", 100, 0, 300))
    found = shrink(storm(1, faults))
    assert found.faults == (Fault("rival", 60_000),)
    assert "python -m surefoot.testing.chaos --seed 1" in found.tell()
