"""Times the default forecaster: one update of many pools, a fit of long history, its memory."""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from _common import Bars, options, table
from surefoot.core.forecast import DEFAULT, get_forecaster
from surefoot.core.forecast.port import predict_all
from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd, PoolTrace, Semantics, Step, Trace
from surefoot.traces.facts import facts_of, grow

HOUR = 3_600_000


def many_pools(count: int, days: int) -> tuple[History, list[Pool]]:
    """Return a history of `count` pools: a life of hours after another, with tries between."""
    random = np.random.default_rng(3)
    history, pools = History(), []
    for i in range(count):
        pool = Pool("aws", f"region-{i % 20}", f"zone-{i}", "type")
        pools.append(pool)
        at_ms, n = int(random.integers(0, HOUR)), 0
        while at_ms < days * 24 * HOUR:
            end_ms = at_ms + int(random.weibull(0.6) * 4 * HOUR) + 60_000
            history.tried(pool, at_ms=at_ms, asked=1, granted=1)
            history.born(pool, f"{i}-{n}", at_ms=at_ms)
            if end_ms >= days * 24 * HOUR:
                break
            history.ended(pool, f"{i}-{n}", at_ms=end_ms, end=LifeEnd.PREEMPTED)
            history.tried(pool, at_ms=end_ms + 30_000, asked=1, granted=0)
            at_ms, n = end_ms + int(random.exponential(HOUR)) + 60_000, n + 1
    return history, pools


def probes(zones: int, days: int, gap_s: int) -> History:
    """Return 0/1 launch probes of some zones on a grid, as nine zones were probed in 2023."""
    random = np.random.default_rng(4)
    records = {}
    ticks = days * 86_400 // gap_s
    for z in range(zones):
        pool, state, steps = Pool("aws", f"r{z // 3}", f"z{z}", "p3.2xlarge"), 1, []
        for i in range(ticks):
            if random.random() < 0.02:
                state = 1 - state
            if not steps or steps[-1].value != state:
                steps.append(Step(i * gap_s * 1000, state))
        records[pool] = PoolTrace(pool, tuple(steps), (), ())
    trace = Trace("probes", Semantics.PROBE, 0, days * 86_400_000, records)
    history = History()
    grow(history, facts_of(trace, reassert_ms=gap_s * 1000))
    return history


def main() -> int:
    asked = options(__doc__ or "").parse_args()
    count, days = (200, 10) if asked.quick else (1_000, 30)
    model = get_forecaster(DEFAULT)
    bars = Bars("forecast_speed")
    history, pools = many_pools(count, days)
    begun = time.process_time()
    beliefs = model.fit(history, now_ms=days * 24 * HOUR)
    whole_s = time.process_time() - begun
    times = []
    for k in range(12):
        now_ms = days * 24 * HOUR + (k + 1) * 60_000
        for pool in pools[k::20]:
            history.tried(pool, at_ms=now_ms, asked=1, granted=k % 2)
        begun = time.process_time()
        beliefs = beliefs.update(history, now_ms=now_ms)
        predict_all(beliefs, pools, now_ms=now_ms)[pools[0]]
        times.append((time.process_time() - begun) * 1000)
    update_ms = float(np.median(times))
    record = probes(9, 12 if asked.quick else 45, 195)
    begun = time.process_time()
    model.fit(record, now_ms=record.now_ms)
    fit_s = time.process_time() - begun
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = [
        [f"update and forecast of {count} pools, {days} days (median of 12), ms", update_ms],
        [f"the same, slowest, ms (one in 15 minutes rolls the sums {'and learns'})", max(times)],
        [f"fit of {count} pools, {days} days, s", whole_s],
        ["fit of 9 zones of probes every 195 s, s", fit_s],
        ["peak memory of this process, MB", peak_mb],
    ]
    table(["what", "value"], rows)
    bars.rows["times"] = rows
    bars.at_most(f"update and forecast of {count} pools, ms", update_ms, 50 * count / 1_000)
    bars.at_most("fit of 9 zones, s", fit_s, 2.0)
    bars.at_most("peak memory, MB", peak_mb, 300.0)
    return bars.finish(asked.json)


if __name__ == "__main__":
    sys.exit(main())
