"""Whether there was a loss in the pool within the last horizon: yesterday's weather."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from surefoot.core.forecast.expert import HORIZONS_H, Batch
from surefoot.core.forecast.features import Features
from surefoot.core.forecast.port import Floats

_PRIOR = np.array([[0.05, 0.15], [0.2, 0.4]])
"""Odds of loss within each horizon after [quiet, a loss]: guesses worth `_WORTH` rows."""
_WORTH = 4.0


def _zeros() -> Floats:
    return np.zeros((2, len(HORIZONS_H)))


@dataclass(frozen=True, slots=True)
class Persistence:
    """A table of two states for each horizon."""

    name: str = "persistence"
    lost: Floats = field(default_factory=_zeros)
    seen: Floats = field(default_factory=_zeros)

    def odds(self, features: Features) -> Floats:
        """Return the odds of the state each pool is in."""
        table = (self.lost + _WORTH * _PRIOR) / (self.seen + _WORTH)
        recent = _recent(features)
        odds = np.where(recent, table[1], table[0])
        return np.asarray(odds[:, None, :], dtype=np.float64)

    def learned(self, batch: Batch) -> Self:
        """Return this expert with the rows counted."""
        recent = _recent(batch.features).astype(np.float64)
        lost, seen = self.lost.copy(), self.seen.copy()
        for state, here in enumerate((1.0 - recent, recent)):
            lost[state] += np.sum(here * batch.weight * batch.lost, axis=0)
            seen[state] += np.sum(here * batch.weight, axis=0)
        return replace(self, lost=lost, seen=seen)

    def state(self) -> Mapping[str, Any]:
        """Return the counts."""
        return {"lost": self.lost.tolist(), "seen": self.seen.tolist()}

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return this expert with the counts of `state`."""
        return replace(self, lost=np.array(state["lost"]), seen=np.array(state["seen"]))


def _recent(features: Features) -> Floats:
    return np.asarray(features.since_h[:, None] <= np.array(HORIZONS_H))
