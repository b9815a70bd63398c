"""Markets as they may go on: resampled from a record, or drawn from forecasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from surefoot.core.forecast.port import Forecast
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.policy.economics import mean_life_h
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace, value_at
from surefoot.core.units import MS_PER_HOUR

DAY_MS = 24 * MS_PER_HOUR
BLOCKS = 4
"""A record shorter than this many days is cut into this many blocks."""
CLOUD_BOOT_MS, CLOUD_NOTICE_MS = 90_000, 120_000


class Futures(Protocol):
    """A source of possible markets."""

    @property
    def words(self) -> str:
        """Where the futures come from, for people."""

    def market(self, seed: int, *, start_ms: int, length_ms: int) -> Trace:
        """Return one possible market from `start_ms` on; equal seeds give equal markets."""


@dataclass(frozen=True, slots=True)
class Resampled:
    """Blocks of a record in random order, all pools together, so that they fail as they did."""

    record: Trace

    @property
    def words(self) -> str:
        """Where the futures come from."""
        return f"blocks of {self.record.name}, resampled"

    def market(self, seed: int, *, start_ms: int, length_ms: int) -> Trace:
        """Return one possible market."""
        record, dice = self.record, np.random.default_rng(seed)
        whole = record.end_ms - record.start_ms
        block = max(1, min(DAY_MS, whole // BLOCKS))
        last = max(record.end_ms - block, record.start_ms)
        count = math.ceil(length_ms / block)
        begins = [int(dice.integers(record.start_ms, last + 1)) for _ in range(count)]
        cuts = [(b, start_ms + index * block, block) for index, b in enumerate(begins)]
        pools = {pool: _joined(old, cuts) for pool, old in record.pools.items()}
        name = f"{record.name}, resampled"
        return Trace(name, record.semantics, start_ms, start_ms + length_ms, pools)


Cut = tuple[int, int, int]
"""(where a block begins in the record, where it is put, its length), all ms."""


def _joined(old: PoolTrace, cuts: Sequence[Cut]) -> PoolTrace:
    taken = tuple(
        Reclaim(to + r.at_ms - begin, r.count, r.notice_ms)
        for begin, to, length in cuts
        for r in sorted(old.reclaims, key=lambda r: r.at_ms)
        if begin <= r.at_ms < begin + length
    )
    return PoolTrace(
        old.pool,
        _steps(old.supply, cuts),
        _steps(old.spot, cuts),
        _steps(old.on_demand, cuts),
        taken,
        old.notice_ms,
        old.boot_ms,
        old.speed,
        old.minimum_billing_ms,
    )


def _steps(old: tuple[Step, ...], cuts: Sequence[Cut]) -> tuple[Step, ...]:
    found: list[Step] = []
    for begin, to, length in cuts:
        inside = [s for s in old if begin < s.at_ms < begin + length]
        for step in (Step(begin, value_at(old, begin)), *inside):
            if not found or found[-1].value != step.value:
                found.append(Step(to + step.at_ms - begin, step.value))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Windows, droughts and losses drawn from forecasts, at the prices of now.

    `most`: VMs that a pool holds while its window lasts. Pools are drawn independently.
    """

    offers: tuple[Offering, ...]
    forecasts: Mapping[Pool, Forecast]
    most: int

    @property
    def words(self) -> str:
        """Where the futures come from."""
        seen = sum(f.observed_losses for f in self.forecasts.values())
        basis = f"{seen} losses seen" if seen else "the prior alone: no loss was ever seen here"
        return f"drawn from the forecasts ({basis}), at the prices of now"

    def market(self, seed: int, *, start_ms: int, length_ms: int) -> Trace:
        """Return one possible market."""
        dice = np.random.default_rng(seed)
        pools = {
            pool: self._pool(pool, dice, start_ms, length_ms)
            for pool in sorted({offer.pool for offer in self.offers})
        }
        end_ms = start_ms + length_ms
        return Trace("forecast", Semantics.SUPPLY, start_ms, end_ms, pools)

    def _pool(
        self, pool: Pool, dice: np.random.Generator, start_ms: int, length_ms: int
    ) -> PoolTrace:
        belief = self.forecasts[pool]
        offers = {o.capacity: o for o in self.offers if o.pool == pool}
        spot, safe = offers.get(Capacity.SPOT), offers.get(Capacity.ON_DEMAND)
        known = spot or safe
        supply = self._supply(belief, dice, start_ms, length_ms) if spot else ()
        return PoolTrace(
            pool,
            supply or (Step(start_ms, 0),),
            (Step(start_ms, spot.price_micro_usd_h),) if spot else (),
            (Step(start_ms, safe.price_micro_usd_h),) if safe else (),
            self._reclaims(belief, dice, start_ms, length_ms) if spot else (),
            notice_ms=CLOUD_NOTICE_MS,
            boot_ms=CLOUD_BOOT_MS,
            speed=known.speed if known else 1.0,
            minimum_billing_ms=known.minimum_billing_ms if known else 0,
        )

    def _supply(
        self, belief: Forecast, dice: np.random.Generator, start_ms: int, length_ms: int
    ) -> tuple[Step, ...]:
        lengths_h = _spells_h(belief)
        held, at_h, steps = not belief.in_drought, 0.0, []
        mean_h = belief.window_h
        while at_h * MS_PER_HOUR < length_ms:
            steps.append(Step(start_ms + int(at_h * MS_PER_HOUR), self.most if held else 0))
            at_h += max(0.02, float(dice.exponential(mean_h)))
            held = not held
            mean_h = lengths_h[held]
        return tuple(steps)

    def _reclaims(
        self, belief: Forecast, dice: np.random.Generator, start_ms: int, length_ms: int
    ) -> tuple[Reclaim, ...]:
        count = int(dice.poisson(max(0.0, belief.events_per_h) * length_ms / MS_PER_HOUR))
        size = max(1, round(belief.event_share * self.most))
        moments = np.sort(dice.integers(0, length_ms, count))
        return tuple(Reclaim(start_ms + int(at), size) for at in moments)


def _spells_h(belief: Forecast) -> dict[bool, float]:
    """Return the mean length of a window (True) and of a drought (False), hours."""
    odds = min(max(belief.launch_odds, 0.05), 0.95)
    other = odds / (1 - odds) if belief.in_drought else (1 - odds) / odds
    mean = {not belief.in_drought: belief.window_h, belief.in_drought: belief.window_h * other}
    for held, hazard in ((True, belief.window), (False, belief.drought)):
        if hazard is not None:
            mean[held] = mean_life_h(hazard, 0.0, 240.0)
    return mean
