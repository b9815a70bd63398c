"""Whether a launch would succeed now, how long that will last, and how many VMs can be held."""

from __future__ import annotations

import math
from dataclasses import dataclass

from surefoot.core.forecast.ages import AgeCurve
from surefoot.core.forecast.evidence import LN2, Evidence
from surefoot.core.forecast.port import Hazard
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
    """Expected rest of the present spell, hours."""
    holdable: float
    spell_age_h: float


def expect_supply(
    evidence: Evidence, prior: SupplyPrior, curve: AgeCurve, *, now_ms: int
) -> Supply:
    """Return the belief about launches now.

    The newest try rules; it fades towards the pool's long-run odds as the present spell would:
    with the pool's own mean spell length, so that the same rule serves seconds and days.
    """
    first = _placement_odds(evidence, prior)
    long_run = (evidence.all_grants + prior.long_weight * first) / (
        evidence.all_tries + prior.long_weight
    )
    odds = long_run
    last_ms = evidence.last_try_ms
    if last_ms is not None:
        length_h = _spell_length_h(evidence, prior, is_open=evidence.last_granted > 0)
        stale_h = max(0, now_ms - last_ms) / MS_PER_HOUR
        fade = math.exp(-LN2 * stale_h / max(length_h, 1e-4))
        weight = prior.weight / max(fade, 1e-9)
        odds = (evidence.grants + weight * long_run) / (evidence.tries + weight)
    odds = min(max(odds, 1e-4), 1.0 - 1e-4)
    in_drought = last_ms is not None and odds < 0.5
    same = last_ms is not None and in_drought == (evidence.last_granted == 0)
    age_h = max(0, now_ms - evidence.spell_ms) / MS_PER_HOUR if same and evidence.spell_ms else 0.0
    rest_h = _spell_length_h(evidence, prior, is_open=not in_drought)
    if age_h > 0.0:
        rest_h = rest_h * curve.integral(0.0, 1.0) / curve.integral(age_h, age_h + 1.0)
    return Supply(
        odds,
        in_drought,
        rest_h,
        _holdable(evidence, prior, odds),
        age_h,
    )


def _placement_odds(evidence: Evidence, prior: SupplyPrior) -> float:
    """Return the prior odds, from the provider's placement score (1..10) where it is told."""
    scores = [s.value for s in evidence.signals if s.kind == "placement_score"]
    return min(max(scores[-1] / 10.0, 0.02), 0.98) if scores else prior.launch_odds


def _spell_length_h(evidence: Evidence, prior: SupplyPrior, *, is_open: bool) -> float:
    """Return the mean length of the pool's windows (or droughts), the present one included."""
    spells = evidence.windows if is_open else evidence.droughts
    guess = prior.window_h if is_open else prior.drought_h
    total = spells.hours + prior.spells * guess
    if evidence.spell_ms is not None and is_open == (evidence.last_granted > 0):
        total += max(0, (evidence.last_try_ms or 0) - evidence.spell_ms) / MS_PER_HOUR
    return total / (spells.ended + prior.spells)


def spell_end(evidence: Evidence, prior: SupplyPrior, curve: AgeCurve, *, is_open: bool) -> Hazard:
    """Return the rate at which windows (or droughts) end, falling with their age."""
    spells = evidence.windows if is_open else evidence.droughts
    guess = prior.window_h if is_open else prior.drought_h
    hours = spells.weighted_h + prior.spells * curve.integral(0.0, guess)
    return curve.scaled((spells.ended + prior.spells) / max(hours, 1e-6))


def _holdable(evidence: Evidence, prior: SupplyPrior, odds: float) -> float:
    held = len(evidence.alive)
    if evidence.last_try_ms is None:
        return held + odds * prior.holdable
    if evidence.last_whole:
        return max(held, odds * evidence.last_asked)
    more = max(evidence.last_granted, evidence.most_held - held, 1)
    return held + odds * more
