"""`surefoot compare`: the same job under several policies on the same recorded markets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from surefoot.cli import frame, markets
from surefoot.config import load_job
from surefoot.controller.clock import RealClock
from surefoot.core.forecast import ELSEWHERE, FORECASTERS, get_forecaster
from surefoot.core.policy import POLICIES
from surefoot.core.trace import Trace
from surefoot.report.clean import clean
from surefoot.report.comparison import by_policy
from surefoot.report.comparison import compare as compared
from surefoot.report.numbers import clock, dollars, number, percent
from surefoot.sim.sweep import Point, grid

EVERY = ",".join(POLICIES)
BAR, ROOMY = 15, 104


def compare(
    job: Annotated[Path, typer.Argument(help="The job file (YAML).")],
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="A trace or a folder of them; may be repeated. Default: the job's own."),
    ] = None,
    policies: Annotated[str, typer.Option(help=f"Comma-separated, of {EVERY}; or oracle.")] = EVERY,
    forecaster: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join((*FORECASTERS, *ELSEWHERE))}; default: the job's."),
    ] = None,
    starts: Annotated[int, typer.Option(help="Start each run at that many instants.")] = 1,
    seeds: Annotated[int, typer.Option(help="Repeat each run with that many seeds.")] = 1,
    horizon: Annotated[
        str | None, typer.Option(help="Stop each run after this long, such as 48h.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes; 0 is one a core.")] = 0,
    figure: Annotated[
        Path | None, typer.Option(help="Draw cost against speed into this .svg, .png or .pdf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every run as JSON.")] = False,
) -> None:
    """Compare policies: what the job would do and cost under each on recorded markets."""
    job_file, now_ms = load_job(job), RealClock().now_ms()
    names = markets.policies(policies)
    markets.at_least("--starts", starts, 1)
    markets.at_least("--seeds", seeds, 1)
    records = markets.read_markets(job_file, traces or [])
    span = markets.horizon_for(records, markets.span_ms("--horizon", horizon), starts)
    points: list[Point] = []
    for name, record in records.items():
        terms = markets.terms_on(job_file, record, now_ms=now_ms)
        if forecaster is not None:
            terms = replace(terms, forecaster=get_forecaster(forecaster).name)
        model = markets.costs_of(job_file)
        kind = {"starts": starts, "seeds": seeds, "horizon_ms": span, "model": model}
        points += grid({"": terms}, {name: record}, names, **kind)  # type: ignore[arg-type]
    count = workers or os.cpu_count() or 1
    with markets.progress_bar("comparing") as progress:
        rows = compared(points, records, workers=count, progress=progress)
    lines = by_policy(rows)
    if figure is not None:
        from surefoot.report import scatter

        scatter.save(scatter.draw(rows, lines), figure)
    if as_json:
        frame.print_json({"policies": lines, "runs": rows})
        return
    _print(points[0].job.name, records, lines)
    if figure is not None:
        frame.out().print(Text(f"figure: {figure}"))


def _print(name: str, records: Mapping[str, Trace], lines: Sequence[Mapping[str, Any]]) -> None:
    runs = lines[0]["runs"]
    many = f"{len(records)} markets" if len(records) > 1 else clean(next(iter(records)))
    title = f"{clean(name)} on {many}: {runs} {'run' if runs == 1 else 'runs'} each"
    console = frame.wide()
    console.print(table_of(lines, title=title, width=console.width))


def table_of(lines: Sequence[Mapping[str, Any]], *, title: str, width: int) -> Table:
    """Return the comparison as a table, cheapest work first; a narrow one has fewer columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    labelled = any(line["label"] for line in lines)
    shown = [key for key in COLUMNS if labelled or key != "label"]
    shown = [key for key in shown if width >= ROOMY or key not in OPTIONAL]
    for key in shown:
        left = key in LEFT
        table.add_column(COLUMNS[key], justify="left" if left else "right", no_wrap=left)
    for line in lines:
        table.add_row(*(Text(_cell(line, key, bars=width >= ROOMY)) for key in shown))
    return table


COLUMNS = {
    "policy": "policy",
    "label": "with",
    "bill_usd": "cost",
    "usd_per_kstep": "1,000 steps",
    "worth": "speed",
    "goodput": "goodput",
    "done": "finished",
    "late": "late",
    "floor_broken_s": "below floor",
    "switches": "swaps",
    "preemptions": "taken",
    "over_on_demand": "of on-demand",
}
OPTIONAL = ("bill_usd", "done", "preemptions")
LEFT = ("policy", "label", "over_on_demand")


def _cell(line: Mapping[str, Any], key: str, *, bars: bool) -> str:
    value = line.get(key)
    match key:
        case "policy" | "label":
            return clean(value)
        case "bill_usd" | "usd_per_kstep":
            return dollars(value)
        case "goodput":
            return percent(value)
        case "done":
            return f"{value} of {line['runs']}"
        case "floor_broken_s":
            return clock(value)
        case "over_on_demand":
            return _bar(value, bars=bars)
    return number(round(value, 2) if isinstance(value, float) else value)


def _bar(ratio: float | None, *, bars: bool) -> str:
    if ratio is None:
        return "-"
    return (
        f"{ratio:.3f}"
        if not bars
        else f"{ratio:.3f} " + "█" * max(1, min(BAR, round(ratio * BAR / 1.25)))
    )
