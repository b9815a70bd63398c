"""A storm: losses now come so thick that the slow models cannot be right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from surefoot.core.forecast.features import HALF_LIVES_H, HELD, MOMENTS, SHARES
from surefoot.core.forecast.port import Floats

MEMORIES: list[int] = [HALF_LIVES_H.index(h) for h in (6.0, 1.0, 0.25)]


@dataclass(frozen=True, slots=True)
class StormRule:
    """Prior odds of a storm at each memory, and how far above the usual its rate may be."""

    odds: float = 0.003
    shape: float = 0.5
    centres: tuple[float, ...] = (3.0, 10.0, 30.0, 100.0, 300.0)
    """Storm rates over the expected rate: one Gamma about each, all alike beforehand."""
    shifts: tuple[float, ...] = (10.0, 30.0, 100.0, 300.0)
    """The same over the pool's long-run rate: what tells that the market has changed."""


def storm(rule: StormRule, sums: Floats, expected_per_h: Floats) -> tuple[Floats, Floats]:
    """Return (odds of a storm, loss rate per VM-hour in it), each of shape (n,).

    `sums`: (n, 5, 6). `expected_per_h`: (n,), the slow models' losses per VM-hour. Moments of
    loss are counted, not VMs, since VMs of a pool are lost together. Per memory the evidence for
    "Poisson at the expected rate" is set against "Poisson at a rate from the mixture of Gammas".
    """
    share = np.clip(sums[:, SHARES, 3] + 0.5, 0.02, None) / (sums[:, MOMENTS, 3] + 1.0)
    usual = np.maximum(expected_per_h, 1e-6) / share
    moments, hours = (sums[:, what][:, MEMORIES, None] for what in (MOMENTS, HELD))
    inverse = rule.shape / (usual[:, None, None] * np.array(rule.centres))
    shape = rule.shape + moments
    log_weight = (
        rule.shape * np.log(inverse)
        - shape * np.log(inverse + hours)
        + _log_gamma(shape)
        - _constant(rule)
    )
    top = log_weight.max(axis=2)
    weight = np.exp(log_weight - top[:, :, None])
    total = weight.sum(axis=2)
    rates = (weight * shape / (inverse + hours)).sum(axis=2) / total
    calm = moments[:, :, 0] * np.log(usual)[:, None] - usual[:, None] * hours[:, :, 0]
    relative = np.exp(np.minimum(top + np.log(total) - calm + np.log(rule.odds), 50.0))
    odds = relative.sum(axis=1)
    return odds / (1.0 + odds), share * (relative * rates).sum(axis=1) / odds


def shift(rule: StormRule, sums: Floats, long_run_per_h: Floats) -> tuple[Floats, Floats]:
    """Return (odds that the pool left its long-run rate far behind, its rate now), each (n,).

    The slow models follow a change by and by, and so hide it from `storm`, which asks whether
    they are wrong; here the question is whether the long run is. A memory that holds hours from
    before the change understates the rate after it, so the rate is that of the last hour,
    resting on that of the last 6 h as on one more hour.
    """
    odds, _ = storm(replace(rule, centres=rule.shifts), sums, long_run_per_h)
    slow, fast = (HALF_LIVES_H.index(h) for h in (6.0, 1.0))
    moments, hours = sums[:, MOMENTS], sums[:, HELD]
    share = np.clip(sums[:, SHARES, slow] + 0.5, 0.02, None) / (moments[:, slow] + 1.0)
    before = moments[:, slow] / np.maximum(hours[:, slow], 0.25)
    return odds, share * (moments[:, fast] + before) / (hours[:, fast] + 1.0)


def worse(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Return, pool by pool, the (odds, rate) of which more losses are to be expected."""
    more = other[0] * other[1] > one[0] * one[1]
    return np.where(more, other[0], one[0]), np.where(more, other[1], one[1])


@lru_cache(maxsize=32)
def _constant(rule: StormRule) -> float:
    one = _log_gamma(np.array(rule.shape))
    return float(one) + float(np.log(len(rule.centres)))


def _log_gamma(x: Floats) -> Floats:
    """Return log Gamma(x) for x > 0: Stirling's series after shifting x up by 4."""
    shift = np.log(x * (x + 1.0) * (x + 2.0) * (x + 3.0))
    y = x + 4.0
    series = 1.0 / (12.0 * y) - 1.0 / (360.0 * y**3)
    return np.asarray((y - 0.5) * np.log(y) - y + 0.9189385332046727 + series - shift)
