"""Made-up markets with the habits of real ones, from a seed: the default trace set.

Calibrated to the public records (V100 and H100 launch probes and held pools, 2022-2025): windows
whose hazard falls about tenfold with age, losses that take much or all of a pool, regions whose
zones go short together, droughts of hours, spot at about 0.3 of the on-demand price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from surefoot.core.market import Pool
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.core.units import MS_PER_HOUR, micro_usd

TICK_MS = 300_000


@dataclass(frozen=True, slots=True)
class Habits:
    """The knobs of a synthetic market; times in hours."""

    days: float = 14.0
    regions: Sequence[str] = ("us-east-1", "us-west-2", "eu-west-1")
    zones: Sequence[str] = ("a", "b", "c")
    instance_type: str = "p3.2xlarge"
    on_demand_usd: float = 3.06
    spot_share: float = 0.3
    most: int = 16
    """VMs that a pool holds when supply is full."""
    window_h: float = 5.5
    drought_h: float = 1.8
    window_shape: float = 0.42
    """Weibull shapes below 1: what has lasted goes on lasting."""
    drought_shape: float = 0.6
    quality_spread: float = 0.6
    """Log-normal spread of window length between pools."""
    whole: float = 0.5
    """Odds that a loss takes the whole pool."""
    squeeze_h: float = 10.0
    """Mean time between shortages of a whole region."""
    notice_ms: int = 120_000
    boot_ms: int = 90_000


NAMED: dict[str, Habits] = {
    "v100-mixed": Habits(),
    "h100-scarce": Habits(
        instance_type="p5.48xlarge",
        on_demand_usd=55.04,
        spot_share=0.5,
        window_h=2.5,
        drought_h=4.0,
    ),
    "calm": Habits(window_h=20.0, drought_h=0.6, whole=0.2, squeeze_h=20.0),
    "stormy": Habits(window_h=1.0, drought_h=0.7, whole=0.4, squeeze_h=6.0),
}
"""The default trace set, by name."""


def synthesise(name: str, seed: int, habits: Habits | None = None) -> Trace:
    """Return a market. The same name, seed and habits give the same trace.

    Raises KeyError for an unknown name without habits.
    """
    habits = habits or NAMED[name]
    random = np.random.default_rng(seed)
    end_ms = int(habits.days * 24) * MS_PER_HOUR
    pools = {}
    for region in habits.regions:
        squeezes = _squeezes(random, habits, end_ms)
        for zone in habits.zones:
            pool = Pool("aws", region, region + zone, habits.instance_type)
            pools[pool] = _pool(random, habits, pool, squeezes, end_ms)
    return Trace(f"synthetic-{name}-{seed}", Semantics.SUPPLY, 0, end_ms, pools)


def _squeezes(random: Generator, habits: Habits, end_ms: int) -> list[tuple[int, int]]:
    """Return the spans (ms) in which the whole region is short."""
    spans, at_h = [], random.exponential(habits.squeeze_h)
    while at_h * MS_PER_HOUR < end_ms:
        length = 1.5 * habits.drought_h * random.weibull(habits.drought_shape + 0.2) + 0.3
        spans.append((int(at_h * MS_PER_HOUR), int((at_h + length) * MS_PER_HOUR)))
        at_h += length + random.exponential(habits.squeeze_h)
    return spans


def _pool(
    random: Generator, habits: Habits, pool: Pool, squeezes: list[tuple[int, int]], end_ms: int
) -> PoolTrace:
    quality = float(np.exp(random.normal(0.0, habits.quality_spread)))
    ticks = end_ms // TICK_MS
    supply = np.zeros(ticks, dtype=int)
    at, level = 0, int(random.integers(0, 2)) * habits.most
    while at < ticks:
        mean_h = habits.window_h * quality if level else habits.drought_h / quality**0.5
        shape = habits.window_shape if level else habits.drought_shape
        scale = mean_h / _gamma_mean(shape)
        length = max(1, round(scale * random.weibull(shape) * MS_PER_HOUR / TICK_MS))
        supply[at : at + length] = level
        at += length
        level = _next_level(random, habits, level)
    for begin, stop in squeezes:
        # Most, not all, zones of a region feel its shortage.
        if random.random() < 0.85:
            keep = 0 if random.random() < habits.whole else habits.most // 3
            where = slice(begin // TICK_MS, max(stop // TICK_MS, begin // TICK_MS + 1))
            supply[where] = np.minimum(supply[where], keep)
    return PoolTrace(
        pool,
        _steps(supply),
        _prices(random, habits, end_ms),
        (Step(0, micro_usd(habits.on_demand_usd)),),
        notice_ms=habits.notice_ms,
        boot_ms=habits.boot_ms,
    )


def _next_level(random: Generator, habits: Habits, level: int) -> int:
    """Return the supply after a change: a fall, or a rise that mostly reaches full supply."""
    if level == habits.most or (level and random.random() < 0.4):
        whole = random.random() < habits.whole
        return 0 if whole else int(random.integers(1, max(level, 2)))
    return habits.most if random.random() < 0.7 else int(random.integers(level, habits.most)) + 1


def _gamma_mean(shape: float) -> float:
    """Return the mean of a standard Weibull: Gamma(1 + 1/shape), by its integral."""
    x = np.linspace(0.0005, 0.9995, 4000)
    return float(np.mean((-np.log(x)) ** (1.0 / shape)))


def _steps(supply: np.ndarray) -> tuple[Step, ...]:
    change = np.flatnonzero(np.diff(supply, prepend=supply[0] - 1))
    return tuple(Step(int(i) * TICK_MS, int(supply[i])) for i in change)


def _prices(random: Generator, habits: Habits, end_ms: int) -> tuple[Step, ...]:
    """Return spot prices that drift slowly, about once a day, as they have since 2017."""
    base = habits.on_demand_usd * habits.spot_share
    log_price = np.log(base) + random.normal(0.0, 0.1)
    steps, at_ms = [], 0
    while at_ms < end_ms:
        steps.append(Step(at_ms, micro_usd(float(np.exp(log_price)))))
        log_price += 0.1 * (np.log(base) - log_price) + random.normal(0.0, 0.03)
        at_ms += max(TICK_MS, int(random.exponential(20.0) * MS_PER_HOUR))
    return tuple(steps)
