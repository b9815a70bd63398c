"""`surefoot ssh`: a shell, or one command, on a VM of a run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli import clouds, frame, outdir
from surefoot.config import JobFile, load_job
from surefoot.controller.clock import RealClock
from surefoot.core.event import InstanceGone, InstanceLaunched
from surefoot.errors import ConfigError


def ssh(
    vm: Annotated[str, typer.Argument(help="The VM's name in the run, or the provider's id.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="After --: what to run there; else a shell.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help=outdir.WHICH)] = None,
    user: Annotated[str, typer.Option(help="Whom to log in as; else what ssh takes.")] = "",
) -> None:
    """Open a shell on a VM with this machine's ssh; the exit code is that of ssh."""
    found = outdir.read(out or outdir.newest())
    instance_id = held(found, vm)
    job_file = load_job(Path(found.card.job_file), now_ms=RealClock().now_ms())
    line = login(job_file, found.card.run, instance_id, user)
    if shutil.which(line[0]) is None:
        raise ConfigError(f"{line[0]} is not installed here", hint="install an OpenSSH client")
    code = subprocess.run([*line, *(command or ())], check=False).returncode
    raise typer.Exit(code if code >= 0 else frame.FAILED)


def held(found: outdir.Found, vm: str) -> str:
    """Return the provider's id of a VM that the run holds. Raises ConfigError."""
    alive: dict[str, str] = {}
    for event in found.events:
        if isinstance(event, InstanceLaunched):
            alive[event.token] = event.instance_id
        elif isinstance(event, InstanceGone):
            alive.pop(event.token, None)
    for token, instance_id in alive.items():
        if vm in (token, instance_id):
            return instance_id
    names = ", ".join(sorted(alive)) or "none"
    raise ConfigError(f"run {found.card.run} holds no VM {vm!r}", hint=f"it holds: {names}")


def login(job_file: JobFile, run: str, instance_id: str, user: str) -> list[str]:
    """Return the ssh command that gets to a VM. Raises ConfigError where there is none."""
    if "ssh" in job_file.clouds:
        provider = clouds.open_ssh(job_file)
        line = list(provider.login(instance_id))
        provider.close()
        return [line[0], "-l", user, *line[1:]] if user else line
    if "aws" in job_file.clouds:
        return ["ssh", *(["-l", user] if user else []), "--", _aws(job_file, run, instance_id)]
    raise ConfigError(
        f"{instance_id} is a process on this machine: there is nothing to log in to",
        hint=f"its folder is {job_file.out / 'vms' / 'vms' / instance_id}",
    )


def _aws(job_file: JobFile, run: str, instance_id: str) -> str:
    provider = clouds.open_aws(job_file)
    try:
        if not provider.settings.key_name:
            raise ConfigError(
                "the job's VMs have no key pair, so nobody can log in to them",
                hint="aws: {key_name: YOUR_KEY}, and a security group that lets you in",
            )
        vms = {vm.instance_id: vm for vm in provider.list_all() if vm.run == run}
    finally:
        provider.close()
    address: str = vms[instance_id].address if instance_id in vms else ""
    if not address:
        raise ConfigError(f"AWS lists no address for {instance_id}")
    return address
