"""The policy that may look ahead: it follows the offline optimum of a whole recorded trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from surefoot.core.decide import Observation
from surefoot.core.fleet import STAYING
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Plan
from surefoot.core.policy.economics import economics
from surefoot.core.policy.fill import Region, fill, region_of, worth_of
from surefoot.core.policy.finish import (
    is_gang_with_deadline,
    left_ms_and_work_ms,
    market,
    run_on,
)
from surefoot.core.policy.gang import Mode
from surefoot.core.policy.greedy import surplus
from surefoot.core.policy.guard import leave, overruled
from surefoot.core.policy.offline import gang_optimum
from surefoot.core.policy.offline_elastic import Costs, elastic_optimum
from surefoot.core.policy.terms import (
    allowed,
    curve,
    floor_worth,
    ready,
    revisit_ms,
    soon,
    switch_ms,
    target,
    with_rate,
    worth,
)
from surefoot.core.replay import Replay
from surefoot.core.trace import Trace


@dataclass(frozen=True, eq=False, slots=True)
class Oracle:
    """Follow the optimum of `trace` on a grid of `tick_ms`.

    A gang with a deadline follows D.4d; an elastic job the course with the most value that keeps
    its floor, booting replacements before they are needed. Ceilings of more than a few hundred
    VMs make the elastic table slow. Not registered by name: it needs the trace.
    """

    trace: Trace
    tick_ms: int = 300_000
    name: str = "oracle"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now; forecasts are not used, the future is known."""
        if (end := overruled(job, seen)) is not None:
            return end
        if is_gang_with_deadline(job):
            return self._gang(job, seen)
        return self._elastic(job, seen)

    def _gang(self, job: Job, seen: Observation) -> Plan:
        memory = dict(with_rate(job, seen))
        left_ms, work_ms = left_ms_and_work_ms(job, seen)
        begun = int(memory.setdefault("oracle.begun", float(seen.now_ms)))
        work = memory.setdefault("oracle.work", work_ms)
        end = memory.setdefault("oracle.end", seen.now_ms + left_ms)
        switch = int(memory.setdefault("oracle.switch", float(switch_ms(seen))))
        around = market(job, seen, {})
        course = _gang_course(
            self, job, begun, int(end), round(work), switch, around.spot_price, around.safe_price
        )
        index = (seen.now_ms - begun) // self.tick_ms
        mode = course[min(index, len(course) - 1)] if course else Mode.SAFE
        if mode is Mode.SPOT and not around.open:
            mode = Mode.SAFE if left_ms < work_ms + 2 * switch else Mode.IDLE
        turn = begun + (index + 1) * self.tick_ms
        plan = run_on(job, seen, mode, around, reason=f"oracle: {mode.name.lower()}", memory=memory)
        again = min(turn, plan.revisit_at_ms or turn)
        return Plan(plan.actions, plan.reason, again, memory, plan.target)

    def _elastic(self, job: Job, seen: Observation) -> Plan:
        cheap, dear = (allowed(job, seen, c) for c in (Capacity.SPOT, Capacity.ON_DEMAND))
        regions, sizes, places = _elastic_course(self, job, seen, cheap, dear)
        index = (seen.now_ms - self.trace.start_ms) // self.tick_ms
        ahead = index + 1 + seen.state.fleet_cost.boot_ms // self.tick_ms
        last = len(sizes) - 1
        now, later = min(index, last), min(ahead, last)
        home = regions[places[now]]
        inside = [o for o in cheap if home is None or region_of(o.pool) == home]
        safe = [o for o in dear if home is None or region_of(o.pool) == home]
        mine = [v for v in soon(seen, Capacity.SPOT) if home in (None, region_of(v.pool))]
        reserve = [v for v in soon(seen, Capacity.ON_DEMAND) if home in (None, region_of(v.pool))]
        more = fill(job, seen, inside, worth=float(sizes[now]) - worth(mine))
        coming = min(worth(mine) + worth_of(seen, more), float(sizes[later]))
        floor = floor_worth(job, seen)
        stand_ins = fill(job, seen, safe, worth=floor - coming - worth(reserve), taken=more)
        here = {v.token for v in (*mine, *reserve)}
        steady = worth(v for v in ready(seen, Capacity.SPOT) if v.token in here)
        keep = max(floor - steady, floor - float(sizes[later]))
        leaving = surplus(reserve, keep)
        if steady + worth(v for v in ready(seen, Capacity.ON_DEMAND) if v.token in here) >= floor:
            leaving += [v.token for v in seen.state.fleet.select(*STAYING) if v.token not in here]
        launches = (*more, *stand_ins)
        turn = self.trace.start_ms + (index + 1) * self.tick_ms
        return Plan(
            actions=(*launches, *(leave(seen, token) for token in sorted(leaving))),
            reason=f"oracle: {sizes[now]} spot now, {sizes[later]} after a boot",
            revisit_at_ms=min(turn, revisit_ms(job, seen)),
            memory=with_rate(job, seen),
            target=target(seen, launches, frozenset(leaving)),
        )


@lru_cache(maxsize=8)
def _gang_course(
    oracle: Oracle,
    job: Job,
    begun: int,
    end: int,
    work_ms: int,
    switch: int,
    spot: float,
    safe: float,
) -> tuple[Mode, ...]:
    """Return the optimal modes by tick from `begun`."""
    replay = Replay(oracle.trace)
    ticks = max(0, (end - begun) // oracle.tick_ms)
    split = 1 if switch >= 0.75 * oracle.tick_ms else 5
    unit = oracle.tick_ms / split
    need = max(1, job.num_nodes)
    up = np.array(
        [
            sum(replay.supply(p, begun + t * oracle.tick_ms) or 0 for p in job.pools) >= need
            for t in range(ticks)
        ],
        dtype=np.bool_,
    )
    finite = spot if math.isfinite(spot) else safe
    return gang_optimum(
        up,
        units=math.ceil(work_ms / unit - 1e-6),
        units_per_tick=split,
        switch_units=max(1, round(switch / unit)) if switch else 0,
        spot=finite,
        safe=safe if math.isfinite(safe) else 1e3 * finite,
    ).modes


def _elastic_course(
    oracle: Oracle,
    job: Job,
    seen: Observation,
    cheap: Sequence[Offering],
    dear: Sequence[Offering],
) -> tuple[tuple[Region | None, ...], NDArray[np.int64], NDArray[np.int64]]:
    """Return (regions, spot VMs by tick, index of the region by tick)."""
    sums = economics(job, seen, {}, tuple(dear))
    safe = sums.alternative if sums.alternative is not None else 1e12
    regions: tuple[Region | None, ...] = (
        tuple(sorted({region_of(p) for p in job.pools})) if job.one_region else (None,)
    )
    prices = tuple(
        min(
            (o.price_micro_usd_h / o.speed for o in cheap if r in (None, region_of(o.pool))),
            default=10 * safe,
        )
        for r in regions
    )
    cost = seen.state.fleet_cost
    # prices are rounded so that a tremble does not call for a new table
    rounded = tuple(round(p, -4) for p in (*prices, safe))
    sizes, places = _elastic_table(
        oracle, job, regions, rounded, cost.boot_ms // 5_000, cost.reform_ms // 1_000
    )
    return regions, sizes, places


@lru_cache(maxsize=4)
def _elastic_table(
    oracle: Oracle,
    job: Job,
    regions: tuple[Region | None, ...],
    prices: tuple[float, ...],
    boot_5s: int,
    pause_s: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    trace, tick = oracle.trace, oracle.tick_ms
    replay = Replay(trace)
    ticks = max(1, (trace.end_ms - trace.start_ms) // tick)
    ceiling = math.ceil(max(job.throughput.ceiling, float(job.num_nodes)))
    supply = np.zeros((len(regions), ticks), np.int64)
    for row, region in enumerate(regions):
        for pool in sorted(job.pools):
            if region in (None, region_of(pool)):
                times = [trace.start_ms + t * tick for t in range(ticks)]
                supply[row] += [replay.supply(pool, at) or 0 for at in times]
    tick_h = tick / 3_600_000
    best = elastic_optimum(
        np.minimum(supply, ceiling),
        floor=math.ceil(job.throughput.floor),
        ceiling=ceiling,
        costs=Costs(
            tuple(p * tick_h for p in prices[:-1]),
            prices[-1] * tick_h,
            boot_5s * 5_000 / tick,
            pause_s * 1_000 / tick,
        ),
        shape=curve(job),
    )
    return best.sizes, best.regions
