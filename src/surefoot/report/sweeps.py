"""A sweep's folder: its rows, what it was, and the page that sums it up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from surefoot.errors import ConfigError
from surefoot.report.clean import clean
from surefoot.report.comparison import ORACLE, by_policy
from surefoot.report.numbers import clock, dollars, number, percent
from surefoot.report.page import STYLE
from surefoot.report.strict import strict_json

ABOUT, ROWS, RATIOS = "sweep.json", "results.parquet", "ratios.json"
Row = Mapping[str, Any]


def is_sweep(folder: Path) -> bool:
    """Return whether a folder holds a sweep."""
    return (folder / ABOUT).is_file()


def write(folder: Path, about: Mapping[str, Any], ratios: Sequence[Row]) -> None:
    """Keep what a sweep was and the figures that its rows lack, whole or not at all.

    `ratios`: by row key, `worth`, `usd_per_kstep`, `over_on_demand`, `switches`; rows of the
    offline optimum are among them, whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in ((ABOUT, about), (RATIOS, ratios)):
        new = folder / f".{name}.new"
        new.write_text(strict_json(body) + "\n", encoding="utf-8")
        new.replace(folder / name)


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what the sweep was, and its runs with all figures. Raises ConfigError."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        ratios = json.loads((folder / RATIOS).read_text(encoding="utf-8"))
        rows = pq.read_table(folder / ROWS).to_pylist()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder}: the sweep is not whole: {error}", hint="run the same sweep again"
        ) from None
    more = {row["key"]: row for row in ratios}
    runs = [{**row, **more.get(row["key"], {})} for row in rows]
    known = {row["key"] for row in rows}
    return about, runs + [row for row in ratios if row["key"] not in known]


def write_report(folder: Path) -> dict[str, Any]:
    """Write report.html and summary.json of a sweep; return the summary."""
    from surefoot.report import scatter

    about, runs = read(folder)
    lines = by_policy(runs)
    body = {**about, "policies": lines}
    shown = [line for line in lines if line["policy"] != ORACLE]
    best = [(r["worth"], r["usd_per_kstep"]) for r in runs if r["policy"] == ORACLE]
    best = [(x, y) for x, y in best if x is not None and y is not None]
    rows = [run for run in runs if run["policy"] != ORACLE]
    figure = scatter.as_svg(scatter.draw(rows, shown, optima=best))
    for name, text in (("report.html", _page(about, lines, figure)), ("summary.json", "")):
        new = folder / f".{name}.new"
        new.write_text(text or strict_json(body) + "\n", encoding="utf-8")
        new.replace(folder / name)
    return body


HEADS = (
    "policy",
    "with",
    "runs",
    "1,000 steps",
    "speed",
    "goodput",
    "time",
    "late",
    "swaps",
    "taken",
    "of on-demand",
)


def _page(about: Mapping[str, Any], lines: Sequence[Row], figure: str) -> str:
    title = f"{clean(about['job'])}: sweep of {number(about['points'])} simulated runs"
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(line)) + "</tr>"
        for line in lines
    )
    what = escape(clean("; ".join(f"{k}: {v}" for k, v in about.items()), limit=2_000))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escape(title)}</title><style>{STYLE} th {{ width: auto; }}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="under">{what}</p>'
        f'<div class="figure">{figure}</div>'
        f"<table><tr>{head}</tr>{body}</table></body></html>\n"
    )


def _cells(line: Row) -> tuple[str, ...]:
    ratio = line["over_on_demand"]
    return (
        clean(line["policy"]),
        clean(line["label"]),
        number(line["runs"]),
        dollars(line["usd_per_kstep"]),
        number(line["worth"]),
        percent(line["goodput"]),
        clock(line["wall_s"]),
        number(line["late"]),
        number(line["switches"]),
        number(line["preemptions"]),
        "-" if ratio is None else f"{ratio:.3f}",
    )
