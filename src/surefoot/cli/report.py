"""`surefoot report`: write a run's report.html and summary.json from its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from surefoot.cli import frame, outdir
from surefoot.report import Story, write_report

SWEEP = "sweep.json"


def report(
    out: Annotated[Path | None, typer.Argument(help=outdir.WHICH)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Write report.html and summary.json of a run, or of a sweep."""
    if out is not None and (out / SWEEP).is_file():
        _sweep(out, as_json=as_json)
        return
    found = outdir.read(out or outdir.newest())
    story = Story(found.card.job()).add_all(found.events)
    body = write_report(found.folder, story)
    if as_json:
        frame.print_json(body)
    else:
        frame.out().print(
            Text(f"wrote {found.folder / outdir.REPORT} and {found.folder / outdir.SUMMARY}")
        )


def _sweep(folder: Path, *, as_json: bool) -> None:
    from surefoot.report import sweeps  # the simulator and Parquet are needed only here

    body = sweeps.write_report(folder)
    if as_json:
        frame.print_json(body)
    else:
        names = f"{folder / outdir.REPORT} and {folder / outdir.SUMMARY}"
        frame.out().print(Text(f"wrote {names}"))
