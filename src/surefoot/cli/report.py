"""`surefoot report`: write a run's report.html and summary.json from its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from surefoot.cli import frame, outdir
from surefoot.report import Story, write_report


def report(
    out: Annotated[Path | None, typer.Argument(help=outdir.WHICH)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Write report.html and summary.json of a run."""
    found = outdir.read(out or outdir.newest())
    story = Story(found.card.job()).add_all(found.events)
    body = write_report(found.folder, story)
    if as_json:
        frame.print_json(body)
    else:
        frame.out().print(
            Text(f"wrote {found.folder / outdir.REPORT} and {found.folder / outdir.SUMMARY}")
        )
