"""What a part of the mixture is: odds of loss by pool, age and horizon, learned from rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from surefoot.core.forecast.features import AGE_BINS_H, Features
from surefoot.core.forecast.port import Floats

HORIZONS_H: tuple[float, ...] = (0.25, 1.0)
BINS = len(AGE_BINS_H)
LEAST_ODDS, MOST_ODDS = 0.0005, 0.9995


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows whose future is known: a row is one pool's VMs of one age bin at one moment.

    `features`: n rows. `age_x`: (n, len(AGE_NAMES)), mean age features of the VMs. `bins`:
    (n, BINS), share of the VMs in each age bin. `lost`: (n, horizons), share that was lost.
    `weight`: (n, horizons), what a row counts; 0 where its future is unknown.
    """

    features: Features
    age_x: Floats
    bins: Floats
    lost: Floats
    weight: Floats

    def __len__(self) -> int:
        return len(self.bins)


class Expert(Protocol):
    """One model inside a mixture. Immutable: learning returns another."""

    @property
    def name(self) -> str:
        """Its name among the mixture's weights."""

    def odds(self, features: Features) -> Floats:
        """Return the odds of loss, shape (n, BINS, len(HORIZONS_H)) or broadcastable to it."""

    def learned(self, batch: Batch) -> Self:
        """Return this expert after the rows."""

    def state(self) -> Mapping[str, Any]:
        """Return what was learned, as JSON-able values."""

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return this expert with what `state` said."""


def row_odds(odds: Floats, bins: Floats) -> Floats:
    """Return each row's mean odds over its VMs' age bins, shape (n, horizons)."""
    full = np.broadcast_to(odds, (len(bins), BINS, len(HORIZONS_H)))
    return np.asarray(np.einsum("nbh,nb->nh", full, bins), dtype=np.float64)


def odds_of_rate(rate_per_h: Floats) -> Floats:
    """Return the odds of loss within each horizon at constant rates, shape (n, 1, horizons)."""
    spans = np.array(HORIZONS_H)
    return np.asarray(-np.expm1(-rate_per_h[:, None, None] * spans), dtype=np.float64)
