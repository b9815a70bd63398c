"""Clearing away what a controller that died has left of its local VMs."""

from __future__ import annotations

from pathlib import Path

from surefoot.providers.base import Vm
from surefoot.providers.local import namespaces, processes
from surefoot.providers.local.host import remove_temporary
from surefoot.providers.local.namespaces import NamespaceHost
from surefoot.providers.local.records import StateFolder
from surefoot.providers.notice import now_ms


def sweep(state_dir: Path) -> int:
    """End all VMs that a dead controller has left in a state folder; return how many there were.

    Raises ConfigError when the controller is alive.
    """
    folder = StateFolder(Path(state_dir))
    try:
        left = [vm for vm in folder.load() if vm.ended_ms is None]
        processes.end(processes.marked(f"{folder.vms}/"))
        if namespaces.exists(folder.root):
            NamespaceHost(folder.root).close(kill=True)
        for vm in left:
            folder.save(vm.ended(now_ms(), preempted=False))
        tidy(folder, set())
        return len(left)
    finally:
        folder.release()


def left_in(state_dir: Path) -> list[Vm]:
    """Return the VMs that a dead controller has left in a state folder; changes nothing.

    Raises ConfigError when the controller is alive.
    """
    if not (Path(state_dir) / "vms").is_dir():
        return []
    folder = StateFolder(Path(state_dir))
    try:
        return [vm.as_vm() for vm in folder.load() if vm.ended_ms is None]
    finally:
        folder.release()


def tidy(folder: StateFolder, alive: set[str]) -> None:
    """Remove the temporary files of all VMs ever made here, but for those in `alive`."""
    for path in folder.vms.iterdir():
        if path.is_dir() and str(path) not in alive:
            remove_temporary(path.name)
