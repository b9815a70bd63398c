"""A storm: losses now come so thick that the slow models cannot be right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from surefoot.core.forecast.features import HALF_LIVES_H, HELD, MOMENTS, SHARES
from surefoot.core.forecast.port import Floats

MEMORIES: tuple[int, ...] = tuple(HALF_LIVES_H.index(h) for h in (6.0, 1.0, 0.25))


@dataclass(frozen=True, slots=True)
class StormRule:
    """Prior odds of a storm at each memory, and how far above the usual its rate may be."""

    odds: float = 0.003
    shape: float = 0.5
    centres: tuple[float, ...] = (3.0, 10.0, 30.0, 100.0, 300.0)
    """Storm rates over the expected rate: one Gamma about each, all alike beforehand."""


def storm(rule: StormRule, sums: Floats, expected_per_h: Floats) -> tuple[Floats, Floats]:
    """Return (odds of a storm, loss rate per VM-hour in it), each of shape (n,).

    `sums`: (n, 5, 6). `expected_per_h`: (n,), the slow models' losses per VM-hour. Moments of
    loss are counted, not VMs, since VMs of a pool are lost together. Per memory the evidence for
    "Poisson at the expected rate" is set against "Poisson at a rate from the mixture of Gammas".
    """
    share = np.clip(sums[:, SHARES, 3] + 0.5, 0.02, None) / (sums[:, MOMENTS, 3] + 1.0)
    usual = np.maximum(expected_per_h, 1e-6) / share
    log_odds, rates = [], []
    for k in MEMORIES:
        evidence, rate = _against(rule, sums[:, MOMENTS, k], sums[:, HELD, k], usual)
        log_odds.append(evidence + np.log(rule.odds))
        rates.append(rate * share)
    relative = np.exp(np.minimum(np.stack(log_odds), 50.0))
    total = relative.sum(axis=0)
    rate = (relative * np.stack(rates)).sum(axis=0) / total
    return total / (1.0 + total), rate


def _against(
    rule: StormRule, moments: Floats, hours: Floats, usual: Floats
) -> tuple[Floats, Floats]:
    """Return (log evidence of a storm over none, mean storm rate per hour), each (n,)."""
    centre = usual[:, None] * np.array(rule.centres)
    inverse = rule.shape / centre
    shape = rule.shape + moments[:, None]
    log_weight = (
        rule.shape * np.log(inverse)
        - shape * np.log(inverse + hours[:, None])
        + _log_gamma(shape)
        - _log_gamma(np.array(rule.shape))
        - np.log(len(rule.centres))
    )
    top = log_weight.max(axis=1)
    weight = np.exp(log_weight - top[:, None])
    total = weight.sum(axis=1)
    mean = (weight * shape / (inverse + hours[:, None])).sum(axis=1) / total
    calm = moments * np.log(usual) - usual * hours
    return top + np.log(total) - calm, mean


def _log_gamma(x: Floats) -> Floats:
    """Return log Gamma(x) for x > 0: Stirling's series after shifting x up by 6."""
    shift = np.zeros_like(x)
    for k in range(6):
        shift = shift + np.log(x + k)
    y = x + 6.0
    series = 1.0 / (12.0 * y) - 1.0 / (360.0 * y**3)
    return np.asarray((y - 0.5) * np.log(y) - y + 0.9189385332046727 + series - shift)
