"""What a forecast is, and the port that every forecasting model implements."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from surefoot.core.market import Pool
from surefoot.core.trace import History

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Hazard:
    """Losses per VM-hour as a step function of VM age, with what is known of the near future.

    `edges_h`: shape (n,), ages in hours where a new rate begins, first 0.
    `rate_per_h`: shape (n,), rate in each bin. Evaluated in closed form, so that survival over
    any horizon is exact.
    `near_h`, `near`: shapes (m,) and (n, m); the cumulative hazard within the next `near_h` hours
    of a VM that is now in age bin i. Past the last of them, the rates by age take over.
    """

    edges_h: Floats
    rate_per_h: Floats
    near_h: tuple[float, ...] = ()
    near: Floats | None = None
    lives: dict[tuple[float, float], float] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """Mean lives worked out so far, by (age, horizon) in hours: a hazard never changes."""

    def at(self, age_h: float) -> float:
        """Return the present hazard in losses per VM-hour at an age in hours."""
        index = self._bin(age_h)
        if self.near is not None:
            return float(self.near[index, 0]) / self.near_h[0]
        return float(self.rate_per_h[index])

    def cumulative(self, from_h: float, to_h: float) -> float:
        """Return the integral of the rates between two ages (hours), dimensionless."""
        ends = np.append(self.edges_h[1:], np.inf)
        spans = np.minimum(ends, to_h) - np.maximum(self.edges_h, from_h)
        return float(np.sum(np.clip(spans, 0.0, None) * self.rate_per_h))

    def survival(self, age_h: float, horizon_h: float) -> float:
        """Return the odds that a VM of this age now is still there after the horizon."""
        if self.near is None:
            return float(np.exp(-self.cumulative(age_h, age_h + horizon_h)))
        known, last = self.near[self._bin(age_h)], self.near_h[-1]
        total = float(np.interp(horizon_h, (0.0, *self.near_h), (0.0, *known)))
        if horizon_h > last:
            total += self.cumulative(age_h + last, age_h + horizon_h)
        return float(np.exp(-total))

    def _bin(self, age_h: float) -> int:
        return int(np.searchsorted(self.edges_h, max(age_h, 0.0), "right")) - 1


def constant_hazard(rate_per_h: float) -> Hazard:
    """Return a hazard that does not depend on age."""
    return Hazard(np.zeros(1), np.array([rate_per_h], dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is believed about one pool from now on. Rates per hour, times in hours."""

    pool: Pool
    at_ms: int
    hazard: Hazard
    """Best estimate of a held spot VM's hazard, given age."""
    hazard_low: float
    hazard_high: float
    """80 % interval of the hazard averaged over the next hour for a VM of typical age."""
    launch_odds: float
    """Probability that one launch asked for now succeeds."""
    window_h: float
    """Expected remaining length of the present spell (spot to be had, or drought)."""
    in_drought: bool
    """Whether launches are believed to fail now."""
    holdable: float
    """Expected number of VMs that could be held now (0 when none; inf is never returned)."""
    events_per_h: float
    """Rate of pool events: moments at which one or more held VMs are lost (3 min merged)."""
    event_share: float
    """Expected share of the pool's held VMs that one pool event takes, in (0, 1]."""
    observed_losses: int
    """Losses seen in this pool; 0 means that the numbers rest on the prior."""
    notes: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    """Model weights of a mixture, for people."""
    window: Hazard | None = None
    """Rate at which a window (launches succeed) ends, by its age; None where not estimated."""
    drought: Hazard | None = None
    """Rate at which a drought ends, by its age; None where not estimated."""
    spell_age_h: float = 0.0
    """How long the present window or drought has lasted so far, as far as seen."""
    seen_to_h: float = 0.0
    """Greatest age (hours) that a VM of this pool has reached; survival past it is extrapolated."""

    def complete(self, window: Hazard, drought: Hazard, spell_age_h: float) -> None:
        """Set what a model knows of spells, in place: for who has just made it and holds it alone.

        A copy of a thousand forecasts takes a tenth of all the time that making them does.
        """
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "drought", drought)
        object.__setattr__(self, "spell_age_h", spell_age_h)

    def hazard_at(self, age_ms: int) -> float:
        """Return the hazard (losses per VM-hour) at a VM age in ms."""
        return self.hazard.at(age_ms / 3_600_000)

    def survival(self, age_ms: int, horizon_ms: int) -> float:
        """Return the odds that a VM of `age_ms` is still held after `horizon_ms`."""
        return self.hazard.survival(age_ms / 3_600_000, horizon_ms / 3_600_000)

    def extrapolates(self, age_ms: int, horizon_ms: int) -> bool:
        """Return whether the horizon ends at an age that no VM of the pool has reached yet."""
        return (age_ms + horizon_ms) / 3_600_000 > self.seen_to_h

    def survival_band(self, age_ms: int, horizon_ms: int) -> tuple[float, float]:
        """Return an 80 % interval of `survival`, wider the further it is extrapolated.

        The cumulative hazard is log-normal with the spread of `hazard_low..hazard_high`; each
        doubling of the greatest age seen (an hour at least) adds as much spread again.
        """
        total = -math.log(max(self.survival(age_ms, horizon_ms), 1e-300))
        reach = (age_ms + horizon_ms) / 3_600_000 / max(self.seen_to_h, 1.0)
        spread = math.log(self.hazard_high / self.hazard_low) / 2.0
        factor = math.exp(min(spread * (1.0 + max(0.0, math.log2(max(reach, 1e-9)))), 50.0))
        return math.exp(-total * factor), math.exp(-total / factor)

    def launch_odds_within(self, horizon_ms: int) -> float:
        """Return the odds that some moment within the horizon would grant a launch.

        Droughts and windows are taken as memoryless with mean `window_h` (exponential).
        """
        if not self.in_drought:
            return max(self.launch_odds, 1e-6)
        end = 1.0 - float(np.exp(-horizon_ms / 3_600_000 / max(self.window_h, 1e-3)))
        return max(self.launch_odds, min(1.0, end))

    @property
    def mttp_h(self) -> float:
        """Mean time to preemption of a fresh VM, hours, capped at a year."""
        grid = np.concatenate(([0.0], np.geomspace(0.01, 8760.0, 240)))
        alive = np.array([self.hazard.survival(0.0, float(t)) for t in grid])
        return float(np.sum((alive[1:] + alive[:-1]) / 2 * np.diff(grid)))


class Beliefs(Protocol):
    """A model's state for all pools: updated by facts, asked for forecasts, serialisable."""

    def update(self, history: History, *, now_ms: int) -> Beliefs:
        """Take in what `history` gained since the last update; return the new beliefs."""

    def predict(self, pool: Pool, *, now_ms: int) -> Forecast:
        """Return the forecast for one pool; never raises for a pool without history."""

    def to_dict(self) -> Mapping[str, object]:
        """Return the state as JSON-able values."""


class Forecaster(Protocol):
    """A forecasting model. Parameters are its fields; it has no hidden state."""

    @property
    def name(self) -> str:
        """The name under which it is registered."""

    def fit(self, history: History, *, now_ms: int) -> Beliefs:
        """Return beliefs formed from scratch from all of `history` up to `now_ms`."""


class ManyBeliefs(Beliefs, Protocol):
    """Beliefs that forecast many pools at once faster than one by one."""

    def predict_many(self, pools: Sequence[Pool], *, now_ms: int) -> dict[Pool, Forecast]:
        """Return the forecast of each pool, equal to `predict` of each."""


class Forecasts(Mapping[Pool, Forecast]):
    """The forecasts of some pools at one instant, each worked out when it is first asked for.

    A plain policy looks at few pools; years of simulation should not pay for the others.
    """

    def __init__(self, beliefs: Beliefs, pools: Sequence[Pool], *, now_ms: int) -> None:
        self._beliefs, self._now_ms = beliefs, now_ms
        self._pools = dict.fromkeys(pools)
        self._known: dict[Pool, Forecast] = {}

    def __getitem__(self, pool: Pool) -> Forecast:
        """Return the forecast of one of the pools. Raises KeyError for any other."""
        found = self._known.get(pool)
        if found is None:
            if pool not in self._pools:
                raise KeyError(pool)
            if hasattr(self._beliefs, "predict_many"):
                many = cast(ManyBeliefs, self._beliefs).predict_many
                self._known = many(tuple(self._pools), now_ms=self._now_ms)
            else:
                self._known[pool] = self._beliefs.predict(pool, now_ms=self._now_ms)
            found = self._known[pool]
        return found

    def get(self, pool: Pool, default: Any = None) -> Any:
        """Return the forecast of one of the pools, else the default."""
        found = self._known.get(pool)
        if found is not None:
            return found
        return self[pool] if pool in self._pools else default

    def items(self) -> ItemsView[Pool, Forecast]:
        """Return every forecast; those that are not known yet are worked out in one go."""
        together = getattr(self._beliefs, "predict_together", None)
        if together is not None and len(self._known) < len(self._pools):
            self._known = together(tuple(self._pools), now_ms=self._now_ms)
        return super().items()

    def __contains__(self, pool: object) -> bool:
        """Return whether the pool is one of these, without a prediction."""
        return pool in self._pools

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools)

    def __len__(self) -> int:
        return len(self._pools)


def predict_all(beliefs: Beliefs, pools: Sequence[Pool], *, now_ms: int) -> Mapping[Pool, Forecast]:
    """Return the forecast of each pool, lazily."""
    return Forecasts(beliefs, pools, now_ms=now_ms)
