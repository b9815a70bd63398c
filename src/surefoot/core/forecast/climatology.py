"""The pool's own long-run rate, shrunk towards all pools: what every model must beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from surefoot.core.forecast.expert import Batch, odds_of_rate
from surefoot.core.forecast.features import Features
from surefoot.core.forecast.port import Floats


@dataclass(frozen=True, slots=True)
class RateExpert:
    """A constant rate at one memory of the features: 0 is all history, then ever shorter."""

    name: str = "climatology"
    memory: int = 0

    def odds(self, features: Features) -> Floats:
        """Return the odds at the pool's rate, whatever the age."""
        return odds_of_rate(features.rates[:, self.memory])

    def learned(self, batch: Batch) -> Self:
        """Return this expert: the sums already hold all it knows."""
        return self

    def state(self) -> Mapping[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return this expert."""
        return self
