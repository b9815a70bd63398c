"""Whether a launch would succeed now, how long that will last, and how many VMs can be held."""

from __future__ import annotations

import math
from dataclasses import dataclass

from surefoot.core.forecast.evidence import LN2, Evidence
from surefoot.core.units import MS_PER_HOUR


@dataclass(frozen=True, slots=True)
class SupplyPrior:
    """What is believed of the supply of a pool that was never tried."""

    launch_odds: float = 0.65
    """Mean success of launches in the public probe traces, rounded."""
    weight: float = 0.2
    """Tries that the long-run odds are worth against the newest tries."""
    long_weight: float = 3.0
    """Tries that `launch_odds` is worth against the pool's long-run odds."""
    window_h: float = 2.0
    drought_h: float = 0.5
    spells: float = 0.5
    """Ended spells that the two lengths above are worth."""
    holdable: float = 8.0


@dataclass(frozen=True, slots=True)
class Supply:
    """The belief about launches in one pool at one moment."""

    launch_odds: float
    in_drought: bool
    window_h: float
    holdable: float


def expect_supply(evidence: Evidence, prior: SupplyPrior, *, now_ms: int) -> Supply:
    """Return the belief about launches now.

    The newest try rules; it fades towards the pool's long-run odds as the present spell would:
    with the pool's own mean spell length, so that the same rule serves seconds and days.
    """
    long_run = (evidence.all_grants + prior.long_weight * prior.launch_odds) / (
        evidence.all_tries + prior.long_weight
    )
    odds = long_run
    if evidence.last_try_ms is not None:
        length_h = _spell_length_h(evidence, prior, is_open=evidence.last_granted > 0)
        stale_h = max(0, now_ms - evidence.last_try_ms) / MS_PER_HOUR
        fade = math.exp(-LN2 * stale_h / max(length_h, 1e-4))
        weight = prior.weight / max(fade, 1e-9)
        odds = (evidence.grants + weight * long_run) / (evidence.tries + weight)
    odds = min(max(odds, 1e-4), 1.0 - 1e-4)
    in_drought = evidence.last_try_ms is not None and odds < 0.5
    window_h = _spell_length_h(evidence, prior, is_open=not in_drought)
    return Supply(odds, in_drought, window_h, _holdable(evidence, prior, odds))


def _spell_length_h(evidence: Evidence, prior: SupplyPrior, *, is_open: bool) -> float:
    """Return the mean length of the pool's windows (or droughts), the present one included."""
    index = int(is_open)
    guess = prior.window_h if is_open else prior.drought_h
    ended = evidence.ended_spells[index] + prior.spells
    total = evidence.spell_h[index] + prior.spells * guess
    if evidence.spell_ms is not None and is_open == (evidence.last_granted > 0):
        present = max(0, (evidence.last_try_ms or 0) - evidence.spell_ms)
        total += present / MS_PER_HOUR
    return total / ended


def _holdable(evidence: Evidence, prior: SupplyPrior, odds: float) -> float:
    held = len(evidence.alive)
    if evidence.last_try_ms is None:
        return held + odds * prior.holdable
    more = max(evidence.last_granted, evidence.most_held - held, 1)
    return held + odds * more
