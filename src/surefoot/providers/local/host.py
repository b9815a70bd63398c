"""Where local VMs live: the port of the two kinds of host, and the one of plain processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from surefoot.errors import ConfigError
from surefoot.providers.local import processes
from surefoot.providers.local.processes import ProcessId
from surefoot.providers.local.records import VmRecord

CONTROLLER_ADDRESS = "127.0.0.1"
LOOPBACK_PREFIX = "127.77"
KEPT_OUT = ("SUREFOOT_", "AWS_EC2_METADATA", "TORCHELASTIC_")
"""Variables of the controller's own environment that a VM must not inherit."""


class Host(Protocol):
    """Runs VMs. Methods that end or cut VMs ignore those that are gone already."""

    def listen(self, port: int) -> socket.socket:
        """Return a listening TCP socket that VMs can reach (port 0: any)."""

    def listen_metadata(self, port: int) -> socket.socket:
        """Return the listening socket of the metadata service; `port` is tried first."""

    def address(self, number: int) -> str:
        """Return the address of the VM with this launch number; never one used before."""

    def metadata_endpoint(self, prefixed: str) -> str:
        """Return the URL that VMs use; `prefixed` is the one with the VM's name in its path."""

    def boot(self, vm: VmRecord, command: Sequence[str], boot: Mapping[str, str]) -> ProcessId:
        """Start the VM with this command and boot environment; return its first process."""

    def is_alive(self, vm: VmRecord) -> bool:
        """Return whether the VM's first process runs."""

    def end(self, vms: Sequence[VmRecord], *, silently: bool) -> None:
        """End everything in the VMs at once; `silently`: their peers see no closed connection."""

    def cut(self, vm: VmRecord) -> None:
        """Cut the VM off from all others (a fault)."""

    def uncut(self, vm: VmRecord) -> None:
        """Undo `cut`."""

    def close(self, *, kill: bool) -> None:
        """Reap what has ended; with `kill`, remove all that the host has set up."""


class ProcessHost:
    """VMs are process groups on loopback addresses: no root needed, one shared file system.

    A VM that dies closes its connections, so peers always see it go; `cut` freezes the VM. A
    program that drops its environment, leaves its session and outlives its parent at the same
    time escapes from the VM; where that matters, VMs must be namespaces.
    """

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []

    def listen(self, port: int) -> socket.socket:
        """Return a listening TCP socket on the loopback address (port 0: any)."""
        return socket.create_server((CONTROLLER_ADDRESS, port), backlog=128)

    def listen_metadata(self, port: int) -> socket.socket:
        """Return the metadata service's socket; any port when the wanted one is taken."""
        try:
            return self.listen(port)
        except OSError:
            return self.listen(0)

    def address(self, number: int) -> str:
        """Return the loopback address of the VM with this launch number."""
        return numbered_address(LOOPBACK_PREFIX, number)

    def metadata_endpoint(self, prefixed: str) -> str:
        """Return the URL with the VM's name in it: all VMs call from the same address."""
        return prefixed

    def boot(self, vm: VmRecord, command: Sequence[str], boot: Mapping[str, str]) -> ProcessId:
        """Start the command as the leader of a session of its own."""
        return spawn(self._children, vm, command, boot)

    def is_alive(self, vm: VmRecord) -> bool:
        """Return whether the VM's first process runs."""
        reap(self._children)
        return is_alive(vm, LOOPBACK_PREFIX)

    def end(self, vms: Sequence[VmRecord], *, silently: bool) -> None:
        """SIGKILL everything that carries the VMs' marks (a process cannot vanish silently)."""
        processes.end([vm.folder for vm in vms])
        reap(self._children)

    def cut(self, vm: VmRecord) -> None:
        """Freeze the VM: it neither answers nor closes its connections."""
        self._signal(vm, signal.SIGSTOP)

    def uncut(self, vm: VmRecord) -> None:
        """Let a frozen VM go on."""
        self._signal(vm, signal.SIGCONT)

    def close(self, *, kill: bool) -> None:
        """Reap what has ended."""
        reap(self._children)

    def _signal(self, vm: VmRecord, number: signal.Signals) -> None:
        for process in processes.members([vm.folder])[vm.folder]:
            processes.send(process, number)


def is_alive(vm: VmRecord, prefix: str) -> bool:
    """Return whether a VM with an address below `prefix` (a host's own) has its first process."""
    mine = vm.address.startswith(f"{prefix}.")
    return mine and vm.process is not None and processes.is_alive(vm.process)


def numbered_address(prefix: str, number: int) -> str:
    """Return the `number`-th host address below a /16 prefix, from 1. Raises ConfigError."""
    high, low = divmod(number, 254)
    if high > 254:
        raise ConfigError(
            "this run has launched 64,770 local VMs and is out of addresses",
            hint="start again with a fresh state folder",
        )
    return f"{prefix}.{high + 1}.{low + 1}"


def spawn(
    children: list[subprocess.Popen[bytes]],
    vm: VmRecord,
    command: Sequence[str],
    boot: Mapping[str, str],
) -> ProcessId:
    """Start a VM's first process in a session of its own; its output goes to console.log.

    Raises ConfigError when the command cannot be started.
    """
    folder = Path(vm.folder)
    folder.mkdir(parents=True, exist_ok=True)
    temporary(vm.instance_id).mkdir(mode=0o700)
    with (folder / "console.log").open("ab") as console:
        try:
            child = subprocess.Popen(
                list(command),
                cwd=folder,
                env=environment(vm, boot),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"cannot start a local VM: {error}") from error
    children.append(child)
    # One that has died already is a zombie until we reap it: any start time will do for it.
    return processes.identify(child.pid) or ProcessId(child.pid, 0)


def environment(vm: VmRecord, boot: Mapping[str, str]) -> dict[str, str]:
    """Return a VM's environment: the controller's own without what is its private business."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(KEPT_OUT)}
    # One VM stands for one core: torch would otherwise start a thread per core in every VM.
    inherited.setdefault("OMP_NUM_THREADS", "1")
    # `python` in a job's command is the one that Surefoot is installed in.
    path = [str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]
    inherited["PATH"] = os.pathsep.join(path)
    own = {
        processes.MARK: vm.folder,
        "SUREFOOT_ADDRESS": vm.address,
        "TMPDIR": str(temporary(vm.instance_id)),
    }
    return inherited | dict(boot) | own


def temporary(instance_id: str) -> Path:
    """Return the folder of a VM's temporary files, which go with it as a VM's disk does.

    It is not in the scratch folder, whose path may be too long for the sockets made here.
    """
    return Path(tempfile.gettempdir()) / f"surefoot-{instance_id}"


def remove_temporary(instance_id: str) -> None:
    """Remove the temporary files of a VM that has ended."""
    shutil.rmtree(temporary(instance_id), ignore_errors=True)


def reap(children: list[subprocess.Popen[bytes]]) -> None:
    """Collect the exit status of children that have ended, so that no zombie is left."""
    children[:] = [child for child in children if child.poll() is None]
