"""Processes of this machine as /proc shows them: who belongs to a VM, and how to end all of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SHM = "/dev/shm/"
MARK = "SUREFOOT_VM_DIR"
"""The environment variable that every process of a VM inherits; its value is unique to the VM."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for sure: pids are used again, a pid with its start time (clock ticks) is not."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """One process in a look at /proc."""

    id: ProcessId
    parent: int
    session: int
    mark: str


def identify(pid: int) -> ProcessId | None:
    """Return the living process with a pid; None when there is none, or only a zombie."""
    stat = _stat(pid)
    return None if stat is None else ProcessId(pid, stat[2])


def is_alive(process: ProcessId) -> bool:
    """Return whether that very process still runs."""
    return identify(process.pid) == process


def members(marks: Collection[str], variable: str = MARK) -> dict[str, set[ProcessId]]:
    """Return the living processes of each VM, by mark; `variable` is where the marks stand.

    A process is a VM's own when its environment says so, when a parent or its session's leader
    is (a program may have overwritten its environment).
    """
    seen = {p.id.pid: p for p in _look(variable)}
    found: dict[str, set[ProcessId]] = {mark: set() for mark in marks}
    for process in seen.values():
        mark = _owner(process, seen, frozenset(marks))
        if mark is not None:
            found[mark].add(process.id)
    return found


def marked(prefix: str) -> set[str]:
    """Return the marks of all living processes that begin with `prefix`."""
    return {p.mark for p in _look() if p.mark.startswith(prefix)}


def end(marks: Collection[str], *, variable: str = MARK, timeout_s: float = 10.0) -> None:
    """SIGKILL everything in the VMs and remove the shared memory that they leave behind.

    Looks again until nothing is found, as a process may fork between look and kill. Returns
    after `timeout_s` at the latest (a process in uninterruptible sleep dies when it wakes up).
    """
    segments: set[str] = set()
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        left = set().union(*members(marks, variable).values()) if marks else set()
        if not left:
            break
        for process in left:
            segments |= _segments(process.pid)
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.01)
    _unlink_unused(segments)


def send(process: ProcessId, number: signal.Signals) -> None:
    """Send a signal to that very process; one that has ended (or was replaced) gets none."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        # The handle pins the process that has the pid now: check that it is the one we mean.
        if is_alive(process):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _look(variable: str = MARK) -> Iterator[_Seen]:
    for pid in [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]:
        stat = _stat(pid)
        if stat is not None:
            parent, session, start = stat
            yield _Seen(ProcessId(pid, start), parent, session, value_of(pid, variable))


def _stat(pid: int) -> tuple[int, int, int] | None:
    """Return (parent, session, start time); None for a process that is gone or a zombie."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    fields = text.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return int(fields[1]), int(fields[3]), int(fields[19])


def value_of(pid: int, variable: str) -> str:
    """Return a variable of a process's environment; "" where there is none, or no process."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    wanted = f"{variable}=".encode()
    found = (e[len(wanted) :] for e in environment.split(b"\0") if e.startswith(wanted))
    return os.fsdecode(next(found, b""))


def _owner(process: _Seen, seen: dict[int, _Seen], marks: frozenset[str]) -> str | None:
    """Return the mark that a process falls under, looking at its session, then its ancestors."""
    visited: set[int] = set()
    current: _Seen | None = process
    while current is not None and current.id.pid not in visited:
        visited.add(current.id.pid)
        leader = seen.get(current.session)
        for candidate in (current, leader):
            if candidate is not None and candidate.mark in marks:
                return candidate.mark
        current = seen.get(current.parent)
    return None


def _segments(pid: int) -> set[str]:
    """Return the named shared memory that a process maps or holds open."""
    try:
        lines = (PROC / str(pid) / "maps").read_text().splitlines()
        paths = {line[line.index(SHM) :] for line in lines if SHM in line}
        paths |= {str(handle.readlink()) for handle in (PROC / str(pid) / "fd").iterdir()}
    except (OSError, UnicodeDecodeError):
        return set()
    return {p for p in paths if p.startswith(SHM) and not p.endswith(" (deleted)")}


def _unlink_unused(segments: Iterable[str]) -> None:
    mine = set(segments)
    if not mine:
        return
    for process in list(_look()):
        mine -= _segments(process.id.pid)
    for path in mine:
        Path(path).unlink(missing_ok=True)
