"""Replays of single-gang deadline jobs, tick by tick, through the Policy port (theory, D.5)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from _spotbench_data import TICK_S, PoolRecord, TraceSet
from surefoot.core.decide import Observation, Policy
from surefoot.core.event import State
from surefoot.core.fleet import CheckpointCost, Fleet, FleetCost, Instance, InstanceState, Progress
from surefoot.core.forecast import get_forecaster
from surefoot.core.forecast.port import Beliefs, Forecast, Hazard
from surefoot.core.forecast.spells import WithSpells
from surefoot.core.job import Job, Limits, Throughput, Work
from surefoot.core.market import Capacity, Market, Offering, Pool
from surefoot.core.plan import Drain, Launch, Terminate
from surefoot.core.policy import get_policy
from surefoot.core.policy.offline import gang_optimum
from surefoot.core.trace import History

TICK_MS = TICK_S * 1_000
STEP_MS = 60_000
HISTORY_TICKS = 14 * 24 * 3600 // TICK_S


@dataclass(frozen=True)
class Cell:
    """One job: hours of work, deadline over work, minutes that a switch costs."""

    slack: float
    switch_min: int
    work_h: float = 24.0

    @property
    def ticks(self) -> int:
        return round(self.work_h * self.slack * 3600 / TICK_S)


@dataclass(frozen=True)
class Run:
    """What one replay came to."""

    cost: float
    """USD."""
    late_steps: int
    switches: int
    spot_h: float
    safe_h: float


@dataclass
class Past:
    """What a forecaster has learnt by the start of a replay; copies itself for each replay."""

    records: tuple[PoolRecord, ...]
    up: dict[Pool, np.ndarray]
    start: int

    def history(self) -> History:
        """Return the record up to the start: a try at every change, and once an hour."""
        history = History()
        for pool, up in sorted(self.up.items()):
            low = max(0, self.start - HISTORY_TICKS)
            known = up[low : min(self.start, len(up))]
            changes = np.flatnonzero(np.diff(known)) + 1
            for begin, end in zip(np.r_[0, changes], np.r_[changes, len(known)], strict=True):
                feed(history, pool, bool(known[begin]), int(begin) + low)
                for beat in range(int(begin) + 12, int(end), 12):
                    feed(history, pool, bool(known[begin]), beat + low)
        history.now_ms = self.start * TICK_MS
        return history


def feed(history: History, pool: Pool, up: bool, tick: int) -> None:
    """Record one probe of the whole gang: it could be had, or not."""
    at = tick * TICK_MS
    history.tried(pool, at_ms=at, asked=1, granted=int(up))


def job_of(record: PoolRecord, cell: Cell, start: int) -> Job:
    """Return the deadline job: one gang as one VM of the pool, one step a minute."""
    return Job(
        name="gang",
        num_nodes=1,
        pools=(record.pool,),
        throughput=Throughput(0.0, 1.0),
        limits=Limits(deadline_ms=(start + cell.ticks) * TICK_MS),
        work=Work(total_steps=int(cell.work_h * 60), step_ms=STEP_MS),
    )


@dataclass
class Gang:
    """The state of a replay between ticks."""

    mode: Capacity | None = None
    overhead_s: float = 0.0
    left_s: float = 0.0
    cost: float = 0.0
    switches: int = 0
    spot_h: float = 0.0
    safe_h: float = 0.0
    born: int = 0


def replay(
    policy: Policy,
    record: PoolRecord,
    up: np.ndarray,
    cell: Cell,
    start: int,
    beliefs: Beliefs | None,
    history: History | None,
) -> Run:
    """Replay one policy from `start`; forecasts are made only if `beliefs` are given."""
    job, gang = job_of(record, cell, start), Gang(left_s=cell.work_h * 3600)
    costs = FleetCost(boot_ms=0, reform_ms=cell.switch_min * 60_000, detect_ms=0)
    state = State(run="r", fleet_cost=costs, save_cost=CheckpointCost(0, 0, 0))
    for tick in range(start, start + cell.ticks):
        now, is_up = tick * TICK_MS, bool(up[tick])
        if gang.mode is Capacity.SPOT and not is_up:
            gang.mode = None
        forecast: Mapping[Pool, Forecast] = {}
        if beliefs is not None and history is not None:
            feed(history, record.pool, is_up, tick)
            beliefs = beliefs.update(history, now_ms=now)
            forecast = {record.pool: beliefs.predict(record.pool, now_ms=now)}
        end, finished = now + TICK_MS, False
        while now < end and not finished:
            state, again = _decide(
                policy, job, state, record, gang, now, is_up=is_up, forecast=forecast
            )
            until = min(end, max(again or end, now + 1_000))
            finished = _advance(gang, record, (until - now) / 1_000)
            now = until
        if finished:
            break
    late = max(0, round(gang.left_s / 60))
    return Run(gang.cost, late, gang.switches, gang.spot_h, gang.safe_h)


def _decide(
    policy: Policy,
    job: Job,
    state: State,
    record: PoolRecord,
    gang: Gang,
    now: int,
    *,
    is_up: bool,
    forecast: Mapping[Pool, Forecast],
) -> tuple[State, int | None]:
    """Ask the policy until it wants nothing more, and change what the gang runs on."""
    done = round(job.work.total_steps - gang.left_s / 60 - 1e-6)
    spot = Offering(record.pool, Capacity.SPOT, round(record.spot_usd * 1e6), available=int(is_up))
    safe = Offering(record.pool, Capacity.ON_DEMAND, round(record.on_demand_usd * 1e6))
    market = Market(now, (spot, safe))
    vms = {} if gang.mode is None else {gang.mode.value: _vm(record.pool, gang.mode, gang.born)}
    for _ in range(4):
        state = replace(
            state, now_ms=now, market=market, fleet=Fleet(vms), progress=Progress(steps_done=done)
        )
        seen = Observation(now, state, 0, {} if is_up else {record.pool: now + TICK_MS})
        plan = policy.decide(job, seen, forecast)
        state = replace(state, memory=plan.memory)
        if not plan.actions:
            break
        vms = dict(vms)
        for action in plan.actions:
            match action:
                case Launch() if action.capacity is Capacity.ON_DEMAND or is_up:
                    vms[action.capacity.value] = _vm(record.pool, action.capacity, now)
                case Drain() | Terminate():
                    vms.pop(action.token, None)
    mode = next((vm.capacity for vm in vms.values() if vm.capacity is not gang.mode), None)
    if mode is None and gang.mode is not None and gang.mode.value in vms:
        mode = gang.mode
    if mode is not gang.mode and mode is not None:
        gang.overhead_s = state.fleet_cost.reform_ms / 1_000
        gang.switches += 1
        gang.born = now
    gang.mode = mode
    return state, plan.revisit_at_ms


def _vm(pool: Pool, capacity: Capacity, since: int) -> Instance:
    return Instance(
        capacity.value,
        pool,
        capacity,
        InstanceState.READY,
        since,
        launched_ms=since,
        ready_ms=since,
    )


def _advance(gang: Gang, record: PoolRecord, span_s: float) -> bool:
    """Let some time pass; return whether the work is done."""
    if gang.mode is None:
        return False
    used = min(gang.overhead_s, span_s)
    gain = span_s - used
    spent = span_s if gang.left_s > gain or gain <= 0 else used + gang.left_s
    gang.overhead_s -= used
    gang.left_s = max(0.0, gang.left_s - gain)
    on_spot = gang.mode is Capacity.SPOT
    gang.cost += spent / 3600 * (record.spot_usd if on_spot else record.on_demand_usd)
    gang.spot_h += spent / 3600 * on_spot
    gang.safe_h += spent / 3600 * (not on_spot)
    return gang.left_s <= 1e-6


def forecaster(name: str = "mixture") -> WithSpells:
    """Return the product's model with spells, as the cells use it."""
    model = get_forecaster(name)
    return model if isinstance(model, WithSpells) else WithSpells(model)


def availability(record: PoolRecord, traces: TraceSet) -> np.ndarray:
    """Return whether the whole gang could be held, by tick."""
    return record.counts >= min(traces.gang, record.most)


@dataclass(frozen=True)
class Known:
    """Beliefs whose rates of windows and droughts are those of the scored part itself.

    Not a forecast but a bound: a policy that knows the statistics of the future and nothing
    more. Spell ages come from the beliefs underneath.
    """

    base: Beliefs
    window: Hazard
    drought: Hazard

    def update(self, history: History, *, now_ms: int) -> Known:
        return replace(self, base=self.base.update(history, now_ms=now_ms))

    def predict(self, pool: Pool, *, now_ms: int) -> Forecast:
        told = self.base.predict(pool, now_ms=now_ms)
        return replace(told, window=self.window, drought=self.drought)

    def to_dict(self) -> Mapping[str, object]:
        return self.base.to_dict()


def known(base: Beliefs, record: PoolRecord, up: np.ndarray, begin: int) -> Known:
    """Return `base` with the true rates of everything from `begin` to the end of the trace."""
    history = History()
    for tick in range(begin, len(up)):
        feed(history, record.pool, bool(up[tick]), tick)
    model = replace(forecaster("gamma_poisson"), half_life_h=1e9, sibling_weight=0.0)
    told = model.fit(history, now_ms=len(up) * TICK_MS).predict(record.pool, now_ms=0)
    assert told.window is not None and told.drought is not None
    return Known(base, told.window, told.drought)


@dataclass(frozen=True)
class CellRow:
    """One cell: cost over the offline optimum, mean over traces and starts, by policy."""

    traces: str
    slack: float
    switch_min: int
    runs: int
    mean: Mapping[str, float]
    worst: Mapping[str, float]
    pooled: Mapping[str, float]
    """Sum of costs over sum of optima."""
    late: Mapping[str, int]
    """Runs that missed a deadline that the optimum keeps."""
    cost: Mapping[str, tuple[float, ...]]
    switches: Mapping[str, float]
    optimum_over_on_demand: float


def run_cell(
    traces: TraceSet,
    cell: Cell,
    *,
    starts: int,
    policies: Sequence[str],
    bound: bool = False,
    most: int = 99,
) -> CellRow | None:
    """Replay every policy from evenly spaced starts in the last 60 % of each trace.

    The model learns from the 14 days before the start only; `bound` replaces its rates by those
    of the scored part.
    """
    ups = {r.pool: availability(r, traces) for r in traces.records}
    costs: dict[str, list[float]] = {p: [] for p in policies}
    late, switches = dict.fromkeys(policies, 0), dict.fromkeys(policies, 0)
    optima: list[float] = []
    safe: list[float] = []
    for record in traces.records[:most]:
        up = ups[record.pool]
        first, last = int(len(up) * 0.4), len(up) - cell.ticks - 1
        if last <= first:
            continue
        for start in np.linspace(first, last, starts).astype(int):
            best = _optimum(record, up[start : start + cell.ticks], cell)
            if not np.isfinite(best):
                continue
            optima.append(best)
            safe.append(best / (cell.work_h * record.on_demand_usd))
            for policy in policies:
                run = _one(policy, traces, record, ups, cell, int(start), bound=bound)
                costs[policy].append(run.cost)
                late[policy] += run.late_steps > 0
                switches[policy] += run.switches
    if not optima:
        return None
    ratio = {p: np.array(costs[p]) / np.array(optima) for p in policies}
    return CellRow(
        traces.name,
        cell.slack,
        cell.switch_min,
        len(optima),
        {p: float(ratio[p].mean()) for p in policies},
        {p: float(ratio[p].max()) for p in policies},
        {p: float(np.sum(costs[p]) / np.sum(optima)) for p in policies},
        late,
        {p: tuple(costs[p]) for p in policies},
        {p: switches[p] / len(optima) for p in policies},
        float(np.mean(safe)),
    )


def _one(
    policy: str,
    traces: TraceSet,
    record: PoolRecord,
    ups: dict[Pool, np.ndarray],
    cell: Cell,
    start: int,
    *,
    bound: bool,
) -> Run:
    up, rule = ups[record.pool], get_policy(policy)
    if policy not in FORECASTING:
        return replay(rule, record, up, cell, start, None, None)
    history = _past(traces, ups, start)
    beliefs: Beliefs = forecaster("gamma_poisson").fit(history, now_ms=start * TICK_MS)
    if bound:
        beliefs = known(beliefs, record, up, int(len(up) * 0.4))
    return replay(rule, record, up, cell, start, beliefs, history)


FORECASTING = ("hybrid",)
"""Policies whose decisions on a gang depend on forecasts."""

_kept: dict[tuple[str, int], History] = {}


def _past(traces: TraceSet, ups: dict[Pool, np.ndarray], start: int) -> History:
    """Return a fresh copy of the history before `start`; made once for all cells."""
    key = (traces.name, start)
    if key not in _kept:
        _kept[key] = Past(traces.records, ups, start).history()
    return copy.deepcopy(_kept[key])


def _optimum(record: PoolRecord, up: np.ndarray, cell: Cell) -> float:
    split = 5 if cell.switch_min * 60 < TICK_S else 1
    tick_h = TICK_S / 3600
    return gang_optimum(
        up,
        units=round(cell.work_h / tick_h * split),
        units_per_tick=split,
        switch_units=round(cell.switch_min * 60 / TICK_S * split),
        spot=record.spot_usd * tick_h,
        safe=record.on_demand_usd * tick_h,
    ).cost
