"""The record of a market: a whole `Trace` to replay, and a `History` that cannot look ahead."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from surefoot.core.market import Pool


class Semantics(Enum):
    """What a supply count in a trace means; the three must not be mixed."""

    PROBE = "probe"
    """Launches that succeeded when tried: says when launches work, not when VMs are lost."""
    VM = "vm"
    """One VM is kept: 1 running, 0 preempted and not yet relaunched."""
    POOL = "pool"
    """A target of n VMs is kept: how many of them run."""
    SUPPLY = "supply"
    """How many VMs can be held; those above it are preempted (our own traces)."""


@dataclass(frozen=True, slots=True)
class Step:
    """A value that holds from `at_ms` until the next step; None is unknown (a gap)."""

    at_ms: int
    value: int | None


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The provider takes `count` VMs of the pool at `at_ms` whatever the supply.

    `notice_ms` None means the pool's usual notice; 0 means silently.
    """

    at_ms: int
    count: int
    notice_ms: int | None = None


class LifeEnd(Enum):
    """How a recorded VM life ended, as far as forecasting cares."""

    PREEMPTED = "preempted"
    CENSORED = "censored"
    """Still running, or ended by us or by a failure: no preemption up to here."""


@dataclass(frozen=True, slots=True)
class Life:
    """One spot VM's life in a pool. `end_ms` None: still running.

    `first_seen_ms` is later than `born_ms` for a VM that was adopted (late entry).
    """

    key: str
    born_ms: int
    end_ms: int | None
    end: LifeEnd = LifeEnd.CENSORED
    first_seen_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchTry:
    """`granted` of `asked` spot launches succeeded at one moment (a probe counts too).

    `whole`: it asked for all that the pool may hold, so what is held is part of `granted`.
    """

    at_ms: int
    asked: int
    granted: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Signal:
    """A provider's own hint: kind is `interruption_band` (0..4), `placement_score` (1..10),
    `rebalance` (1), `preemption_rate` (losses per VM-hour)."""

    at_ms: int
    kind: str
    value: float


@dataclass(frozen=True, slots=True)
class PoolTrace:
    """One pool's record. Steps are sorted by time, without duplicates.

    `supply`: VMs that can be held. `spot`, `on_demand`: micro-dollars per VM-hour.
    `boot_ms`: launch to ready. `notice_ms`: usual warning before a preemption.
    `lives`, `tries`, `signals`: what was seen VM by VM, where that is known; the lives are then
    facts, where those of a supply are inferred.
    """

    pool: Pool
    supply: tuple[Step, ...]
    spot: tuple[Step, ...]
    on_demand: tuple[Step, ...]
    reclaims: tuple[Reclaim, ...] = ()
    notice_ms: int = 120_000
    boot_ms: int = 60_000
    speed: float = 1.0
    minimum_billing_ms: int = 0
    lives: tuple[Life, ...] = ()
    tries: tuple[LaunchTry, ...] = ()
    signals: tuple[Signal, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A market's whole record over [start_ms, end_ms): what replay and oracle may see."""

    name: str
    semantics: Semantics
    start_ms: int
    end_ms: int
    pools: Mapping[Pool, PoolTrace]

    def __post_init__(self) -> None:
        if self.end_ms <= self.start_ms:
            raise ValueError(f"trace {self.name}: it ends before it starts")
        for record in self.pools.values():
            for steps in (record.supply, record.spot, record.on_demand):
                _check_sorted(self.name, record.pool, steps)


def _check_sorted(name: str, pool: Pool, steps: tuple[Step, ...]) -> None:
    for before, after in itertools.pairwise(steps):
        if after.at_ms <= before.at_ms:
            raise ValueError(f"trace {name}, {pool}: steps must rise in time at {after.at_ms}")


def value_at(steps: tuple[Step, ...], at_ms: int) -> int | None:
    """Return the step function's value at an instant; None before its first step or in a gap."""
    index = bisect.bisect_right(steps, at_ms, key=lambda s: s.at_ms) - 1
    return steps[index].value if index >= 0 else None


def next_change_ms(steps: tuple[Step, ...], after_ms: int) -> int | None:
    """Return the first instant strictly later at which the step function has a step."""
    index = bisect.bisect_right(steps, after_ms, key=lambda s: s.at_ms)
    return steps[index].at_ms if index < len(steps) else None


@dataclass(slots=True)
class PoolHistory:
    """What is known of one pool by now. Lists are in order of time of learning."""

    lives: dict[str, Life] = field(default_factory=dict)
    changed: list[tuple[int, str]] = field(default_factory=list)
    """(at_ms, life key) for every birth and end, so that updates can be incremental."""
    launches: list[LaunchTry] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    prices: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """What is known by now, per pool: grown by facts, never holding the future.

    The one mutable value of the core: both shells own one and append to it; forecasters read it.
    Times must not go back by more than the clock's jitter; `now_ms` is the newest fact.
    """

    pools: dict[Pool, PoolHistory] = field(default_factory=dict)
    now_ms: int = 0

    def of(self, pool: Pool) -> PoolHistory:
        """Return the pool's record, creating an empty one for a new pool."""
        return self.pools.setdefault(pool, PoolHistory())

    def born(self, pool: Pool, key: str, *, at_ms: int, first_seen_ms: int | None = None) -> None:
        """Record that a spot VM began its life."""
        record = self.of(pool)
        record.lives[key] = Life(key, at_ms, None, first_seen_ms=first_seen_ms)
        self._learn(record, key, at_ms)

    def ended(self, pool: Pool, key: str, *, at_ms: int, end: LifeEnd) -> None:
        """Record that a spot VM's life ended; unknown keys are ignored."""
        record = self.of(pool)
        life = record.lives.get(key)
        if life is None or life.end_ms is not None:
            return
        record.lives[key] = Life(key, life.born_ms, at_ms, end, life.first_seen_ms)
        self._learn(record, key, at_ms)

    def tried(
        self, pool: Pool, *, at_ms: int, asked: int, granted: int, whole: bool = False
    ) -> None:
        """Record the outcome of spot launches, or of a probe (`whole`: of all that it holds)."""
        self.of(pool).launches.append(LaunchTry(at_ms, asked, granted, whole))
        self.now_ms = max(self.now_ms, at_ms)

    def priced(self, pool: Pool, *, at_ms: int, micro_usd_h: int) -> None:
        """Record a spot price, if it changed."""
        prices = self.of(pool).prices
        if not prices or prices[-1].value != micro_usd_h:
            prices.append(Step(at_ms, micro_usd_h))
        self.now_ms = max(self.now_ms, at_ms)

    def signalled(self, pool: Pool, *, at_ms: int, kind: str, value: float) -> None:
        """Record a provider's hint."""
        self.of(pool).signals.append(Signal(at_ms, kind, value))
        self.now_ms = max(self.now_ms, at_ms)

    def _learn(self, record: PoolHistory, key: str, at_ms: int) -> None:
        record.changed.append((at_ms, key))
        self.now_ms = max(self.now_ms, at_ms)
