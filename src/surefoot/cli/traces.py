"""`surefoot traces`: list, show, import, make and fetch records of markets."""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from surefoot.cli import frame
from surefoot.cli.forecast import run_history
from surefoot.core.market import Pool
from surefoot.core.trace import LifeEnd, PoolTrace, Step, Trace
from surefoot.core.units import MS_PER_HOUR, usd
from surefoot.errors import ConfigError
from surefoot.traces import read_any, read_trace, write_trace
from surefoot.traces.catalog import PUBLIC
from surefoot.traces.facts import trace_of
from surefoot.traces.fetch import download
from surefoot.traces.synthetic import NAMED, synthesise

app = typer.Typer(no_args_is_help=True, help="Records of spot markets.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SHADES = " ▁▂▃▄▅▆▇█"


@app.command("list")
def list_traces(as_json: Json = False) -> None:
    """List the made-up default traces and the public sources."""
    made = [
        {"name": name, "days": h.days, "pools": len(h.regions) * len(h.zones)}
        for name, h in NAMED.items()
    ]
    if as_json:
        frame.print_json({"synthetic": made, "public": [p.body() for p in PUBLIC]})
        return
    table = Table(title="made up, ready to use: surefoot traces synth NAME")
    for head in ("name", "days", "pools"):
        table.add_column(head)
    for one in made:
        table.add_row(str(one["name"]), f"{one['days']:g}", str(one["pools"]))
    frame.wide().print(table)
    table = Table(title="public records: surefoot traces fetch NAME downloads one")
    for head in ("name", "what", "licence", "where"):
        table.add_column(head, overflow="fold")
    for source in PUBLIC:
        table.add_row(source.name, source.what, source.licence, source.where)
    frame.wide().print(table)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="A trace file.")],
    figure: Annotated[Path | None, typer.Option(help="Draw it there (png, svg).")] = None,
    as_json: Json = False,
) -> None:
    """Show availability, losses and prices of a trace."""
    trace = read_trace(path)
    rows = [_summary(trace, record) for record in trace.pools.values()]
    if figure is not None:
        _draw(trace, figure)
    if as_json:
        frame.print_json({"name": trace.name, "semantics": trace.semantics.value, "pools": rows})
        return
    days = (trace.end_ms - trace.start_ms) / MS_PER_HOUR / 24
    table = Table(title=f"{trace.name}: {trace.semantics.value}, {days:.2g} days")
    for head in ("pool", "supply over time", "mean", "lost", "loss events", "spot $/h"):
        table.add_column(head, overflow="fold")
    for row, record in zip(rows, trace.pools.values(), strict=True):
        table.add_row(
            row["pool"],
            _spark(trace, record),
            f"{row['mean']:.2f}",
            str(row["lost"]),
            str(row["loss_events"]),
            f"{row['spot_usd_h']:.3f}" if row["spot_usd_h"] is not None else "-",
        )
    frame.wide().print(table)


@app.command("import")
def import_trace(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="A file in any form that is known, pages of one AWS price history, or a run's "
            "folder; last, the .parquet file to write."
        ),
    ],
    pool: Annotated[
        str | None, typer.Option(help="Whose a GCP capacity history is (provider/region/zone/type)")
    ] = None,
    provider: Annotated[
        str | None, typer.Option(help="Whose prices a SkyPilot vms.csv lists, such as aws.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert a record to our own form. What it is, its content says."""
    if len(paths) < 2:
        raise ConfigError(
            "name what to read and the file to write",
            hint="surefoot traces import prices.json prices.parquet",
        )
    *sources, out = paths
    if len(sources) == 1 and sources[0].is_dir():
        trace = trace_of(run_history(sources[0]), sources[0].resolve().name)
        if not trace.pools:
            raise ConfigError(f"{sources[0]}: this run has seen no spot pool yet")
    else:
        whose = _pool(pool) if pool is not None else None
        trace = read_any(sources, pool=whose, provider=provider)
    write_trace(trace, out)
    _said(trace, out, as_json=as_json)


@app.command()
def synth(
    name: Annotated[str, typer.Argument(help="One of: " + ", ".join(NAMED))] = "v100-mixed",
    out: Annotated[Path | None, typer.Option(help="The .parquet file to write.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same market.")] = 1,
    as_json: Json = False,
) -> None:
    """Make up a market with the habits of real ones."""
    if name not in NAMED:
        raise ConfigError(
            f"no made-up market is called {name!r}", hint="known: " + ", ".join(NAMED)
        )
    trace = synthesise(name, seed)
    target = out or Path(f"{trace.name}.parquet")
    write_trace(trace, target)
    _said(trace, target, as_json=as_json)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A public source's name: surefoot traces list.")],
    out: Annotated[Path | None, typer.Option(help="The file to write.")] = None,
    url: Annotated[str | None, typer.Option(help="Another place of it, such as a mirror.")] = None,
    sha256: Annotated[str | None, typer.Option(help="Keep it only if this is its SHA-256.")] = None,
    as_json: Json = False,
) -> None:
    """Download a public record to this machine, and say under which licence it stands."""
    found = next((p for p in PUBLIC if p.name == name), None)
    if found is None:
        known = ", ".join(p.name for p in PUBLIC)
        raise ConfigError(f"no public source is called {name!r}", hint=f"known: {known}")
    place = url or found.url
    if not place:
        if as_json:
            frame.print_json(found.body())
            return
        frame.out().print(f"{found.name}: {found.what}\nget it with:\n  {found.command}")
        return
    if not as_json:
        frame.out().print(f"{found.name}: {found.what}\nlicence: {found.licence}\nfrom: {place}")
    got = download(place, out or Path(found.file), sha256=sha256)
    if as_json:
        size = {"file": str(got.path), "bytes": got.size, "sha256": got.sha256}
        frame.print_json({**found.body(), **size})
        return
    frame.out().print(f"wrote {got.path}: {got.size} bytes, SHA-256 {got.sha256}")
    if found.inside:
        frame.out().print(f"unpack it with tar -xzf {got.path}; records: {found.inside}")
    frame.out().print("then: surefoot traces import FILE FILE.parquet")


def _pool(text: str) -> Pool:
    try:
        return Pool.parse(text)
    except ValueError as error:
        raise ConfigError(f"--pool: {error}") from None


def _said(trace: Trace, path: Path, *, as_json: bool) -> None:
    if as_json:
        frame.print_json({"name": trace.name, "pools": len(trace.pools), "file": str(path)})
    else:
        frame.out().print(f"wrote {path}: {trace.name}, {len(trace.pools)} pools")


def _summary(trace: Trace, record: PoolTrace) -> dict[str, Any]:
    counts = [s.value for s in record.supply if s.value is not None]
    falls = [a - b for a, b in pairwise(counts) if b < a]
    if record.lives:
        lost = sorted(x.end_ms or 0 for x in record.lives if x.end is LifeEnd.PREEMPTED)
        falls = [len(list(group)) for _, group in groupby(lost)]
    spot = [s.value for s in record.spot if s.value is not None]
    return {
        "pool": str(record.pool),
        "mean": _mean(record.supply, trace.start_ms, trace.end_ms),
        "most": max(counts, default=0),
        "lost": sum(falls),
        "loss_events": len(falls) + len(record.reclaims),
        "spot_usd_h": usd(spot[-1]) if spot else None,
    }


def _mean(steps: tuple[Step, ...], start_ms: int, end_ms: int) -> float:
    """Return the mean value between two instants over the known time."""
    ends = [s.at_ms for s in steps[1:]] + [end_ms]
    total = known = 0
    for step, end in zip(steps, ends, strict=False):
        span = min(end, end_ms) - max(step.at_ms, start_ms)
        if step.value is not None and span > 0:
            total, known = total + step.value * span, known + span
    return total / known if known else 0.0


def _spark(trace: Trace, record: PoolTrace, width: int = 48) -> str:
    """Return the supply as a line of blocks, one for each of `width` spans of time."""
    most = max((s.value or 0 for s in record.supply), default=0) or 1
    span = (trace.end_ms - trace.start_ms) / width
    cells = []
    for i in range(width):
        begin = trace.start_ms + round(i * span)
        mean = _mean(record.supply, begin, begin + max(1, round(span)))
        cells.append(SHADES[min(8, round(8 * mean / most))])
    return "".join(cells)


def _draw(trace: Trace, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1 + len(trace.pools)), layout="constrained")
    axes = figure.subplots(len(trace.pools), 1, sharex=True, squeeze=False)[:, 0]
    for axis, record in zip(axes, trace.pools.values(), strict=True):
        hours = [(s.at_ms - trace.start_ms) / MS_PER_HOUR for s in record.supply]
        counts = [float("nan") if s.value is None else s.value for s in record.supply]
        end = (trace.end_ms - trace.start_ms) / MS_PER_HOUR
        axis.step([*hours, end], [*counts, counts[-1]], where="post", lw=0.8)
        axis.set_title(str(record.pool), fontsize=8, loc="left")
    axes[-1].set_xlabel("hours")
    figure.savefig(path)
