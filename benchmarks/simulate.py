"""How fast the simulator is: a year of many pools, one short job, growth with events, a sweep."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq

from _common import Bars, options, shared_data, table
from surefoot.core.job import Job, Limits, Throughput, Work
from surefoot.core.market import Pool
from surefoot.core.replay import Replay
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.sim import CostModel, simulate
from surefoot.sim.sweep import grid, sweep

DAY_MS = 86_400_000
REFERENCE_S = 2.0
"""What the public research simulator takes for one 48 h job (issue 5), on a like machine."""


def h100(data: Path) -> dict[Pool, list[tuple[int, int]]]:
    """Return the 13 H100 pools of 2025: (ms, VMs of 16 that could be had), every 10 minutes."""
    rows = pq.read_table(
        data / "availability.parquet", filters=[("source", "=", "skynomad-h100-2025")]
    ).to_pydict()
    points: dict[Pool, list[tuple[int, int]]] = defaultdict(list)
    columns = zip(rows["region"], rows["zone"], rows["t_s"], rows["count"], strict=True)
    for region, zone, at, count in columns:
        points[Pool("gcp", region, zone, "a3-highgpu-1g")].append((round(at * 1000), int(count)))
    return {pool: sorted(found) for pool, found in sorted(points.items())}


def tiled(points: dict[Pool, list[tuple[int, int]]], days: float) -> Trace:
    """Return the record repeated until it is `days` long, at the list prices of these VMs."""
    end = round(days * DAY_MS)
    pools = {}
    for pool, found in points.items():
        first, span = found[0][0], found[-1][0] - found[0][0] + 600_000
        steps: list[Step] = []
        for turn in range(end // span + 1):
            for at, count in found:
                when = turn * span + at - first
                if when < end and (not steps or steps[-1].value != count):
                    steps.append(Step(when, count))
        prices = ((Step(0, 2_250_000),), (Step(0, 11_060_000),))
        pools[pool] = PoolTrace(pool, tuple(steps), *prices)
    return Trace(f"h100 x {days:g} d", Semantics.PROBE, 0, end, pools)


def yearly_job(trace: Trace, policy: str, forecaster: str) -> Job:
    """Return a job of 16 VMs over all pools of one region at a time."""
    return Job(
        "year",
        16,
        tuple(trace.pools),
        Throughput(16, 16),
        work=Work(step_ms=10_000),
        policy=policy,
        forecaster=forecaster,
    )


def child(data: Path, policy: str, forecaster: str, days: float) -> dict[str, float]:
    """Run one long simulation in a process of its own; return seconds, events and memory."""
    command = [sys.executable, __file__, "--child", policy, forecaster, str(days), str(data)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_child(policy: str, forecaster: str, days: str, data: str) -> None:
    trace = tiled(h100(Path(data)), float(days))
    job = yearly_job(trace, policy, forecaster)
    began = time.process_time()
    outcome = simulate(job, trace)
    body = {
        "seconds": time.process_time() - began,
        "steps_in_trace": sum(len(p.supply) for p in trace.pools.values()),
        "events": outcome.events_seen,
        "decisions": outcome.decisions_made,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "goodput": outcome.goodput.share,
        "preemptions": outcome.counts.notice + outcome.counts.silent,
    }
    print(json.dumps(body))


def short_job(data: Path, policy: str) -> float:
    """Return CPU seconds of one single-VM job of 48 h with a deadline of 52 h (best of 5)."""
    rows = pq.read_table(
        data / "availability.parquet",
        filters=[("source", "=", "sky-probe-2023-02"), ("zone", "=", "us-west-2b")],
    ).to_pydict()
    pool = Pool("aws", "us-west-2", "us-west-2b", "p3.2xlarge")
    steps: list[Step] = []
    for at, count in sorted(zip(rows["t_s"], rows["count"], strict=True)):
        if not steps or steps[-1].value != count:
            steps.append(Step(round(at * 1000), int(count)))
    end = round(max(rows["t_s"]) * 1000)
    record = PoolTrace(pool, tuple(steps), (Step(0, 970_000),), (Step(0, 3_060_000),))
    replay = Replay(Trace("v100", Semantics.PROBE, 0, end, {pool: record}))
    job = Job(
        "gang",
        1,
        (pool,),
        Throughput(0, 1),
        limits=Limits(deadline_ms=52 * 3_600_000),
        work=Work(total_steps=48 * 3600, step_ms=1_000),
        policy=policy,
        forecaster="gamma_poisson",
    )
    times = []
    for _ in range(5):
        began = time.process_time()
        simulate(job, replay, model=CostModel(jitter=0.0))
        times.append(time.process_time() - began)
    return min(times)


def sweep_speedup(data: Path, *, quick: bool) -> float:
    """Return wall time of a sweep with one worker over that with two."""
    trace = tiled(h100(data), 5 if quick else 15)
    job = yearly_job(trace, "greedy", "gamma_poisson")
    points = grid({"j": job}, {"h": trace}, ["greedy"], seeds=6 if quick else 12)
    walls = []
    for workers in (1, 2):
        began = time.perf_counter()
        sweep(points, {"h": trace}, workers=workers)
        walls.append(time.perf_counter() - began)
    return walls[0] / walls[1]


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_child(*args.child)
        return 0
    data = shared_data()
    bars = Bars("simulate")
    year = 36.5 if args.quick else 365.0
    runs = {
        "hybrid, default forecaster": child(data, "hybrid", "mixture", year),
        "greedy": child(data, "greedy", "gamma_poisson", year),
    }
    scaled = [child(data, "greedy", "gamma_poisson", year * f) for f in (0.01, 0.1)]
    rows = [
        [name, year, r["steps_in_trace"], r["events"], r["decisions"], r["seconds"], r["memory_mb"]]
        for name, r in runs.items()
    ]
    rows += [
        [
            f"greedy x {f}",
            year * f,
            *(r[k] for k in ("steps_in_trace", "events", "decisions")),
            r["seconds"],
            r["memory_mb"],
        ]
        for f, r in zip((0.01, 0.1), scaled, strict=True)
    ]
    table(["run", "days", "trace steps", "events", "decisions", "CPU s", "MB"], rows)
    whole = 365.0 / year
    hybrid, greedy = runs.values()
    bars.at_most("a year with the default policy, CPU s", hybrid["seconds"] * whole, 60)
    bars.at_most("a year with greedy, CPU s", greedy["seconds"] * whole, 5)
    bars.at_most("memory, MB", max(r["memory_mb"] for r in runs.values()), 400)
    per_event = [r["seconds"] / max(1, r["events"]) for r in (*scaled, greedy)]
    bars.at_most("cost of an event, 10x more of them", per_event[1] / per_event[0], 1.5)
    bars.at_most("cost of an event, 100x more of them", per_event[2] / per_event[0], 1.5)
    one = short_job(data, "uniform-progress")
    print(f"\none single-VM job of 48 h under Uniform Progress: {one * 1000:.1f} ms")
    bars.at_least("one 48 h job against the public simulator's 2 s", REFERENCE_S / one, 100)
    bars.at_least("sweep on 2 cores over 1", sweep_speedup(data, quick=args.quick), 1.7)
    bars.rows = {"runs": runs, "scaled": scaled, "one_job_s": one}
    return bars.finish(args.json)


if __name__ == "__main__":
    sys.exit(main())
