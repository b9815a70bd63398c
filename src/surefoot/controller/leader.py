"""Which process leads a run, by its lease in the journal; and how it is asked to stop."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from surefoot.controller.clock import RealClock
from surefoot.controller.recover import is_dead, this_process
from surefoot.controller.store import Store, may_be_there
from surefoot.controller.store.queries import lease_of


@dataclass(frozen=True, slots=True)
class Leader:
    """The process that leads a run, by its lease."""

    host: str
    pid: int
    is_alive: bool


def here() -> str:
    """Return this host's name as leases have it."""
    return this_process().rpartition(":")[0]


def leader_of(journal: Path | str, run: str) -> Leader | None:
    """Return who leads the run now; None when its lease is given back, run out, or never was."""
    if not may_be_there(journal):
        return None
    store = Store(journal)
    try:
        return leader_in(store, run)
    finally:
        store.close()


def leader_in(store: Store, run: str) -> Leader | None:
    """Return who leads a run of an open store, as `leader_of` does."""
    with store.engine.connect().execution_options(reading=True) as link:
        row = link.execute(lease_of(run, lock=False)).one_or_none()
    if row is None or row.expires_ms <= RealClock().now_ms():
        return None
    host, _, pid = str(row.owner).rpartition(":")
    if not pid.isdigit():
        return None
    return Leader(host, int(pid), is_alive=not is_dead(row.owner))


def ask_to_stop(leader: Leader) -> None:
    """Ask a leader on this host to save once more, end its VMs and go; returns at once."""
    os.kill(leader.pid, signal.SIGTERM)
