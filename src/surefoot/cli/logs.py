"""`surefoot logs`: what the training script and the agent of each VM wrote."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from threading import Event as Pause
from typing import Annotated

import typer
from rich.text import Text

from surefoot.cli import frame, outdir, remote, stop
from surefoot.core.event import InstanceLaunched
from surefoot.errors import ConfigError, NotBuiltError
from surefoot.report.logfile import LOGS, Log, log_paths
from surefoot.report.words import short

LOOK_S = 0.25


def logs(
    out: Annotated[Path | None, typer.Argument(help=outdir.WHICH)] = None,
    vm: Annotated[
        str | None, typer.Argument(help="One VM: its id, or the name that events give it.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    agent: Annotated[bool, typer.Option("--agent", help="The agents' logs.")] = False,
    tail: Annotated[int, typer.Option(help="Lines of each VM to begin with.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (not with -f).")] = False,
    url: remote.Url = None,
    token_file: remote.TokenFile = None,
) -> None:
    """Show the logs of a run's VMs; gone ones keep theirs. VMs of a cloud keep them there."""
    if url is not None:
        which = "agent" if agent else "worker"
        terms = {"follow": follow, "as_json": as_json}
        remote.logs(url, token_file, out, vm, kind=which, tail=tail, **terms)
        return
    folder = out or outdir.newest()
    found = outdir.read(folder)
    name = LOGS["agent" if agent else "worker"]
    known = _known(found)
    if not (folder / "vms").is_dir() and known:
        raise NotBuiltError(
            "the logs of cloud VMs cannot be fetched yet",
            hint="what a crashed worker wrote last is in: surefoot events",
        )
    wanted = _wanted(known, vm) if vm else None
    files = _logs(folder, name, known, wanted)
    if as_json:
        frame.print_json({log.name: log.new_lines(last=True)[-tail:] for log in files})
        return
    console = frame.out()

    def show(log: Log, lines: list[str]) -> None:
        for line in lines:
            console.print(Text.assemble((f"{log.name} | ", "dim"), line))

    for log in files:
        show(log, list(deque(log.new_lines(last=not follow), maxlen=tail)))
    seen = {log.path: log for log in files}
    while follow and stop.leader_of(outdir.journal_of(folder), found.card.run) is not None:
        Pause().wait(LOOK_S)
        for log in _logs(folder, name, _known(outdir.read(folder)), wanted):
            seen.setdefault(log.path, log)
        for log in seen.values():
            show(log, log.new_lines())


def _known(found: outdir.Found) -> dict[str, str]:
    """Return the name in events of each launched VM, by instance id."""
    launches = (e for e in found.events if isinstance(e, InstanceLaunched))
    return {event.instance_id: short(event.token) for event in launches}


def _wanted(known: dict[str, str], vm: str) -> str:
    """Return the id of the VM that is meant. Raises ConfigError for none or several."""
    fit = [i for i, name in known.items() if vm in (i, name)]
    fit = fit or [i for i, name in known.items() if i.startswith(vm) or name.startswith(vm)]
    if len(fit) == 1:
        return fit[0]
    there = ", ".join(f"{name} ({i})" for i, name in known.items()) or "none"
    what = "several VMs fit" if fit else "there is no VM"
    raise ConfigError(f"{what} {vm!r}", hint=f"VMs of this run: {there}")


def _logs(folder: Path, name: str, known: dict[str, str], wanted: str | None) -> list[Log]:
    """Return the logs there are, in order of launch."""
    paths = log_paths(folder, name)
    order = [i for i in known if i in paths]
    return [Log(paths[i], known[i]) for i in order if wanted in (None, i)]
