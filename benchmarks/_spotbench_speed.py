"""How long one decision takes: 24 pools, a day ahead."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from surefoot.core.decide import Observation
from surefoot.core.event import State
from surefoot.core.fleet import Fleet, Instance, InstanceState
from surefoot.core.forecast.port import Forecast, Hazard
from surefoot.core.job import Job, Limits, Throughput, Work
from surefoot.core.market import Capacity, Market, Offering, Pool
from surefoot.core.policy import get_policy
from surefoot.core.policy.gang import Problem, solve

EDGES = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
RATES = np.array([1.3, 1.0, 0.7, 0.45, 0.28, 0.18, 0.1])


def decision_ms(pools: int) -> float:
    """Return the median time of one hybrid decision (a day's work, deadline, floor 8)."""
    where = [Pool("aws", f"r{i % 6}", f"r{i % 6}{i // 6}", "p3.2xlarge") for i in range(pools)]
    job = Job(
        "speed",
        8,
        tuple(where),
        Throughput(8.0, 16.0),
        limits=Limits(deadline_ms=30 * 3_600_000),
        work=Work(86_400, 1_000),
    )
    offers = [Offering(p, Capacity.SPOT, 900_000 + i) for i, p in enumerate(where)]
    offers += [Offering(p, Capacity.ON_DEMAND, 3_060_000) for p in where]
    vms = {f"v{i}": _vm(f"v{i}", where[6 * (i % 4)]) for i in range(7)}
    state = State(now_ms=3_600_000, market=Market(0, tuple(offers)), fleet=Fleet(vms))
    hazard = Hazard(EDGES, RATES)
    known = dict(window=hazard, drought=hazard)
    forecast = {
        p: Forecast(p, 0, hazard, 0.1, 1.0, 0.8, 2.0, False, 12.0, 0.4, 0.6, 9, **known)
        for p in where
    }
    policy, seen = get_policy("hybrid"), Observation(3_600_000, state)
    return _timed(lambda: policy.decide(job, seen, forecast), 15)


def _vm(token: str, pool: Pool) -> Instance:
    ready = InstanceState.READY
    return Instance(token, pool, Capacity.SPOT, ready, 0, launched_ms=0, ready_ms=0)


def gang_table_ms() -> float:
    """Return the median time of a table for a day's horizon in five-minute ticks, from nothing."""
    tick_h = 1 / 12
    odds = tuple(float(x) for x in 1 - np.exp(-RATES * tick_h))
    widths = np.append(np.diff(EDGES), np.inf)
    advance = tuple(float(x) for x in np.minimum(1.0, tick_h / widths))
    problem = Problem(288, 230, 1, 2, 0.08, 0.255, odds, odds, advance)
    return _timed(lambda: solve.__wrapped__(problem), 7)


def _timed(call: object, times: int) -> float:
    spans = []
    for _ in range(times):
        begin = time.perf_counter()
        call()  # type: ignore[operator]
        spans.append((time.perf_counter() - begin) * 1_000)
    return median(spans)
