"""How the hazard of a VM falls with its age: the shared age curve and its exact integral."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from surefoot.core.forecast.port import Floats, Hazard

EDGES_H: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 48.0)
"""Ages (hours) at which the curve steps: those of the public hazard tables."""

FALLING: tuple[float, ...] = (3.3, 1.9, 1.6, 1.0, 0.78, 0.5, 0.38, 0.35, 0.3, 0.25)
"""Hazard in each age bin over the hazard at 1-2 h.

From the held-VM traces (V100 and r5 2023, GCP 2019), whose raw curves fall about twice as
steeply: part of that fall is the mixing of good and bad pools, which the pool's own rate
already carries, so the raw logarithms are taken at three quarters.
"""

FLAT: tuple[float, ...] = (1.0,) * len(EDGES_H)


@dataclass(frozen=True, slots=True)
class AgeCurve:
    """A relative hazard by age: `factors[i]` holds from `edges_h[i]` to the next edge."""

    edges_h: tuple[float, ...] = EDGES_H
    factors: tuple[float, ...] = FALLING
    _passed: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        spans = [(b - a) * f for (a, b), f in zip(pairwise(self.edges_h), self.factors)]
        object.__setattr__(self, "_passed", (0.0, *accumulate(spans)))

    def at(self, age_h: float) -> float:
        """Return the factor at an age in hours."""
        return self.factors[max(0, bisect.bisect_right(self.edges_h, age_h) - 1)]

    def integral(self, from_h: float, to_h: float) -> float:
        """Return the exposure between two ages, in hours at factor 1."""
        return self._upto(to_h) - self._upto(from_h)

    def scaled(self, rate_per_h: float) -> Hazard:
        """Return the hazard whose rate at factor 1 is `rate_per_h`."""
        edges, factors = _arrays(self)
        return Hazard(edges, factors * rate_per_h)

    def _upto(self, age_h: float) -> float:
        if age_h <= 0.0:
            return 0.0
        index = bisect.bisect_right(self.edges_h, age_h) - 1
        return self._passed[index] + (age_h - self.edges_h[index]) * self.factors[index]


@lru_cache(maxsize=64)
def _arrays(curve: AgeCurve) -> tuple[Floats, Floats]:
    return np.array(curve.edges_h), np.array(curve.factors)


def weibull(shape: float, edges_h: Sequence[float] = EDGES_H) -> AgeCurve:
    """Return the Weibull hazard k a^(k-1) as a step curve with the exact integral of each bin.

    The rate at 1-2 h is 1; the last bin is taken to reach a week.
    """
    ends = [*edges_h[1:], 168.0]
    means = [(b**shape - a**shape) / (b - a) for a, b in zip(edges_h, ends, strict=True)]
    unit = 2.0**shape - 1.0
    return AgeCurve(tuple(edges_h), tuple(m / unit for m in means))


def mean_factor(curve: AgeCurve, ages_h: Sequence[float], horizon_h: float) -> float:
    """Return the mean factor over the next `horizon_h` for VMs of these ages (1 h if none)."""
    ages = ages_h or (1.0,)
    spans = [curve.integral(age, age + horizon_h) for age in ages]
    return sum(spans) / (len(spans) * horizon_h)
