"""Snapshots in memory: they outlive their trainer, stay in a budget, and are checked like files."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import select
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.checkpoint import Checkpointer, keeper
from surefoot.checkpoint.arena import Arena, Arenas
from surefoot.checkpoint.device import Lane
from surefoot.checkpoint.gate import ArenaGate, Fill
from surefoot.checkpoint.stage import Snapshot
from surefoot.errors import CheckpointError, CorruptError

N = 2_000_000


def state_of(step: int) -> dict[str, Any]:
    return {"w": torch.arange(N, dtype=torch.float32) * step, "step": step}


def die_after_saving(path: Path, steps: range, *, pause_s: float, **options: Any) -> None:
    """Save in a fork that kills itself; earlier saves are durable by then, the last has begun."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            torch.set_num_threads(1)  # the parent's threads are not here
            checkpointer = Checkpointer(path, writer="process", **options)
            for step in steps:
                handle = checkpointer.save(step, state_of(step))
                if step != steps[-1]:
                    handle.wait(60)
            checkpointer.barrier()
            time.sleep(pause_s)
            os.killpg(0, signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def flip_a_bit(path: Path, step: int) -> None:
    (file,) = path.glob(f"step-{step:012d}-*/rank-00000.bin")
    with file.open("r+b") as data:
        data.seek(N)
        byte = data.read(1)
        data.seek(N)
        data.write(bytes([byte[0] ^ 1]))


def test_a_restarted_trainer_loads_from_the_memory_that_the_dead_one_left(tmp_path: Path) -> None:
    """The whole process group is killed; the last snapshot becomes durable and stays in memory."""
    die_after_saving(tmp_path, range(1, 4), pause_s=0.3, hold_s=60.0)
    with Checkpointer(tmp_path, writer="process") as restarted:  # waits for the dead one's writer
        assert restarted.latest() == 3
        flip_a_bit(tmp_path, 3)  # the file is bad now: what loads can only come from memory
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step, state, _ = restarted.load({"w": torch.zeros(N)})
        assert step == 3 and torch.equal(state["w"], state_of(3)["w"])
        restarted.save(4, state_of(4), blocking=True)  # the keeper is dismissed by the first save
        name = f"step-{3:012d}"
        folder = next(p.name for p in tmp_path.iterdir() if p.name.startswith(name))
        assert keeper.find(str(tmp_path), folder, "rank-00000.bin", 4 * N) is None
        with pytest.warns(UserWarning, match="step 3"), pytest.raises(CorruptError):
            restarted.load(step=3)


def test_whenever_the_trainer_is_killed_a_restart_has_what_was_acknowledged(tmp_path: Path) -> None:
    """Kill -9 of the whole group at random moments, and a restart at once."""
    rng, acknowledged = random.Random(7), 0
    for _ in range(5):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                torch.set_num_threads(1)  # the parent's threads are not here
                checkpointer = Checkpointer(tmp_path, keep=2, writer="process", hold_s=60.0)
                for step in itertools.count(acknowledged + 1):
                    checkpointer.save(step, state_of(step)).wait(60)
                    os.write(write, step.to_bytes(8, "big"))
            finally:
                os._exit(1)
        os.close(write)
        assert select.select([read], [], [], 60)[0], "the first save is not durable after a minute"
        acknowledged = int.from_bytes(os.read(read, 8), "big")
        time.sleep(rng.uniform(0, 0.15))
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while raw := os.read(read, 8):
            acknowledged = int.from_bytes(raw, "big")
        os.close(read)
        with Checkpointer(tmp_path, keep=2) as restarted:
            step, state, _ = restarted.load()
            assert step >= acknowledged and torch.equal(state["w"], state_of(step)["w"])
            acknowledged = step
    keeper.dismiss(str(tmp_path), "rank-00000.bin")


def test_a_data_loaders_fork_that_outlives_its_trainer_holds_nothing_up(tmp_path: Path) -> None:
    """A fork has the trainer's descriptors, so the writer must not wait for them to close."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        checkpointer = Checkpointer(tmp_path, writer="process", hold_s=60.0)
        checkpointer.save(1, state_of(1)).wait(60)
        loader = os.fork()
        if loader == 0:
            time.sleep(100)
            os._exit(0)
        os.write(write, loader.to_bytes(8, "big"))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    loader = int.from_bytes(os.read(read, 8), "big")
    try:
        began = time.monotonic()
        with Checkpointer(tmp_path, read_only=True) as restarted:
            assert restarted.latest() == 1 and time.monotonic() - began < 30
        keeper.dismiss(str(tmp_path), "rank-00000.bin")  # only a keeper without a trainer goes
        deadline = time.monotonic() + 30
        while keeper._ask(str(tmp_path), "rank-00000.bin", {"settle": 1}, 5) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.kill(loader, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_a_trainer_that_says_goodbye_leaves_nothing_in_memory(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, writer="process", hold_s=60.0) as checkpointer:
        saved = checkpointer.save(1, state_of(1), blocking=True).saved
        pid = checkpointer._pipeline._process.pid
        found = keeper.find(str(tmp_path), saved.folder, "rank-00000.bin", saved.n_bytes)
        assert found is not None
        found.close()
    assert keeper.find(str(tmp_path), saved.folder, "rank-00000.bin", saved.n_bytes) is None
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("damage", ["a bit", "half copied"])
def test_memory_that_is_not_right_is_left_for_the_file(tmp_path: Path, damage: str) -> None:
    with Checkpointer(tmp_path, writer="thread") as checkpointer:
        saved = checkpointer.save(1, state_of(1), blocking=True).saved
    raw = (tmp_path / saved.folder / "rank-00000.bin").read_bytes()
    arena = Arena(len(raw))
    arena.memory[: len(raw)] = raw
    arena.mark(7, len(raw), Fill.COPYING if damage == "half copied" else Fill.WHOLE)
    if damage == "a bit":
        arena.memory[N] ^= 4
    held = keeper.Keeper({1: mmap.mmap(arena.fd, 0)}, {1: arena.fd})
    held.open_door(str(tmp_path), "rank-00000.bin")
    held.keep(keeper.Kept(str(tmp_path), saved.folder, "rank-00000.bin", len(raw), 1, 7))
    thread = threading.Thread(target=held.wait, args=(None, 60.0))
    thread.start()
    try:
        with Checkpointer(tmp_path, read_only=True) as checkpointer:
            if damage == "a bit":
                with pytest.warns(UserWarning, match="the file is read instead"):
                    loaded = checkpointer.load()[1]
            else:
                loaded = checkpointer.load()[1]
        assert torch.equal(loaded["w"], state_of(1)["w"])
    finally:
        keeper.dismiss(str(tmp_path), "rank-00000.bin")
        thread.join(30)
        arena.close()
    assert not thread.is_alive()


def test_a_copy_that_its_trainer_never_ended_is_not_committed() -> None:
    import socket

    ours, theirs = socket.socketpair()
    arena = Arena(8192)
    memory = mmap.mmap(arena.fd, 0)
    gate = ArenaGate(memory, 3, theirs)
    arena.mark(3, 4096, Fill.COPYING)
    gate.ready(4096)
    ours.close()
    for wait in (lambda: gate.ready(8192), gate.whole):
        with pytest.raises(CheckpointError, match="the trainer died"):
            wait()
    arena.mark(3, 8192, Fill.VOID)
    with pytest.raises(CheckpointError, match="gave the copy up"):
        gate.whole()
    arena.mark(3, 8192, Fill.WHOLE)
    gate.whole()
    gate.close()
    theirs.close()
    memory.close()
    arena.close()


def test_arenas_stay_within_the_stated_budget(tmp_path: Path) -> None:
    arenas = Arenas(2, budget_bytes=3 << 20)
    first, second = arenas.take(1 << 20), arenas.take(1 << 20)
    arenas.give_back(first)
    arenas.give_back(second)
    wide = arenas.take(2 << 20)  # takes the place of one, and beside the other it just fits
    arenas.give_back(wide)
    third = arenas.take(3 << 20)
    with pytest.raises(CheckpointError, match="memory_budget_bytes allows"):
        arenas.give_back(third)
        arenas.take(4 << 20)
    arenas.close()
    with (
        Checkpointer(tmp_path, arenas=2, memory_budget_bytes=5 * N) as checkpointer,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        for step in range(1, 4):  # room for one arena: saves take turns
            checkpointer.save(step, state_of(step))
        checkpointer.wait()
        assert checkpointer.latest() == 3
        with pytest.raises(CheckpointError, match=r"needs 0\.02 GB"):
            checkpointer.save(4, {"w": torch.zeros(2 * N)})
        assert checkpointer.latest() == 3


def test_a_snapshot_through_a_lane_is_whole_before_it_is_used() -> None:
    """The CPU's streams stand in for CUDA's: the order of the calls, not their speed."""
    source = torch.arange(1000.0)
    arena = Arena(4096)
    lane = Lane(torch.device("cpu"))
    from surefoot.checkpoint.device import DeviceCopy
    from surefoot.checkpoint.plan import plan_save

    (slot,) = plan_save({"w": source}).slots
    DeviceCopy(arena, slot, source, lane)()
    lane.hold_back()
    lane.finish()
    assert torch.equal(arena.view(slot, source), source)
    snapshot = Snapshot(arena, [], [(slot, source + 1)])
    snapshot.work()
    assert torch.equal(arena.view(slot, source), source + 1) and not snapshot.torn
    arena.close()
