"""`surefoot events`: a run's journal, line by line, and as it grows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event as Pause
from typing import Annotated

import typer
from rich.text import Text

from surefoot.cli import frame, live, outdir, remote
from surefoot.controller.store import Store
from surefoot.controller.store.codec import encode_event
from surefoot.core.event import Event, RunEnded, RunStarted, State, apply
from surefoot.report.clean import clean
from surefoot.report.words import Tone, say

LOOK_S = 0.25
Numbered = tuple[int, Event]


def events(
    out: Annotated[Path | None, typer.Argument(help=outdir.WHICH)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Also what is not worth a line.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only these kinds, such as InstanceGone.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: seq, at_ms, kind, body.")
    ] = False,
    url: remote.Url = None,
    token_file: remote.TokenFile = None,
) -> None:
    """Tell what happened in a run, from its journal."""
    if url is not None:
        kinds = set(kind or ())
        terms = {"follow": follow, "every": every, "as_json": as_json}
        remote.events(url, token_file, out, kinds=kinds, **terms)
        return
    folder = out or outdir.newest()
    card = outdir.read(folder).card
    wanted = set(kind or ())
    found = _stream(outdir.journal_of(folder), card.run, follow=follow)
    if as_json:
        for seq, event in found:
            if not wanted or type(event).__name__ in wanted:
                _print_row(seq, event)
        return
    _tell(found, wanted, every=every)


def _stream(journal: Path | str, run: str, *, follow: bool) -> Iterator[Numbered]:
    """Yield a run's events; with `follow` those still to come, until the run ends."""
    store, after, over = Store(journal), 0, False
    try:
        while True:
            for seq, event in store.events(run, after=after):
                yield seq, event
                after = seq
                over = isinstance(event, RunEnded) or (over and not isinstance(event, RunStarted))
            if over or not follow:
                return
            Pause().wait(LOOK_S)
    finally:
        store.close()


def _print_row(seq: int, event: Event) -> None:
    kind, body = encode_event(event)
    row = {"seq": seq, "at_ms": event.at_ms, "kind": kind, "body": json.loads(body)}
    print(json.dumps(row, ensure_ascii=False), flush=True)


def _tell(found: Iterable[Numbered], wanted: set[str], *, every: bool) -> None:
    state, began_ms, console = State(), None, frame.out()
    for seq, event in found:
        began_ms = event.at_ms if began_ms is None else began_ms
        line, name = say(state, event), type(event).__name__
        state = apply(state, event)
        if wanted and name not in wanted:
            continue
        if line is None:
            if not every and not wanted:
                continue
            line = (Tone.QUIET, f"{name} {clean(encode_event(event)[1], limit=300)}")
        tone, text = line
        at_s = (event.at_ms - began_ms) / 1000
        console.print(Text(f"{seq:>6} {at_s:>10.1f} s  {text}", live.STYLES[tone]))
