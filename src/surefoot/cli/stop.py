"""`surefoot stop`: end a run that another terminal leads, with a last checkpoint."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Pause
from typing import Annotated

import typer
from rich.text import Text

from surefoot.cli import frame, outdir
from surefoot.controller.clock import RealClock
from surefoot.controller.recover import is_dead, this_process
from surefoot.controller.store import Store
from surefoot.controller.store.queries import lease_of
from surefoot.errors import ConfigError, SurefootError

LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Leader:
    """The process that leads a run, by its lease."""

    host: str
    pid: int
    is_alive: bool


def stop(
    out: Annotated[Path | None, typer.Argument(help=outdir.WHICH)] = None,
    wait: Annotated[int, typer.Option(help="Seconds to wait for the end; 0 only asks.")] = 120,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Stop a run cleanly: a last checkpoint, then no VM is left.

    The same `surefoot run` resumes it. A run on another host is named, not touched."""
    folder = out or outdir.newest()
    found = outdir.read(folder)
    leader = leader_of(folder, found.card.run)
    if leader is None or not leader.is_alive:
        _say(found, "nothing leads it", as_json=as_json)
        return
    here = this_process().rpartition(":")[0]
    if leader.host != here:
        raise ConfigError(
            f"run {found.card.run} is led by process {leader.pid} on {leader.host}, not here",
            hint=f"on {leader.host}: surefoot stop {folder}",
        )
    os.kill(leader.pid, signal.SIGTERM)
    if wait <= 0:
        _say(found, f"asked process {leader.pid} to stop", as_json=as_json)
        return
    _wait(folder, found.card.run, leader, wait)
    _say(outdir.read(folder), "stopped", as_json=as_json)


def leader_of(folder: Path, run: str) -> Leader | None:
    """Return who leads the run now; None when its lease is given back, run out, or never was."""
    if not (folder / outdir.JOURNAL).exists():
        return None
    store = Store(folder / outdir.JOURNAL)
    try:
        with store.engine.connect().execution_options(reading=True) as link:
            row = link.execute(lease_of(run)).one_or_none()
    finally:
        store.close()
    if row is None or row.expires_ms <= RealClock().now_ms():
        return None
    host, _, pid = str(row.owner).rpartition(":")
    if not pid.isdigit():
        return None
    return Leader(host, int(pid), is_alive=not is_dead(row.owner))


def _wait(folder: Path, run: str, leader: Leader, wait_s: int) -> None:
    """Wait until the run has no leader any more. Raises SurefootError when it takes too long."""
    for _ in range(int(wait_s / LOOK_S)):
        now = leader_of(folder, run)
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
