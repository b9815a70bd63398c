"""Elastic jobs with a floor on the multi-VM traces, through the product's simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from _spotbench_data import TICK_S, PoolRecord
from surefoot.core.event import Event, GroupBroken, GroupFormed, InstanceGone, RunEnded
from surefoot.core.forecast.port import Forecaster
from surefoot.core.job import Job, Throughput, Work
from surefoot.core.policy.fill import region_of
from surefoot.core.policy.hybrid import Hybrid
from surefoot.core.policy.offline_elastic import Costs, elastic_optimum
from surefoot.core.policy.terms import curve
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.sim import CostModel, simulate

TICK_MS = TICK_S * 1_000
BOOT_MS, REFORM_MS = 120_000, 10_000
MODEL = CostModel(
    boot_ms=BOOT_MS, reform_ms=REFORM_MS, restore_ms=30_000, persist_ms=20_000, jitter=0.0
)
EGRESS_MICRO_USD = 400_000
"""A 20 GB checkpoint at 0.02 USD/GB between regions."""


@dataclass(frozen=True)
class ElasticCase:
    """One job on one multi-VM record."""

    name: str
    records: tuple[PoolRecord, ...]
    floor: int
    ceiling: int
    one_region: bool = True
    scaling: tuple[tuple[float, float], ...] = ()
    shared_gangs: bool = True

    def job(self, policy: str) -> Job:
        pools = tuple(r.pool for r in self.records)
        work = Work(None, 1_000, self.scaling)
        throughput = Throughput(float(self.floor), float(self.ceiling))
        return Job(
            self.name,
            self.floor,
            pools,
            throughput,
            work=work,
            policy=policy,
            one_region=self.one_region,
        )

    def trace(self, *, quick: bool) -> Trace:
        length = min(len(r.counts) for r in self.records)
        length = min(length, 3 * 288) if quick else length
        pools = {r.pool: _pool_trace(r, length) for r in self.records}
        return Trace(self.name, Semantics.SUPPLY, 0, length * TICK_MS, pools)


def _pool_trace(record: PoolRecord, length: int) -> PoolTrace:
    counts = record.counts[:length]
    changes = np.r_[0, np.flatnonzero(np.diff(counts)) + 1]
    return PoolTrace(
        record.pool,
        tuple(Step(int(i) * TICK_MS, int(counts[i])) for i in changes),
        (Step(0, round(record.spot_usd * 1e6)),),
        (Step(0, round(record.on_demand_usd * 1e6)),),
        notice_ms=120_000,
        boot_ms=BOOT_MS,
    )


@dataclass(frozen=True)
class ElasticRow:
    """What one policy came to on one case."""

    case: str
    policy: str
    throughput: float
    """Over an on-demand fleet of the asked size."""
    usd_per_h: float
    usd_per_work: float
    """USD for the work of one VM-hour at the asked size."""
    same_work: float
    """Share saved against on-demand for the same work."""
    same_hours: float
    below_floor_h: float
    violations: int
    """Times below the floor for longer than a boot of replacements takes."""
    changes: int
    moves: int
    over_optimum: float
    """Cost per unit of work over the offline optimum's."""


def run_case(
    case: ElasticCase, policy: str, forecaster: Forecaster | str, *, quick: bool
) -> ElasticRow:
    """Simulate a policy on a case and reduce it to its row."""
    trace, job = case.trace(quick=quick), case.job(policy)
    chosen = replace(Hybrid(), move_micro_usd=EGRESS_MICRO_USD) if policy == "hybrid" else policy
    outcome = simulate(
        job, trace, policy=chosen, forecaster=forecaster, model=MODEL, keep_events=True
    )
    hours = (outcome.end_ms - outcome.start_ms) / 3.6e6
    steps = outcome.summary["steps"]
    work = steps / 3600 * case.floor  # a step is a second of the asked fleet
    moves = _moves(outcome.events)
    bill = outcome.bill.total / 1e6 + moves * EGRESS_MICRO_USD / 1e6
    price = min(r.on_demand_usd for r in case.records)
    below, violations = _below(outcome.events, case.floor, outcome.end_ms)
    changes = sum(isinstance(e, GroupFormed) for e in outcome.events)
    best = optimum(case, quick=quick)
    per_work = bill / work if work else float("inf")
    return ElasticRow(
        case.name,
        policy,
        work / hours / case.floor,
        bill / hours,
        per_work,
        1 - per_work / price,
        1 - bill / hours / case.floor / price,
        below,
        violations,
        changes,
        moves,
        per_work / best[1],
    )


def optimum(case: ElasticCase, *, quick: bool) -> tuple[float, float, float]:
    """Return the offline optimum's (throughput, USD per work, USD per hour)."""
    length = min(len(r.counts) for r in case.records)
    length = min(length, 3 * 288) if quick else length
    groups: dict[object, list[PoolRecord]] = {}
    for record in case.records:
        key = region_of(record.pool) if case.one_region else "all"
        groups.setdefault(key, []).append(record)
    supply = np.stack(
        [
            np.minimum(case.ceiling, sum(r.counts[:length] for r in rows))
            for _, rows in sorted(groups.items(), key=str)
        ]
    )
    tick_h = TICK_S / 3600
    spot = tuple(
        min(r.spot_usd for r in rows) * tick_h for _, rows in sorted(groups.items(), key=str)
    )
    safe = min(r.on_demand_usd for r in case.records) * tick_h
    costs = Costs(spot, safe, BOOT_MS / TICK_MS, REFORM_MS / TICK_MS, EGRESS_MICRO_USD / 1e6)
    best = elastic_optimum(
        supply, floor=case.floor, ceiling=case.ceiling, costs=costs, shape=curve(case.job("x"))
    )
    work = best.work * tick_h
    return work / (length * tick_h) / case.floor, best.cost / work, best.cost / (length * tick_h)


def _moves(events: Sequence[Event]) -> int:
    """Count the group's changes of region (by most members)."""
    where: dict[str, tuple[str, str]] = {}
    last, moves = None, 0
    for event in events:
        pool = getattr(event, "pool", None)
        if pool is not None:
            where[event.token] = region_of(pool)  # type: ignore[union-attr]
        if isinstance(event, GroupFormed) and event.members:
            places = [where[t] for t in event.members]
            most = max(sorted(set(places)), key=places.count)
            moves += last is not None and most != last
            last = most
    return moves


def _below(events: Sequence[Event], floor: int, end_ms: int) -> tuple[float, int]:
    """Return (hours the group was under the floor after its first forming, times that this
    lasted longer than replacements take to boot and join)."""
    grace = BOOT_MS + 3 * REFORM_MS + MODEL.restore_ms + 5_000
    size, since, total, violations, begun = 0, None, 0, 0, False
    members: set[str] = set()
    for event in events:
        at = event.at_ms
        match event:
            case GroupFormed():
                members, begun = set(event.members), True
            case InstanceGone():
                members.discard(event.token)
            case GroupBroken():
                members = members if begun else set()
            case RunEnded():
                at = end_ms
        size = len(members)
        if not begun:
            continue
        if size < floor and since is None:
            since = at
        elif (size >= floor or isinstance(event, RunEnded)) and since is not None:
            total += at - since
            violations += at - since > grace
            since = None
    return total / 3.6e6, violations
