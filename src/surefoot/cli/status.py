"""`surefoot status`: how a run stands, read from its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from surefoot.cli import frame, live, outdir, remote
from surefoot.report import Story
from surefoot.report.clean import clean
from surefoot.report.numbers import rows_of
from surefoot.report.standing import standing


def status(
    out: Annotated[Path | None, typer.Argument(help=outdir.WHICH)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    url: remote.Url = None,
    token_file: remote.TokenFile = None,
) -> None:
    """Say how a run stands."""
    if url is not None:
        remote.status(url, token_file, out, as_json=as_json)
        return
    found = outdir.read(out or outdir.newest())
    story = Story(found.card.job()).add_all(found.events)
    body = status_of(found, story)
    if as_json:
        frame.print_json(body)
        return
    _print(found, story, body)


def status_of(found: outdir.Found, story: Story) -> dict[str, Any]:
    """Return the state of a run as JSON values."""
    state = found.outcome or ("under way" if found.events else "not begun")
    return {"folder": str(found.folder), **standing(found.card, story, state)}


def _print(found: outdir.Found, story: Story, body: dict[str, Any]) -> None:
    console = frame.out()
    state = "no event yet" if not found.events else clean(body["state"])
    console.print(Text(f"{found.card.name} ({found.card.run}): {state}", "bold"))
    console.print(Text(live.status_line(story)))
    table = Table.grid(padding=(0, 2))
    for label, value in rows_of(body["figures"]):
        table.add_row(Text(label, "dim"), Text(value))
    console.print(table)
    for entry in body["events"]:
        console.print(Text(f"  {entry['text']}"))
