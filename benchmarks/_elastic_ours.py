"""Surefoot under faults: the real controller, agents and Session on the local provider's VMs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _elastic_rows import Row, Rows
from _elastic_worker import BATCH, SAMPLES
from surefoot.checkpoint import Checkpointer
from surefoot.providers.local.provider import LocalProvider
from surefoot.traces import read_trace
from surefoot.train.sampler import DataOrder

HERE = Path(__file__).parent


class Park:
    """A run of ours: its controller process, what it says, and its workers' steps."""

    def __init__(self, folder: Path, *, nodes: int, vms: str, **env: str) -> None:
        self.folder, self.nodes, self.vms = folder, nodes, vms
        self._env = {**os.environ, "ELASTIC_FOLDER": str(folder), **env}
        self.rows = Rows(folder)
        self.events: list[Row] = []
        self.start()

    def start(self) -> None:
        """Start the controller, the first or one that takes over."""
        with (self.folder / "lead.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "_elastic_lead.py", self.folder, str(self.nodes), self.vms],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def _listen(self, lines: Any) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):
                self.events.append(json.loads(line))

    def do(self, *words: str) -> float:
        """Give the controller process a command; returns when (monotonic s)."""
        assert self.process.stdin is not None
        now_s = time.monotonic()
        with contextlib.suppress(OSError):
            self.process.stdin.write(" ".join(words) + "\n")
            self.process.stdin.flush()
        return now_s

    def settle(self, world: int, limit_s: float = 150.0) -> Row:
        """Wait until a group of this size trains; returns its newest step."""
        now_s, row = time.monotonic(), None
        while row is None and time.monotonic() < now_s + limit_s and self.process.poll() is None:
            row = self.rows.wait(lambda r: r["world"] == world, 1.0, after=now_s)
        if row is None:
            raise TimeoutError(f"no step in a world of {world} within {limit_s} s")
        return row

    def end(self) -> None:
        """End the run and everything in it."""
        if self.process.poll() is None:
            self.do("stop")
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        market = read_trace(self.folder / "market.yaml")  # whatever is left is taken over and ended
        LocalProvider(market, state_dir=self.folder / "vms", vms=self.vms).close(kill=True)

    def miscounted(self) -> tuple[int, int]:
        """Return (samples repeated, samples skipped) as the saved weights themselves count them."""
        step, state, _ = Checkpointer(self.folder / "checkpoints", read_only=True).load()
        order = DataOrder(SAMPLES, BATCH, seed=1)
        want = Counter(int(i) for s in range(step) for i in order.ids(s))
        got = [round(v) for v in state["model"]["visits"].tolist()]
        more = sum(max(0, got[i] - want[i]) for i in range(SAMPLES))
        return more, sum(max(0, want[i] - got[i]) for i in range(SAMPLES))


@contextlib.contextmanager
def park(folder: Path, *, nodes: int, vms: str, **env: str) -> Iterator[Park]:
    """Yield a run of ours that trains in full strength; end it whatever happens."""
    made = Park(folder, nodes=nodes, vms=vms, **env)
    try:
        made.settle(nodes, 180)
        yield made
    finally:
        made.end()


def after_loss(made: Park, at_s: float, limit_s: float = 30.0) -> dict[str, float]:
    """Return time to the first step of a smaller group, and what the loss cost."""
    before = made.nodes
    first = made.rows.wait(lambda r: r["world"] < before, limit_s, after=at_s)
    if first is None:
        return {"first_step_s": float("nan")}
    lost = made.rows.lost_steps(first)
    return {"first_step_s": first["t"] - at_s, "lost_steps": lost}


def after_addition(made: Park) -> dict[str, float]:
    """Wait until the replacement trains too; return the survivors' longest pause."""
    first = made.settle(made.nodes)
    members = set(made.rows.group().values())
    joined = made.rows.wait(
        lambda r: r["world"] == made.nodes, 5, after=_last_smaller(made, first["t"])
    )
    assert joined is not None
    began = {row["vm"]: row for row in reversed(made.rows.read())}
    old = [vm for vm in members if began[vm]["t"] < joined["t"] - 1.0]
    return {"pause_s": max((made.rows.pause(vm, joined["t"]) for vm in old), default=float("nan"))}


def _last_smaller(made: Park, before_s: float) -> float:
    smaller = [r["t"] for r in made.rows.read() if r["world"] < made.nodes and r["t"] < before_s]
    return max(smaller, default=0.0)


def play(made: Park, *, down_s: float) -> dict[str, dict[str, float]]:
    """Inflict one fault after another on a run; return what each cost."""
    found: dict[str, dict[str, float]] = {}
    for name in ("kill", "poweroff", "cut", "rank 0 killed", "two at once"):
        found[name] = _fault(made, name)
    found["lost while re-forming"] = _in_a_row(made)
    found["lost during a save"] = _in_a_save(made)
    found["cut for 0.4 s"] = _blip(made)
    found["controller down"] = _controller(made, down_s)
    return found


def _fault(made: Park, name: str) -> dict[str, float]:
    time.sleep(1.5)
    ranks = made.rows.group()
    last = made.nodes - 1
    victims = {"rank 0 killed": [0], "two at once": [0, last]}.get(name, [last])
    verb = name if name in ("poweroff", "cut") else "kill"
    at_s = min(made.do(verb, ranks[rank]) for rank in victims)
    cost = after_loss(made, at_s)
    if verb == "cut":
        time.sleep(2.0)
        back_s = made.do("uncut", ranks[last])
    cost |= after_addition(made)
    if verb == "cut":
        late = [r for r in made.rows.read() if r["vm"] == ranks[last] and r["t"] > at_s + 1.0]
        cost["rejoin_s"] = made.settle(made.nodes)["t"] - back_s
        cost["steps_while_cut"] = sum(r["stepped"] for r in late)
    return cost


def _blip(made: Park) -> dict[str, float]:
    """Cut a VM off for less than counts as lost: the group waits, and stays what it is."""
    time.sleep(1.5)
    ranks, newest = made.rows.group(), made.rows.read()[-1]["step"]
    at_s = made.do("cut", ranks[made.nodes - 1])
    time.sleep(0.4)
    made.do("uncut", ranks[made.nodes - 1])
    time.sleep(3.0)
    after = [r for r in made.rows.read() if r["t"] > at_s + 0.4 and r["step"] > newest]
    return {
        "first_step_s": min((r["t"] for r in after), default=float("nan")) - at_s,
        "lost_steps": made.rows.lost_steps(after[0]) if after else float("nan"),
        "same": float({r["world"] for r in after} == {made.nodes}),
    }


def _in_a_row(made: Park) -> dict[str, float]:
    time.sleep(1.5)
    ranks = made.rows.group()
    made.do("kill", ranks[made.nodes - 1])
    time.sleep(0.15)
    at_s = made.do("kill", ranks[1])
    first = made.rows.wait(lambda r: r["world"] <= made.nodes - 2, 30, after=at_s)
    cost = {"first_step_s": float("nan") if first is None else first["t"] - at_s}
    if first is not None:
        cost["lost_steps"] = made.rows.lost_steps(first)
    return cost | after_addition(made)


def _in_a_save(made: Park) -> dict[str, float]:
    time.sleep(1.5)
    ranks = made.rows.group()
    made.do("save")
    time.sleep(0.08)  # a step or so: the copy is taken, the write is on its way
    at_s = made.do("kill", ranks[0])
    return after_loss(made, at_s) | after_addition(made)


def _controller(made: Park, down_s: float) -> dict[str, float]:
    time.sleep(1.5)
    made.process.kill()
    made.process.wait()
    began_s = time.monotonic()
    time.sleep(down_s)
    steps = [r for r in made.rows.read() if r["t"] > began_s and r["stepped"]]
    pids = {r["pid"] for r in steps}
    gaps = [made.rows.pause(vm, began_s + down_s / 2) for vm in {r["vm"] for r in steps}]
    count = len({r["step"] for r in steps})
    made.start()
    back_s = time.monotonic()
    while not any(e["event"] == "RunStarted" and e["t"] > back_s for e in list(made.events)):
        if time.monotonic() > back_s + 30:
            raise TimeoutError("the controller did not come back")
        time.sleep(0.05)
    time.sleep(3.0)
    same = {r["pid"] for r in made.rows.read() if r["t"] > time.monotonic() - 1.5} == pids
    lost = _fault(made, "kill")  # it leads again
    return {**lost, "steps": count, "longest_gap_s": max(gaps, default=9e9), "same": float(same)}
