"""Policies side by side on the same markets: each run judged, then summed up by policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from statistics import fmean
from typing import Any

from surefoot.core.job import Job
from surefoot.core.policy.oracle import Oracle
from surefoot.core.replay import Replay
from surefoot.core.trace import Trace
from surefoot.sim import simulate
from surefoot.sim.sweep import Point, row_of

Row = Mapping[str, Any]

ORACLE = "oracle"
"""The name here of the policy that may look ahead: the offline optimum."""


def judged(point: Point, replay: Replay) -> Row:
    """Run one point; return its sweep row with the figures that a comparison adds.

    `worth`: mean training speed in VMs' worth, from kept steps. `usd_per_kstep`: cost of 1,000
    kept steps. `over_on_demand`: bill over that of the asked size on demand for the same work.
    `switches`: between spot and on-demand.
    """
    job = started(point)
    outcome = simulate(
        job,
        replay,
        policy=_oracle(replay.trace) if point.policy == ORACLE else point.policy,
        model=point.model,
        seed=point.seed,
        start_ms=point.start_ms,
        horizon_ms=point.horizon_ms,
    )
    return {"market": point.trace, **with_ratios(row_of(point, outcome), job)}


def _oracle(trace: Trace) -> Oracle:
    """Return the policy that knows the trace, on a grid fine enough for short ones."""
    span_ms = trace.end_ms - trace.start_ms
    return Oracle(trace, tick_ms=max(1_000, min(300_000, span_ms // 500)))


def started(point: Point) -> Job:
    """Return the point's job with its deadline as an instant."""
    limits = point.job.limits
    if limits.deadline_ms is None:
        return point.job
    limits = replace(limits, deadline_ms=point.start_ms + limits.deadline_ms)
    return replace(point.job, limits=limits)


def with_ratios(row: Row, job: Job) -> dict[str, Any]:
    """Return a sweep's row with throughput, cost per work and ratio to on-demand."""
    steps, wall_s = row["steps"], row["wall_s"]
    same_work = row["on_demand_usd_same_work"]
    done_s = steps * job.work.step_ms / 1000 * job.num_nodes
    return {
        **row,
        "worth": done_s / wall_s if wall_s else None,
        "usd_per_kstep": 1000 * row["bill_usd"] / steps if steps else None,
        "over_on_demand": row["bill_usd"] / same_work if same_work else None,
        "switches": row["on_demand_fallbacks"] + row["returns_to_spot"],
    }


def compare(
    points: Sequence[Point],
    traces: Mapping[str, Trace],
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Return the judged row of every point, in their order, whatever the number of workers."""
    rows: dict[int, Row] = {}
    for index, row in _run(points, traces, workers):
        rows[index] = row
        if progress is not None:
            progress(len(rows), len(points))
    return [rows[index] for index in range(len(points))]


def _run(
    points: Sequence[Point], traces: Mapping[str, Trace], workers: int
) -> Iterator[tuple[int, Row]]:
    if min(workers, len(points)) <= 1:
        replays = {name: Replay(trace) for name, trace in traces.items()}
        for index, point in enumerate(points):
            yield index, judged(point, replays[point.trace])
        return
    with ProcessPoolExecutor(workers, initializer=_share, initargs=(traces,)) as pool:
        waiting = {pool.submit(_one, point): index for index, point in enumerate(points)}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


_REPLAYS: dict[str, Replay] = {}


def _share(traces: Mapping[str, Trace]) -> None:
    """Hand the traces to a worker process once, not with every point."""
    _REPLAYS.update({name: Replay(trace) for name, trace in traces.items()})


def _one(point: Point) -> Row:
    return judged(point, _REPLAYS[point.trace])


def by_policy(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one line a policy (and label), cheapest per unit of work first.

    Sums of money and work, means of the rest over runs; counts of runs that ended, were late or
    broke the floor.
    """
    keys = dict.fromkeys((row["policy"], row.get("label", "")) for row in rows)
    lines = []
    for policy, label in keys:
        mine = [r for r in rows if (r["policy"], r.get("label", "")) == (policy, label)]
        lines.append({"policy": policy, "label": label, **_summed(mine)})
    return sorted(lines, key=lambda line: (line["usd_per_kstep"] is None, _cost(line)))


def _cost(line: Mapping[str, Any]) -> tuple[float, str]:
    return (line["usd_per_kstep"] or 0.0, line["policy"])


def _summed(rows: Sequence[Row]) -> dict[str, Any]:
    bill, steps = sum(r["bill_usd"] for r in rows), sum(r["steps"] for r in rows)
    priced = [r for r in rows if r["on_demand_usd_same_work"]]
    on_demand = sum(r["on_demand_usd_same_work"] for r in priced)
    return {
        "runs": len(rows),
        "done": sum(r["result"] == "done" for r in rows),
        "bill_usd": bill / len(rows),
        "usd_per_kstep": 1000 * bill / steps if steps else None,
        "worth": mean_of(rows, "worth"),
        "goodput": mean_of(rows, "goodput"),
        "wall_s": mean_of(rows, "wall_s"),
        "late": sum(bool(r["missed_deadline"]) for r in rows),
        "floor_broken_s": mean_of(rows, "floor_broken_s"),
        "floor_short_s": mean_of(rows, "floor_short_s"),
        "switches": mean_of(rows, "switches"),
        "preemptions": fmean(r["preemptions_notice"] + r["preemptions_silent"] for r in rows),
        "over_on_demand": sum(r["bill_usd"] for r in priced) / on_demand if on_demand else None,
    }


def mean_of(rows: Sequence[Row], key: str) -> float | None:
    """Return the mean of a column over the rows that know it."""
    known = [row[key] for row in rows if row.get(key) is not None]
    return fmean(known) if known else None
