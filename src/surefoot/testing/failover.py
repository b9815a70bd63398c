"""Two controllers on one PostgreSQL journal, the leader of which dies or stands still.

`controllers` puts the real control loop through it, in simulated time; `processes` two real
processes that are killed or stopped by signals within their writes, in real time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np

from surefoot.controller.store import Store
from surefoot.controller.store.schema import metadata
from surefoot.core.event import InstanceRequested
from surefoot.core.market import Capacity, Pool
from surefoot.errors import FencedError
from surefoot.testing.chaos import storm
from surefoot.testing.chaos_faults import STORM_MS, Fault
from surefoot.testing.postgres import new_database

RUN = "race"
LEASE_MS = 500
LIMIT_S = 60
SUCCESSOR_WRITES = 5
POOL = Pool("fake", "r", "r-a", "m")
LAST_OPERATION = 120
"""The first misfortune comes by this write or call: the launches are early in some 520."""


@dataclass(slots=True)
class Round:
    """What one round of `processes` showed; `wrong` is empty when all held."""

    wrong: list[str] = field(default_factory=list)
    takeover_ms: float = 0.0
    """From the leader's end or stop to its successor's first event."""
    launched: int = 0
    was_stopped: bool = False
    was_early: bool = False
    """The leader lost its lease for slowness before anything was done to it."""


def new_journal(server: str) -> str:
    """Make a database for the rounds on a server; return its URL."""
    return new_database(server, "failover")


def empty(journal: str) -> None:
    """Remove all that is recorded at a URL."""
    store = Store(journal)
    try:
        with store.engine.begin() as link:
            for table in metadata.sorted_tables:
                if table.name != "surefoot_schema":
                    link.execute(table.delete())
    finally:
        store.close()


def faults_of(seed: int) -> tuple[Fault, ...]:
    """Return when the leader of a round of `controllers` dies or stands still.

    One misfortune at a random write or call, one at a random time.
    """
    rng = np.random.default_rng([seed, 9])
    inside = ("crash_before", "crash_after", "stall_inside", "commit_unknown")
    first = Fault(str(rng.choice(inside)), int(rng.integers(1, LAST_OPERATION)))
    when = int(rng.integers(0, STORM_MS))
    return (first, Fault(str(rng.choice(("stall", "kill"))), when, span_ms=2_000))


def controllers(seed: int, journal: str) -> tuple[str, ...]:
    """Run one round of the real control loop on an emptied journal; return what went wrong."""
    empty(journal)
    verdict = storm(seed, faults_of(seed), journal=journal)
    return verdict.wrong


def processes(seed: int, journal: str) -> Round:
    """Run one round of two processes on an emptied journal: kill or stop the leader at random.

    Each writes the intent of a launch, then launches (which is told through a pipe). The leader
    is let go on after the takeover where it was only stopped, and must then be fenced.
    """
    empty(journal)
    rng = np.random.default_rng([seed, 8])
    found = Round(was_stopped=bool(rng.random() < 0.5))
    first, heard = _spawn(journal, "one", 1_000_000)
    told = [heard.readline()]
    second, later = _spawn(journal, "two", SUCCESSOR_WRITES)
    told += [heard.readline() for _ in range(int(rng.integers(0, 200)))]
    found.was_early = not told[-1].startswith("launched")
    time.sleep(float(rng.uniform(0, 0.004)))  # somewhere within the next writes
    os.kill(first, signal.SIGSTOP if found.was_stopped else signal.SIGKILL)
    began = time.monotonic()
    try:
        after = [later.readline()]
        found.takeover_ms = (time.monotonic() - began) * 1000
        if found.was_stopped:
            os.kill(first, signal.SIGCONT)
        told += heard.readlines()
        after += later.readlines()
    finally:
        for pid in (first, second):
            os.kill(pid, signal.SIGKILL)  # no more than to make sure: not yet waited for
            os.waitpid(pid, 0)
        heard.close()
        later.close()
    _judge(found, [s.strip() for s in told], [s.strip() for s in after], journal)
    return found


def _judge(found: Round, told: list[str], after: list[str], journal: str) -> None:
    store = Store(journal)
    rows = store.events(RUN)
    fence = store.acquire(RUN, "judge", now_ms=time.time_ns() // 1_000_000 + 3_600_000).fence
    store.close()
    tokens = [e.token for _, e in rows if isinstance(e, InstanceRequested)]
    launched = [s.split()[1] for s in (*told, *after) if s.startswith("launched ")]
    found.launched = len(launched)
    if [seq for seq, _ in rows] != list(range(1, len(rows) + 1)):
        found.wrong.append("the numbers of events have gaps")
    if len(set(tokens)) != len(tokens) or len(set(launched)) != len(launched):
        found.wrong.append("a VM was launched twice")
    if set(launched) - set(tokens):
        found.wrong.append("the intent of a launch was lost")
    if "done" not in after:
        found.wrong.append(f"the successor did not end well: {after[-1:]}")
    if found.was_stopped and "fenced" not in told:
        found.wrong.append(f"the stopped leader was not fenced: {told[-1:]}")
    if fence != 3:
        found.wrong.append(f"two takeovers make fence 3, it is {fence}")


def _spawn(journal: str, owner: str, writes: int) -> tuple[int, TextIO]:
    """Start a controller's process; return its pid and what it tells, line by line."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, os.fdopen(reader)
    status = 1
    try:
        os.close(reader)
        with os.fdopen(writer, "w", buffering=1) as out:
            _write(journal, owner, writes, out)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def _write(journal: str, owner: str, writes: int, out: TextIO) -> None:
    """Lead as soon as the lease is free, then write and launch so many times."""
    store, until = Store(journal), time.monotonic() + LIMIT_S
    while True:
        try:
            held = store.acquire(RUN, owner, now_ms=_now_ms(), lease_ms=LEASE_MS)
            break
        except FencedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
    try:
        for _ in range(writes):
            token = f"{RUN}-{held.seq + 1}"
            held.append(InstanceRequested(_now_ms(), token, POOL, Capacity.SPOT))
            out.write(f"launched {token}\n")
            if time.monotonic() > until:
                return
        out.write("done\n")
    except FencedError:
        out.write("fenced\n")
    except Exception as error:
        out.write(f"failed {type(error).__name__} {error}".replace("\n", " ") + "\n")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
