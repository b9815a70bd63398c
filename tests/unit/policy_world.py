"""A small market in which a policy is driven by events, for the policy tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from surefoot.core.decide import Observation, Policy
from surefoot.core.event import (
    CostMeasured,
    DrainStarted,
    Event,
    InstanceGone,
    InstanceLaunched,
    InstanceReady,
    InstanceRequested,
    LaunchFailed,
    NoticeReceived,
    OfferingsSeen,
    State,
    apply,
)
from surefoot.core.fleet import Ending, FleetCost, Instance, InstanceState
from surefoot.core.forecast.port import Forecast, constant_hazard
from surefoot.core.job import FloorKind, Job, Limits, Throughput, Work
from surefoot.core.market import Capacity, Market, Offering, Pool
from surefoot.core.plan import Drain, Launch, Plan, Terminate

S = 1_000
H = 3_600_000
USD = 1_000_000
NO_LIMITS = Limits()
OPEN_ENDED = Work()


def pool(zone: str = "a", region: str = "us-west-2", kind: str = "p3.2xlarge") -> Pool:
    return Pool("aws", region, region + zone, kind)


def spot(where: Pool, usd: float, available: int | None = None, speed: float = 1.0) -> Offering:
    return Offering(where, Capacity.SPOT, round(usd * USD), speed=speed, available=available)


def on_demand(where: Pool, usd: float, speed: float = 1.0) -> Offering:
    return Offering(where, Capacity.ON_DEMAND, round(usd * USD), speed=speed)


def job(
    *pools: Pool,
    nodes: int = 8,
    floor: float | None = None,
    ceiling: float | None = None,
    kind: FloorKind = FloorKind.INSTANT,
    limits: Limits = NO_LIMITS,
    work: Work = OPEN_ENDED,
    **terms: object,
) -> Job:
    floor = nodes if floor is None else floor
    throughput = Throughput(floor, floor if ceiling is None else ceiling, kind)
    return Job(
        "test", nodes, tuple(pools or (pool(),)), throughput, limits=limits, work=work, **terms
    )


def forecast(where: Pool, rate: float = 0.1, **fields: object) -> Forecast:
    values: dict[str, object] = dict(
        pool=where,
        at_ms=0,
        hazard=constant_hazard(rate),
        hazard_low=rate / 2,
        hazard_high=rate * 2,
        launch_odds=0.9,
        window_h=1.0,
        in_drought=False,
        holdable=16.0,
        events_per_h=rate,
        event_share=0.7,
        observed_losses=5,
    )
    values.update(fields)
    return Forecast(**values)  # type: ignore[arg-type]


def vm(
    token: str,
    where: Pool,
    capacity: Capacity = Capacity.SPOT,
    state: InstanceState = InstanceState.READY,
    *,
    since_ms: int = 0,
    speed: float = 1.0,
) -> Instance:
    started = state is not InstanceState.REQUESTED
    return Instance(
        token=token,
        pool=where,
        capacity=capacity,
        state=state,
        requested_ms=since_ms,
        launched_ms=since_ms if started else None,
        ready_ms=since_ms if state is InstanceState.READY else None,
        speed=speed,
    )


def seen(
    offerings: tuple[Offering, ...],
    vms: tuple[Instance, ...] = (),
    *,
    now_ms: int = 10 * H,
    spent: int = 0,
    failures: Mapping[Pool, int] | None = None,
    **state: object,
) -> Observation:
    from surefoot.core.fleet import Fleet

    fleet = Fleet({v.token: v for v in vms})
    base = State(run="r", now_ms=now_ms, market=Market(now_ms, offerings), fleet=fleet, **state)
    return Observation(now_ms, base, spent, failures or {})


def asked(plan: Plan, capacity: Capacity) -> int:
    return sum(a.count for a in plan.actions if isinstance(a, Launch) and a.capacity is capacity)


def let_go(plan: Plan) -> set[str]:
    return {a.token for a in plan.actions if isinstance(a, Drain | Terminate)}


@dataclass
class World:
    """Replays supply(pool, t_ms) against a policy; grants, boots, preempts, bills."""

    job: Job
    policy: Policy
    supply: Callable[[Pool, int], int]
    prices: Callable[[int], tuple[Offering, ...]]
    rate: float = 0.1
    boot_ms: int = 60 * S
    notice_ms: int = 0
    aside_ms: int = 60 * S
    state: State = State()
    now_ms: int = 0
    spent: float = 0.0
    failures: dict[Pool, int] = field(default_factory=dict)
    log: list[tuple[int, int, int, Plan]] = field(default_factory=list)
    """(instant, ready spot, ready on-demand, plan)"""
    _count: int = 0

    def run(self, until_ms: int, *, tick_ms: int = S) -> World:
        self._see(CostMeasured(0, "boot_ms", self.boot_ms))
        costs = FleetCost(boot_ms=self.boot_ms, reform_ms=500, detect_ms=1_000)
        object.__setattr__(self.state, "fleet_cost", costs)
        revisit = 0
        while self.now_ms < until_ms:
            changed = self._world()
            if changed or self.now_ms >= revisit:
                revisit = self._decide()
            self.spent += sum(
                o.price_micro_usd_h * tick_ms / H
                for i in self.state.fleet
                if i.state is not InstanceState.REQUESTED
                and (o := self.state.market.get(i.pool, i.capacity))
            )
            self.now_ms += tick_ms
        return self

    def ready(self, capacity: Capacity) -> int:
        return len(self.state.fleet.select(InstanceState.READY, capacity=capacity))

    def _see(self, event: Event) -> None:
        self.state = apply(self.state, event)

    def _world(self) -> bool:
        before, now = self.state, self.now_ms
        offers = self.prices(now)
        if any(self.state.market.get(o.pool, o.capacity) != o for o in offers):
            self._see(OfferingsSeen(now, offers))
        for i in tuple(self.state.fleet.select(InstanceState.STARTING)):
            if now >= (i.launched_ms or 0) + self.boot_ms:
                self._see(InstanceReady(now, i.token))
        for i in tuple(self.state.fleet.select(InstanceState.DRAINING)):
            self._see(InstanceGone(now, i.token, Ending.RELEASED))
        for where in self.job.pools:
            held = self.state.fleet.select(capacity=Capacity.SPOT, pool=where)
            held = tuple(sorted(held, key=lambda i: i.requested_ms))
            for i in held[self.supply(where, now + self.notice_ms) :]:
                if i.notice_deadline_ms is None and self.notice_ms:
                    self._see(NoticeReceived(now, i.token, now + self.notice_ms))
            for i in held[self.supply(where, now) :]:
                end = Ending.PREEMPTED_NOTICE if self.notice_ms else Ending.PREEMPTED_SILENT
                self._see(InstanceGone(now, i.token, end))
        return self.state is not before

    def _decide(self) -> int:
        spent = round(self.spent)
        look = Observation(self.now_ms, self.state, spent, dict(self.failures))
        plan = self.policy.decide(
            self.job, look, {p: forecast(p, self.rate) for p in self.job.pools}
        )
        object.__setattr__(self.state, "memory", plan.memory)
        self.log.append(
            (self.now_ms, self.ready(Capacity.SPOT), self.ready(Capacity.ON_DEMAND), plan)
        )
        again = False
        for action in plan.actions:
            match action:
                case Launch():
                    again |= not all([self._launch(action) for _ in range(action.count)])
                case Drain():
                    self._see(DrainStarted(self.now_ms, action.token))
                case Terminate():
                    self._see(InstanceGone(self.now_ms, action.token, Ending.RELEASED))
        return self.now_ms if again else plan.revisit_at_ms or self.now_ms + H

    def _launch(self, action: Launch) -> bool:
        self._count += 1
        token = f"vm{self._count:05d}"
        held = len(self.state.fleet.select(capacity=Capacity.SPOT, pool=action.pool))
        self._see(InstanceRequested(self.now_ms, token, action.pool, action.capacity))
        if action.capacity is Capacity.SPOT and held >= self.supply(action.pool, self.now_ms):
            self._see(LaunchFailed(self.now_ms, token, "CapacityError"))
            self.failures[action.pool] = self.now_ms + self.aside_ms
            return False
        self._see(InstanceLaunched(self.now_ms, token, "i-" + token))
        return True
