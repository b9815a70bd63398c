"""What the engine costs with no other engine beside it: against raw I/O, idle, and over time."""

from __future__ import annotations

import contextlib
import mmap
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from _common import Bars, table
from surefoot.checkpoint import Checkpointer


class Training(Protocol):
    """What is trained here."""

    def state(self) -> dict[str, Any]: ...

    def step(self) -> tuple[float, float]: ...


def raw(root: Path, n_bytes: int) -> dict[str, float]:
    """Return seconds of a raw O_DIRECT write (with fsync) and cold reads of as many bytes."""
    piece = 16 << 20
    path = root / "raw.bin"
    with mmap.mmap(-1, n_bytes) as memory, memoryview(memory) as view:
        filler = os.urandom(1 << 20)
        for at in range(0, n_bytes, 1 << 20):  # every page is touched before the clock starts
            view[at : at + (1 << 20)] = filler[: n_bytes - at]
        os.sync()
        began = time.perf_counter()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        os.posix_fallocate(fd, 0, n_bytes)
        for at in range(0, n_bytes, piece):
            os.pwrite(fd, view[at : at + piece], at)
        os.fsync(fd)
        os.close(fd)
        wrote = time.perf_counter() - began
        began = time.perf_counter()
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for at in range(0, n_bytes, piece):
            os.preadv(fd, [view[at : at + piece]], at)
        read = time.perf_counter() - began
        os.close(fd)
    path.unlink()
    return {"write": wrote, "read": read}


def durable_alone(training: Training, root: Path, reps: int) -> list[dict[str, float]]:
    """Return ours against raw I/O of the same bytes, with no training beside: write and load."""
    rows, buffer = [], bytearray()
    into = training.state()
    with Checkpointer(root / "alone", keep=1) as checkpointer:
        checkpointer.save(0, into, blocking=True)
        checkpointer.load(into)
        for step in range(1, reps + 1):
            os.sync()
            saved = checkpointer.save(step, into, blocking=True).saved
            assert saved is not None
            row = {"save": saved.persist_s, **raw(root, saved.n_bytes)}
            row["cold"] = _seconds(lambda: checkpointer.load(into))
            (file,) = (root / "alone" / saved.folder).glob("*.bin")
            buffer = buffer or bytearray(saved.n_bytes)
            read_through_cache(file, buffer)
            row["raw warm"] = _seconds(partial(read_through_cache, file, buffer))
            row["warm"] = _seconds(lambda: checkpointer.load(into))
            rows.append(row)
    return rows


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def read_through_cache(path: Path, buffer: bytearray) -> None:
    """Read a file of the buffer's length into it, as it comes."""
    piece = 16 << 20
    with path.open("rb", buffering=0) as file, memoryview(buffer) as view:
        for at in range(0, len(buffer), piece):
            file.readinto(view[at : at + piece])


def idle_cost(training: Training, root: Path, seconds: float) -> float:
    """Return the share of one core that an engine with nothing to do takes."""
    with Checkpointer(root / "idle", keep=1, writer="process", hold_s=60.0) as checkpointer:
        checkpointer.save(0, training.state(), blocking=True)
        before = _cpu_s()
        time.sleep(seconds)
        return (_cpu_s() - before) / seconds


def _cpu_s() -> float:
    """CPU time of this process and of its children, in seconds (of which a tick is 0.01)."""
    return sum(
        sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        for pid in _pids()
    ) / os.sysconf("SC_CLK_TCK")


def slow_down(training: Training, root: Path, pairs: int, window_s: float) -> list[float]:
    """Return the time of a step, with one save a window over without, for pairs of windows."""
    ratios = []
    with Checkpointer(root / "cadence", keep=1) as checkpointer:
        checkpointer.guard(training.optimizer)
        checkpointer.save(0, training.state(), blocking=True)
        for pair in range(pairs):
            pace = {}
            for saves in (pair % 2 == 0, pair % 2 == 1):
                began, steps = time.perf_counter(), 0
                if saves:
                    checkpointer.save(pair + 1, training.state())
                while time.perf_counter() < began + window_s:
                    training.step()
                    steps += 1
                pace[saves] = (time.perf_counter() - began) / steps
                checkpointer.wait()
            ratios.append(pace[True] / pace[False])
    return ratios


def extra_memory(training: Training, root: Path) -> float:
    """Return the memory that one save in flight holds, as a share of the state."""
    with Checkpointer(root / "memory", keep=1) as checkpointer:
        before = _pss_bytes()
        saved = checkpointer.save(0, training.state(), blocking=True).saved
        assert saved is not None
        return (_pss_bytes() - before) / saved.n_bytes


def _pss_bytes() -> int:
    """Proportional memory of this process and of its children."""
    total = 0
    for pid in _pids():
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += 1024 * int(text.split("\nPss:")[1].split()[0])
    return total


def _pids() -> list[int]:
    pids = [os.getpid()]
    for thread in Path("/proc/self/task").iterdir():
        pids += [int(pid) for pid in (thread / "children").read_text().split()]
    return pids


def report_cadence(bars: Bars, training: Training, root: Path, pairs: int, window_s: float) -> None:
    ratios = slow_down(training, root, pairs, window_s)
    bars.rows["cadence"] = ratios
    print(f"time a step, windows of {window_s:.0f} s with one save / without:", ratios)
    bars.at_most("slow-down by a save every 20 s", statistics.median(ratios) - 1, 0.02)
    bars.at_most("idle: share of one core", idle_cost(training, root, 5.0), 0.005)


def report_alone(bars: Bars, training: Training, root: Path, rounds: int) -> None:
    rows = durable_alone(training, root, rounds + 2)
    bars.rows["alone"] = rows
    print("\nalone, seconds (ours / raw O_DIRECT of the same bytes)")
    table(list(rows[0]), [list(row.values()) for row in rows])
    for name, mine, other in (
        ("durable / raw O_DIRECT write", "save", "write"),
        ("cold load, checked / raw O_DIRECT read", "cold", "read"),
        ("warm load, checked / raw read", "warm", "raw warm"),
    ):
        bars.at_most(name, statistics.median(r[mine] / r[other] for r in rows), 1.25)
    bars.at_most("extra memory / state, one arena", extra_memory(training, root), 1.1)
