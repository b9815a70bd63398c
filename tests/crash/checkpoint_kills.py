"""Kill -9 of a trainer, of its writer process, or of both, at a random moment of its saves."""

from __future__ import annotations

import os
import random
import select
import signal
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from surefoot.checkpoint import Checkpointer

N = 3_000_000
TARGETS = ("trainer", "writer", "both")


@dataclass(frozen=True)
class Outcome:
    """What a kill left: the last step that was acknowledged, and the step that loads."""

    target: str
    acknowledged: int
    loaded: int
    went_on: bool

    @property
    def lost(self) -> bool:
        return self.loaded < self.acknowledged


def weights_of(step: int) -> torch.Tensor:
    return torch.arange(N, dtype=torch.float32) * 3 + step


def train(root: Path, first: int, acks: int) -> None:
    """Save for ever, as a trainer would; writes each durable step to `acks`."""
    weights = torch.nn.Parameter(weights_of(first - 1))
    optimizer = torch.optim.SGD([weights], lr=1.0)
    checkpointer = Checkpointer(root, keep=2, writer="process")
    checkpointer.guard(optimizer)
    step = first - 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            step += 1
            weights.grad = -torch.ones(N)
            optimizer.step()
            handle = checkpointer.save(step, {"w": weights.detach()}, metadata={"step": step})
            handle.settled()
            if handle.error is None:
                os.write(acks, f"{step}\n".encode())


def kill_once(root: Path, target: str, rng: random.Random) -> Outcome:
    """Start a trainer in a fork, kill `target` at a random moment, and see what loads."""
    first = _loaded(root) + 1
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            os.close(read)
            train(root, first, write)
        finally:
            os._exit(1)
    os.close(write)
    try:
        acknowledged = _read_acks(read, first, until_s=20, enough=first)
        time.sleep(rng.uniform(0, 0.25))
        went_on = _kill(pid, target, read)
        os.waitpid(pid, 0)
        acknowledged = max(acknowledged, _read_acks(read, first, until_s=10, enough=1 << 60))
    finally:
        os.close(read)
    return Outcome(target, acknowledged, _loaded(root), went_on)


def _kill(pid: int, target: str, acks: int) -> bool:
    """Kill; returns whether what should go on did (the trainer without its writer)."""
    if target == "both":
        os.killpg(pid, signal.SIGKILL)
        return True
    children = _children(pid)
    if target == "trainer":
        os.kill(pid, signal.SIGKILL)
        return all(_ends(child) for child in children)
    for child in children:
        os.kill(child, signal.SIGKILL)
    time.sleep(0.05)
    _read_acks(acks, 0, until_s=0, enough=1 << 60)
    went_on = _read_acks(acks, 0, until_s=20, enough=1) > 0
    os.killpg(pid, signal.SIGKILL)
    return went_on


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _ends(pid: int) -> bool:
    """Whether an orphaned writer finishes and goes within ten seconds."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def _read_acks(fd: int, least: int, *, until_s: float, enough: int) -> int:
    """Return the highest acknowledged step that comes until the pipe ends or it is enough."""
    highest, deadline, text = least - 1, time.monotonic() + until_s, b""
    while highest < enough:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        raw = os.read(fd, 65536) if ready else b""
        if not raw:
            break
        text += raw
        done = [int(line) for line in text.split(b"\n")[:-1] if line]
        highest = max([highest, *done])
    return highest


def _loaded(root: Path) -> int:
    """Return the step that loads, checked bit by bit; 0 when nothing was ever saved."""
    with warnings.catch_warnings(), Checkpointer(root, read_only=True) as checkpointer:
        warnings.simplefilter("ignore")
        if not checkpointer.steps():
            return 0
        step, state, metadata = checkpointer.load()
    assert metadata == {"step": step}
    assert torch.equal(state["w"], weights_of(step)), f"step {step} is not bit-exact"
    return step
