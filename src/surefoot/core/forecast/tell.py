"""From odds by pool, age and horizon to the `Forecast` of each pool, with its reasons."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from surefoot.core.forecast.ages import mean_factor
from surefoot.core.forecast.evidence import Evidence
from surefoot.core.forecast.expert import HORIZONS_H
from surefoot.core.forecast.features import AGE_BINS_H, Features
from surefoot.core.forecast.port import Floats, Forecast, Hazard
from surefoot.core.forecast.prior import posterior, posteriors
from surefoot.core.forecast.supply import expect_supply
from surefoot.core.market import Pool
from surefoot.core.units import MS_PER_HOUR

if TYPE_CHECKING:
    from surefoot.core.forecast.mixture import Mixture

NEAR_H: tuple[float, ...] = (1.0 / 60.0, *HORIZONS_H)
EDGES = np.array(AGE_BINS_H)
REBALANCE_MS = 1_800_000
REBALANCE_ODDS = 0.3
"""Of 30 rebalance hints that one user logged, 9 were followed by a termination."""
DRIFT = 3.0
"""The last hours' rate over the long-run rate from which a pool is said to have changed."""


def tell(
    model: Mixture,
    pools: Sequence[Pool],
    evidence: Sequence[Evidence],
    seen: Features,
    odds: Floats,
    stormy: tuple[Floats, Floats] | None,
    weights: Mapping[str, Floats],
    now_ms: int,
) -> dict[Pool, Forecast]:
    """Return the forecasts. `odds`: (n, bins, horizons); `weights`: (n,) by expert."""
    near = _near(odds, stormy)
    counts = np.array([_counts(model, e, now_ms) for e in evidence]).reshape(-1, 2)
    belief = posteriors(model.rate_prior, counts[:, 0], counts[:, 1])
    low, high = belief.low / belief.mean, belief.high / belief.mean
    bounds = [_bound(model, e, now_ms) for e in evidence]
    for i, (one, bound) in enumerate(zip(evidence, bounds, strict=True)):
        if bound is not None:
            near[i] *= min(1.0, bound / _typical(one, near[i, :, -1] / NEAR_H[-1], now_ms))
    hints = [_rebalance(e, now_ms) for e in evidence]
    for i, odds_of_loss in enumerate(hints):
        if odds_of_loss > 0.0:
            near[i] -= math.log1p(-odds_of_loss) * np.minimum(np.array(NEAR_H) / 0.25, 1.0)
    rates = near[:, :, -1] / NEAR_H[-1]
    told = {}
    for i, (pool, one) in enumerate(zip(pools, evidence, strict=True)):
        supply = expect_supply(one, model.supply, model.rules.curve, now_ms=now_ms)
        typical = _typical(one, rates[i], now_ms)
        share = min(1.0, max(0.01, (one.shares + 0.5) / (one.events + 1.0)))
        share = max(share, 1.0 / len(one.alive)) if one.alive else share
        told[pool] = Forecast(
            pool=pool,
            at_ms=now_ms,
            hazard=Hazard(EDGES, rates[i], NEAR_H, near[i]),
            hazard_low=typical * float(low[i]),
            hazard_high=max(typical, bounds[i] or typical * float(high[i])),
            launch_odds=supply.launch_odds,
            window_h=supply.window_h,
            in_drought=supply.in_drought,
            holdable=supply.holdable,
            # An event takes `share` of the VMs, so a VM's hazard is the event rate times it.
            events_per_h=typical / share,
            event_share=share,
            observed_losses=one.observed_losses,
            notes=_notes(one, seen.rates[i], stormy[0][i] if stormy else 0.0, hints[i]),
            weights={name: float(weight[i]) for name, weight in weights.items()},
            spell_age_h=supply.spell_age_h,
            seen_to_h=one.seen_to_h(now_ms),
        )
    return told


def _near(odds: Floats, stormy: tuple[Floats, Floats] | None) -> Floats:
    """Return the cumulative hazards within NEAR_H, shape (n, bins, len(NEAR_H)).

    In a storm (odds s, rate r) survival is (1 - s) x that of the experts + s x exp(-r h).
    """
    alive = 1.0 - odds
    first = np.power(alive[:, :, :1], NEAR_H[0] / NEAR_H[1])
    alive = np.concatenate([first, alive], axis=2)
    if stormy is not None:
        chance, rate = (part[:, None, None] for part in stormy)
        within = np.exp(-np.maximum(rate * np.array(NEAR_H), -np.log(alive)))
        alive = (1.0 - chance) * alive + chance * within
    return np.asarray(-np.log(np.maximum(alive, 1e-12)), dtype=np.float64)


def _bound(model: Mixture, e: Evidence, now_ms: int) -> float | None:
    """Return the 90 % bound on the hazard of a watched pool without a loss, None for others.

    It comes from the pool's own VM-hours alone, so it falls as they grow.
    """
    if e.observed_losses or e.at_ms < 0 or not e.alive:
        return None
    gap_h = max(0, now_ms - e.at_ms) / MS_PER_HOUR
    curve, ages = model.rules.curve, e.ages_h(now_ms)
    exposure_h = e.exposure_h + sum(curve.integral(age - gap_h, age) for age in ages)
    _, _, high = posterior(model.rate_prior, e.losses, exposure_h)
    return high * mean_factor(curve, ages, 1.0)


def _counts(model: Mixture, e: Evidence, now_ms: int) -> tuple[float, float]:
    """Return the pool's decayed pool events and hours with VMs, let run to now.

    Events and not VMs say how sure a rate is: VMs of a pool are lost together.
    """
    if e.at_ms < 0 or now_ms <= e.at_ms:
        return e.events, e.held_h
    gap_h = (now_ms - e.at_ms) / MS_PER_HOUR
    fade = 2.0 ** (-gap_h / model.rules.half_life_h)
    fresh = gap_h * (1.0 + fade) / 2.0 if e.alive else 0.0
    return e.events * fade, e.held_h * fade + fresh


def _typical(e: Evidence, rates: Floats, now_ms: int) -> float:
    """Return the mean rate over the held VMs' ages, or at an hour where none is held."""
    ages = e.ages_h(now_ms) or [1.0]
    total = sum(float(rates[bisect_right(AGE_BINS_H, age) - 1]) for age in ages)
    return total / len(ages)


def _rebalance(e: Evidence, now_ms: int) -> float:
    """Return the odds of loss that a recent rebalance hint adds, fading within half an hour."""
    for signal in e.signals:
        if signal.kind == "rebalance" and 0 <= now_ms - signal.at_ms < REBALANCE_MS:
            return REBALANCE_ODDS * (1.0 - (now_ms - signal.at_ms) / REBALANCE_MS)
    return 0.0


def _notes(e: Evidence, rates: Floats, storm_odds: float, hint: float) -> tuple[str, ...]:
    notes = []
    if e.observed_losses == 0:
        notes.append(f"no events seen in {e.observed_h:.1f} VM-hours: rests on the prior")
    else:
        notes.append(f"{e.observed_losses} losses in {e.observed_h:.1f} VM-hours")
    recent, usual = float(rates[3]), float(rates[0])
    if storm_odds > 0.5:
        notes.append("storm: losses come far faster than before")
    elif e.observed_losses and recent > DRIFT * usual:
        notes.append(
            f"drift: the last hours are {recent / usual:.1f} times worse than the long run"
        )
    elif e.observed_losses and recent * DRIFT < usual:
        notes.append(
            f"drift: the last hours are {usual / recent:.1f} times calmer than the long run"
        )
    if hint > 0.0:
        notes.append("the provider hinted at a coming loss (rebalance)")
    return tuple(notes)
