"""A small world for tests of the controller: one or two pools, a plain policy, a fake clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surefoot.controller import Controller, Settings, Store
from surefoot.core.decide import Observation
from surefoot.core.event import Event, StepsDone
from surefoot.core.fleet import STAYING, InstanceState
from surefoot.core.forecast import get_forecaster
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job, Throughput, Work
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Action, Drain, Launch, Plan
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.testing import FakeAgents, FakeClock, FakeProvider, Odds, Pace, drive

HOUR = 3_600_000
MINUTE = 60_000
POOL = Pool("fake", "r1", "a", "gpu")
OTHER = Pool("fake", "r1", "b", "gpu")
START = 1_000_000_000


def pool_trace(
    pool: Pool = POOL,
    *,
    supply: tuple[tuple[int, int | None], ...] = ((0, 8),),
    reclaims: tuple[Reclaim, ...] = (),
    notice_ms: int = 120_000,
    boot_ms: int = 30_000,
) -> PoolTrace:
    """Return a pool at $1 spot and $3 on demand; times relative to START."""
    return PoolTrace(
        pool=pool,
        supply=tuple(Step(START + at, n) for at, n in supply),
        spot=(Step(START, 1_000_000),),
        on_demand=(Step(START, 3_000_000),),
        reclaims=reclaims,
        notice_ms=notice_ms,
        boot_ms=boot_ms,
    )


def trace_of(*pools: PoolTrace) -> Trace:
    """Return a day's trace."""
    return Trace("test", Semantics.SUPPLY, START, START + 24 * HOUR, {p.pool: p for p in pools})


def job_of(**terms: Any) -> Job:
    """Return a job for two VMs."""
    defaults: dict[str, Any] = {
        "name": "test",
        "num_nodes": 2,
        "pools": (POOL,),
        "throughput": Throughput(0, 8),
        "work": Work(total_steps=None, step_ms=1_000),
    }
    return Job(**{**defaults, **terms})


@dataclass(frozen=True, slots=True)
class Plain:
    """Holds `count` VMs: spot, else on-demand until spot is ready again."""

    count: int = 2
    capacity: Capacity = Capacity.SPOT
    fallback: bool = False
    name: str = "plain"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return launches for what lacks, drains for what is too much."""
        fleet = seen.state.fleet
        main = fleet.select(*STAYING, capacity=self.capacity)
        actions: list[Action] = []
        lacking = self.count - len(main)
        for pool in job.pools:
            if lacking > 0 and pool not in seen.launch_failures:
                actions.append(Launch(pool, self.capacity, lacking))
                lacking = 0
        if self.fallback:
            actions += self._stand_ins(job, seen, lacking)
        revisit = min(seen.launch_failures.values(), default=None)
        return Plan(tuple(actions), "plain", revisit_at_ms=revisit)

    def _stand_ins(self, job: Job, seen: Observation, lacking: int) -> list[Action]:
        fleet = seen.state.fleet
        reserve = fleet.select(*STAYING, capacity=Capacity.ON_DEMAND)
        ready = fleet.select(InstanceState.READY, capacity=self.capacity)
        spare = len(reserve) - (self.count - len(ready))
        if spare > 0:
            return [Drain(vm.token) for vm in reserve[:spare]]
        more = lacking - len(reserve)
        return [Launch(job.pools[0], Capacity.ON_DEMAND, more)] if more > 0 else []


@dataclass
class World:
    """Controller, cloud and agents on one clock."""

    trace: Trace
    job: Job = field(default_factory=job_of)
    policy: Any = field(default_factory=Plain)
    settings: Settings = field(default_factory=lambda: Settings(backoff_ms=60_000))
    pace: Pace = field(default_factory=lambda: Pace(num_nodes=2))
    total_steps: int | None = None
    list_lag_ms: int = 0
    odds: Odds | None = None
    where: str | Path = "sqlite://"
    run: str = "r"

    def __post_init__(self) -> None:
        self.clock = FakeClock(START)
        self.provider = FakeProvider(
            self.trace, self.clock, list_lag_ms=self.list_lag_ms, odds=self.odds
        )
        self.agents = FakeAgents(
            self.provider, self.clock, pace=self.pace, total_steps=self.total_steps
        )
        self.store = Store(self.where)
        self.seen: list[Event] = []
        self.controller = self.new_controller("first")

    def new_controller(self, owner: str) -> Controller:
        """Return a controller for this world's run."""
        return Controller(
            self.job,
            self.provider,
            agents=self.agents,
            store=self.store,
            clock=self.clock,
            policy=self.policy,
            forecaster=get_forecaster("gamma_poisson"),
            run=self.run,
            settings=self.settings,
            owner=owner,
            on_event=[self.seen.append],
        )

    def run_for(self, span_ms: int) -> None:
        """Let the world go on for a while (or to the run's end)."""
        until = self.clock.now_ms() + span_ms
        drive(self.controller, self.clock, self.provider, self.agents, until_ms=until)

    def restart(self, owner: str = "first") -> None:
        """Crash the controller and start another."""
        self.controller = self.new_controller(owner)
        self.agents.restarted()

    def of(self, *kinds: type) -> list[Any]:
        """Return the events of some kinds, in order."""
        return [e for e in self.seen if isinstance(e, kinds)]

    def show(self) -> str:
        """Return the story so far, for messages of failed tests."""
        return "\n".join(
            f"{(e.at_ms - START) / 1000:9.1f} {e}"
            for e in self.seen
            if not isinstance(e, StepsDone)
        )
