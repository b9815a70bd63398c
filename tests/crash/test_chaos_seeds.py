"""Storms round the real controller, and proof that they would catch what they are there to catch.

Repeat one with: python -m surefoot.testing.chaos --seed SEED
"""

from __future__ import annotations

import os

import pytest
from chaos_mutants import PLANTED, Patch

from surefoot.testing.chaos import shrink, storm
from surefoot.testing.chaos_faults import Fault, draw

FIRST = int(os.environ.get("SEED", "0"))
COUNT = int(os.environ.get("STORMS", "40"))
WITHIN = 60
"""Seeds within which each planted fault is caught; the bar is 2,000."""


def test_storms_leave_nothing_astray() -> None:
    for seed in range(FIRST, FIRST + COUNT):
        verdict = storm(seed)
        assert not verdict.wrong, shrink(verdict).tell()


def test_a_seed_is_the_same_storm_each_time() -> None:
    assert storm(7).events == storm(7).events
    assert draw(7) == draw(7) != draw(8)


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_fault_is_caught(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(storm(seed).wrong for seed in range(WITHIN)), "no storm noticed"


def test_a_failing_seed_is_shortened_and_tells_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    PLANTED["take_a_live_lease"](monkeypatch)
    faults = (Fault("rival", 60_000), Fault("silent_loss", 200_000), Fault("kill", 100, 0, 300))
    found = shrink(storm(1, faults))
    assert found.faults == (Fault("rival", 60_000),)
    assert "python -m surefoot.testing.chaos --seed 1" in found.tell()
