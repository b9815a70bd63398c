"""`surefoot sweep`: many simulated runs at once, kept as they end, summed up in a table."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from surefoot.cli import frame, markets
from surefoot.cli.compare import EVERY, table_of
from surefoot.config import load_job
from surefoot.controller.clock import RealClock
from surefoot.core.job import Job
from surefoot.core.trace import Trace
from surefoot.errors import ConfigError
from surefoot.report import sweeps
from surefoot.report.comparison import ORACLE, by_policy, compare, with_ratios
from surefoot.report.strict import plain
from surefoot.sim.sweep import Point, grid
from surefoot.sim.sweep import sweep as swept

RATIOS = ("key", "worth", "usd_per_kstep", "over_on_demand", "switches")
WIDEST = 256
"""Ceilings above this make the offline optimum too slow to be worked out."""


def sweep(
    job: Annotated[Path, typer.Argument(help="The job file (YAML).")],
    out: Annotated[Path, typer.Option(help="The folder of results; a broken-off sweep goes on.")],
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="A trace or a folder of them; may be repeated. Default: the job's own."),
    ] = None,
    policies: Annotated[str, typer.Option(help=f"Comma-separated, of {EVERY}.")] = EVERY,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Vary a key of the job file: throughput.floor=4,8; may be repeated."
        ),
    ] = None,
    starts: Annotated[int, typer.Option(help="Start each run at that many instants.")] = 1,
    seeds: Annotated[int, typer.Option(help="Repeat each run with that many seeds.")] = 1,
    horizon: Annotated[
        str | None, typer.Option(help="Stop each run after this long, such as 48h.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes; 0 is one a core.")] = 0,
    engine: Annotated[str, typer.Option(help="Spread over: processes, ray.")] = "processes",
    optimum: Annotated[
        bool, typer.Option(help="Also work out the offline optimum of every start.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Simulate a job under many policies, markets, starts and settings.

    Results are kept in --out as Parquet; `surefoot report OUT` draws them."""
    now_ms = RealClock().now_ms()
    names = [name for name in markets.policies(policies) if name != ORACLE]
    markets.at_least("--starts", starts, 1)
    markets.at_least("--seeds", seeds, 1)
    _check_folder(out)
    records = markets.read_markets(load_job(job), traces or [])
    span = markets.horizon_for(records, markets.span_ms("--horizon", horizon), starts)
    points = list(
        _points(job, records, names, set_ or [], starts=starts, seeds=seeds, span=span, now=now_ms)
    )
    count = workers or os.cpu_count() or 1
    with markets.progress_bar("sweeping") as bar:
        rows = swept(points, records, workers=count, out=out, progress=bar, engine=engine)
    more = [with_ratios(row, p.job) for row, p in zip(rows, points, strict=True)]
    best = _optima(points, records, count) if optimum else []
    about = {
        "job": points[0].job.name,
        "points": len(points),
        "policies": names,
        "markets": list(records),
        "set": set_ or [],
        "starts": starts,
        "seeds": seeds,
        "horizon_ms": span,
    }
    sweeps.write(out, about, [{k: row[k] for k in RATIOS} for row in more] + best)
    summary = sweeps.write_report(out)
    if as_json:
        frame.print_json(summary)
        return
    console = frame.wide()
    title = f"{points[0].job.name}: {len(points)} runs"
    console.print(table_of(by_policy([*more, *best]), title=title, width=console.width))
    console.print(Text(f"rows: {out / sweeps.ROWS}   report: {out / 'report.html'}"))


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out: {out} is a file")
    if out.is_dir() and any(out.iterdir()) and not (out / "parts").is_dir():
        raise ConfigError(
            f"--out: {out} is not empty and holds no sweep", hint="name a new folder for it"
        )


def _points(
    job: Path,
    records: Mapping[str, Trace],
    names: Sequence[str],
    sets: Sequence[str],
    *,
    starts: int,
    seeds: int,
    span: int | None,
    now: int,
) -> Iterator[Point]:
    """Yield the points of every setting on every market."""
    for changes in _settings(sets):
        job_file = load_job(job, changes=changes)
        label = " ".join(f"{key}={value}" for key, value in changes.items())
        model = markets.costs_of(job_file)
        for name, record in records.items():
            terms = markets.terms_on(job_file, record, now_ms=now)
            yield from grid(
                {label: terms},
                {name: record},
                names,
                starts=starts,
                seeds=seeds,
                horizon_ms=span,
                model=model,
            )


def _settings(sets: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield every combination of the varied keys' values. Raises ConfigError."""
    axes = []
    for text in sets:
        key, equals, values = text.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ConfigError(f"--set: must be KEY=VALUE[,VALUE...]; found {text!r}")
        axes.append([(key.strip(), value.strip()) for value in values.split(",")])
    for chosen in itertools.product(*axes):
        yield dict(chosen)


def _optima(
    points: Sequence[Point], records: Mapping[str, Trace], workers: int
) -> list[dict[str, Any]]:
    """Return the offline optimum of each setting, market and start, as rows of their own."""
    unique: dict[tuple[str, str, int], Point] = {}
    for point in points:
        if _has_optimum(point.job):
            found = replace(point, policy=ORACLE, seed=0)
            unique.setdefault((point.label, point.trace, point.start_ms), found)
    if not unique:
        return []
    used = {p.trace for p in unique.values()}
    kept = {name: record for name, record in records.items() if name in used}
    with markets.progress_bar("optimum") as bar:
        rows = compare(list(unique.values()), kept, workers=workers, progress=bar)
    return [plain(row) for row in rows]


def _has_optimum(job: Job) -> bool:
    """Return whether the optimum can be worked out in reasonable time."""
    return max(job.throughput.ceiling, float(job.num_nodes)) <= WIDEST
