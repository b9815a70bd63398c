"""Many simulated runs at once: policies by traces by starts by seeds, in parallel, resumable."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from surefoot.core.job import Job
from surefoot.core.replay import Replay
from surefoot.core.trace import Trace
from surefoot.errors import ConfigError
from surefoot.sim import simulate
from surefoot.sim.model import CostModel
from surefoot.sim.outcome import Outcome

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep. `trace` names one of the sweep's traces; `label` is for tables.

    A deadline or budget of the job counts from `start_ms`: the job's `deadline_ms` is taken as
    a duration here, so that one job can be started at many instants.
    """

    job: Job
    trace: str
    policy: str
    start_ms: int
    horizon_ms: int | None = None
    seed: int = 0
    model: CostModel = field(default_factory=CostModel)
    label: str = ""

    @property
    def key(self) -> str:
        """A name that equal points share and others do not."""
        text = repr(replace(self, job=_plain(self.job)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(job: Job) -> Job:
    """Return the job with its unordered parts put in order, so that its text is stable."""
    return replace(
        job,
        pools=tuple(sorted(job.pools)),
        capacities=tuple(sorted(job.capacities, key=lambda c: c.value)),  # type: ignore[arg-type]
    )


def sweep(
    points: Sequence[Point],
    traces: Mapping[str, Trace],
    *,
    workers: int = 1,
    out: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    engine: str = "processes",
) -> list[Row]:
    """Return one row a point, in the order of `points`, whatever the number of workers.

    With `out` (a folder) every finished run is kept there at once, and a later sweep skips the
    points that it finds; `results.parquet` in it holds all rows in the end. `progress` is told
    (done, all). `engine` is `processes` (of this machine), or `ray`: the machines of the Ray
    cluster that RAY_ADDRESS names, else this one. Raises KeyError for a trace that is not given,
    ConfigError for an engine that does not exist or is not installed.
    """
    if engine not in ENGINES:
        raise ConfigError(f"sweep: no engine is called {engine!r}", hint="--engine processes")
    missing = sorted({p.trace for p in points} - set(traces))
    if missing:
        raise KeyError(f"sweep: no trace is called {missing[0]!r}")
    done = _kept(out) if out is not None else {}
    left = [p for p in points if p.key not in done]
    if progress is not None:
        progress(len(points) - len(left), len(points))
    for key, row in ENGINES[engine](left, traces, workers):
        done[key] = row
        if out is not None:
            _keep(out, key, row)
        if progress is not None:
            progress(sum(p.key in done for p in points), len(points))
    rows = [done[p.key] for p in points]
    if out is not None and rows:
        _write(out / "results.parquet", rows)
    return rows


def _run(
    points: Sequence[Point], traces: Mapping[str, Trace], workers: int
) -> Iterator[tuple[str, Row]]:
    if workers <= 1:
        _share(traces)
        for point in points:
            yield point.key, _one(point)
        return
    with ProcessPoolExecutor(workers, initializer=_share, initargs=(traces,)) as pool:
        waiting = {pool.submit(_one, point): point.key for point in points}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _run_on_ray(
    points: Sequence[Point], traces: Mapping[str, Trace], workers: int
) -> Iterator[tuple[str, Row]]:
    try:
        import ray
        from ray.util import ActorPool
    except ImportError as error:
        raise ConfigError(
            f"sweep: the engine ray is not installed: {error}",
            hint="pip install 'surefoot[ray]', or use --engine processes",
        ) from None
    begun = not ray.is_initialized()
    if begun:
        here = None if os.environ.get("RAY_ADDRESS") else workers
        ray.init(num_cpus=here, include_dashboard=False, log_to_driver=False)
    try:
        shared = ray.put(dict(traces))
        count = min(len(points), int(ray.cluster_resources().get("CPU", 1)))
        pool = ActorPool([ray.remote(_Actor).remote(shared) for _ in range(count)])
        yield from pool.map_unordered(lambda actor, point: actor.run.remote(point), points)
    finally:
        if begun:
            ray.shutdown()


class _Actor:
    """A worker of a Ray cluster: it is handed the traces once."""

    def __init__(self, traces: Mapping[str, Trace]) -> None:
        _share(traces)

    def run(self, point: Point) -> tuple[str, Row]:
        """Run one point."""
        return point.key, _one(point)


Engine = Callable[[Sequence[Point], Mapping[str, Trace], int], Iterator[tuple[str, Row]]]

ENGINES: dict[str, Engine] = {"processes": _run, "ray": _run_on_ray}

_TRACES: dict[str, Trace] = {}
_REPLAYS: dict[str, Replay] = {}


def _share(traces: Mapping[str, Trace]) -> None:
    """Hand the traces to this process once, not with every point."""
    _TRACES.clear()
    _REPLAYS.clear()
    _TRACES.update(traces)


def _one(point: Point) -> Row:
    replay = _REPLAYS.get(point.trace)
    if replay is None:
        replay = _REPLAYS[point.trace] = Replay(_TRACES[point.trace])
    job = point.job
    if job.limits.deadline_ms is not None:
        limits = replace(job.limits, deadline_ms=point.start_ms + job.limits.deadline_ms)
        job = replace(job, limits=limits)
    outcome = simulate(
        job,
        replay,
        policy=point.policy,
        model=point.model,
        seed=point.seed,
        start_ms=point.start_ms,
        horizon_ms=point.horizon_ms,
    )
    return row_of(point, outcome)


def row_of(point: Point, outcome: Outcome) -> Row:
    """Return one flat row: the point's terms, then the outcome's figures."""
    body = outcome.as_dict()
    badput = body.pop("badput")
    lost = body.pop("preemptions")
    recoveries = body.pop("recovery_s")
    body.update({f"badput_{cause}": share for cause, share in badput.items()})
    body.update({f"preemptions_{kind}": count for kind, count in lost.items()})
    body["recoveries"] = len(recoveries)
    body["recovery_mean_s"] = sum(recoveries) / len(recoveries) if recoveries else None
    deadline = point.job.limits.deadline_ms
    late = deadline is not None and outcome.result != "done"
    if deadline is not None and outcome.result == "done":
        late = outcome.end_ms > point.start_ms + deadline
    return {"key": point.key, "label": point.label, **body, "missed_deadline": late}


def grid(
    jobs: Mapping[str, Job],
    traces: Mapping[str, Trace],
    policies: Sequence[str],
    *,
    starts: int = 1,
    seeds: int = 1,
    horizon_ms: int | None = None,
    model: CostModel | None = None,
) -> list[Point]:
    """Return the points of every job on every trace under every policy, start and seed.

    Starts are spread evenly over the part of each trace that leaves room for the horizon.
    """
    points = []
    for label, job in jobs.items():
        for name, trace in traces.items():
            room = trace.end_ms - trace.start_ms - (horizon_ms or 0)
            for index in range(starts):
                start = trace.start_ms + max(0, room) * index // max(1, starts)
                points += [
                    Point(job, name, policy, start, horizon_ms, seed, model or CostModel(), label)
                    for policy in policies
                    for seed in range(seeds)
                ]
    return points


def _keep(out: Path, key: str, row: Row) -> None:
    """Keep one row durably: a name without .tmp is whole."""
    folder = out / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{key}.parquet", [row])


def _write(path: Path, rows: Sequence[Row]) -> None:
    part = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist(list(rows), schema=_schema(rows)), part)
    part.replace(path)


def _schema(rows: Sequence[Row]) -> pa.Schema:
    """Return one schema for all rows: a column that is null everywhere counts as a number."""
    fields = []
    for name in rows[0]:
        seen = next((r[name] for r in rows if r[name] is not None), 0.0)
        kinds = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}
        fields.append((name, kinds.get(type(seen), pa.float64())))
    return pa.schema(fields)


def _kept(out: Path) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for path in sorted((out / "parts").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            rows[row["key"]] = row
    return rows
