"""Loss odds by age alone, counted over all pools: the life table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from surefoot.core.forecast.ages import AgeCurve
from surefoot.core.forecast.expert import BINS, HORIZONS_H, Batch
from surefoot.core.forecast.features import PRIOR_RATE_PER_H, Features, bin_centres
from surefoot.core.forecast.port import Floats

_WORTH = 1.0
"""Rows that the scaled prior curve is worth in each bin."""


def _zeros() -> Floats:
    return np.zeros((BINS, len(HORIZONS_H)))


def _prior() -> Floats:
    """Return the odds of the shared age curve, shape (BINS, horizons)."""
    curve = AgeCurve()
    exposure = [[curve.integral(a, a + h) for h in HORIZONS_H] for a in bin_centres()]
    return np.asarray(-np.expm1(-PRIOR_RATE_PER_H * np.array(exposure)), dtype=np.float64)


PRIOR = _prior()


@dataclass(frozen=True, slots=True)
class LifeTable:
    """Losses over VMs by age bin and horizon.

    The odds of being lost within a horizon at an age are one minus the Kaplan-Meier survival
    over it; counting them by horizon keeps calibration where bins are wider than the horizon.
    """

    name: str = "life_table"
    lost: Floats = field(default_factory=_zeros)
    seen: Floats = field(default_factory=_zeros)

    def odds(self, features: Features) -> Floats:
        """Return the table, alike for every pool: shape (1, BINS, horizons)."""
        usual = (self.lost.sum(axis=0) + PRIOR.mean(axis=0)) / (
            (self.seen * PRIOR).sum(axis=0) + PRIOR.mean(axis=0)
        )
        guess = np.clip(PRIOR * usual, 0.002, 0.95)
        return np.asarray((self.lost + _WORTH * guess) / (self.seen + _WORTH))[None]

    def learned(self, batch: Batch) -> Self:
        """Return the table with the rows counted."""
        lost = self.lost + batch.bins.T @ (batch.weight * batch.lost)
        return replace(self, lost=lost, seen=self.seen + batch.bins.T @ batch.weight)

    def state(self) -> Mapping[str, Any]:
        """Return the counts."""
        return {"lost": self.lost.tolist(), "seen": self.seen.tolist()}

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return the table with the counts of `state`."""
        return replace(self, lost=np.array(state["lost"]), seen=np.array(state["seen"]))
