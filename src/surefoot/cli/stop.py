"""`surefoot stop`: end a run that another terminal leads, with a last checkpoint."""

from __future__ import annotations

from pathlib import Path
from threading import Event as Pause
from typing import Annotated

import typer
from rich.text import Text

from surefoot.cli import frame, outdir, remote
from surefoot.controller.leader import Leader, ask_to_stop, here
from surefoot.controller.leader import leader_of as leader_of
from surefoot.errors import ConfigError, SurefootError

LOOK_S = 0.2


def stop(
    out: Annotated[Path | None, typer.Argument(help=outdir.WHICH)] = None,
    wait: Annotated[int, typer.Option(help="Seconds to wait for the end; 0 only asks.")] = 120,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    url: remote.Url = None,
    token_file: remote.TokenFile = None,
) -> None:
    """Stop a run cleanly: a last checkpoint, then no VM is left.

    The same `surefoot run` resumes it. A run on another host is named, not touched."""
    if url is not None:
        remote.stop(url, token_file, out, wait=wait, as_json=as_json)
        return
    folder = out or outdir.newest()
    found = outdir.read(folder)
    leader = leader_of(outdir.journal_of(folder), found.card.run)
    if leader is None or not leader.is_alive:
        _say(found, "nothing leads it", as_json=as_json)
        return
    if leader.host != here():
        raise ConfigError(
            f"run {found.card.run} is led by process {leader.pid} on {leader.host}, not here",
            hint=f"on {leader.host}: surefoot stop {folder}",
        )
    ask_to_stop(leader)
    if wait <= 0:
        _say(found, f"asked process {leader.pid} to stop", as_json=as_json)
        return
    _wait(folder, found.card.run, leader, wait)
    _say(outdir.read(folder), "stopped", as_json=as_json)


def _wait(folder: Path, run: str, leader: Leader, wait_s: int) -> None:
    """Wait until the run has no leader any more. Raises SurefootError when it takes too long."""
    for _ in range(int(wait_s / LOOK_S)):
        now = leader_of(outdir.journal_of(folder), run)
        if now is None or not now.is_alive or now.pid != leader.pid:
            return
        Pause().wait(LOOK_S)
    raise SurefootError(
        f"process {leader.pid} was asked to stop {wait_s} s ago and still leads run {run}",
        hint=f"look at it with: surefoot status {folder}",
    )


def _say(found: outdir.Found, what: str, *, as_json: bool) -> None:
    state = found.outcome or ("under way" if found.events else "not begun")
    if as_json:
        body = {"run": found.card.run, "folder": str(found.folder), "did": what, "state": state}
        frame.print_json(body)
        return
    frame.out().print(Text(f"{found.card.name} ({found.card.run}): {what}; its state: {state}"))
