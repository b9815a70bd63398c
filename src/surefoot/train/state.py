"""The training state as one nested value, and how all members of a group come to hold the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from surefoot.core.wire import Formed
from surefoot.errors import CheckpointError, ConfigError
from surefoot.train.feed import Feed
from surefoot.train.group import Group
from surefoot.train.saver import Saver
from surefoot.train.stream import StreamFeed
from surefoot.train.transfer import pairs, recv_state, send_state
from surefoot.train.watchdog import Watchdog

FRESH = -1
"""The step of a worker that holds no state of the run yet."""


class TrainingState:
    """Model, optimizer, scheduler, extras and the place in the data. `step` counts steps done."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        extra: Mapping[str, Any],
        feed: Feed | StreamFeed,
    ) -> None:
        self._parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
        if scheduler is not None:
            self._parts["scheduler"] = scheduler
        taken = self._parts.keys() | {"data"}
        for name, part in extra.items():
            if name in taken:
                raise ConfigError(f"extra={{{name!r}: ...}}: the name is taken, choose another")
            self._parts[name] = part
        self._feed = feed
        self.step = FRESH

    def take(self) -> dict[str, Any]:
        """Return the state; tensors are the live ones, not copies."""
        state = {name: part.state_dict() for name, part in self._parts.items()}
        state["data"] = {"step": self.step} | self._feed.describe(self.step)
        return state

    def put(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises CheckpointError naming parts that one of the two lacks."""
        ours, theirs = self._parts.keys() | {"data"}, state.keys()
        if ours != theirs:
            lacks, more = sorted(ours - theirs), sorted(theirs - ours)
            raise CheckpointError(
                f"the saved state lacks {lacks or 'nothing'} and has {more or 'nothing'} beyond"
                " what this script trains",
                hint="give Session the model, optimizer, scheduler and extra of the run before",
            )
        self._feed.check(state["data"])
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self._feed.seek(state["data"])
        self.step = int(state["data"]["step"])

    def sync(self, group: Group, saver: Saver, watch: Watchdog) -> Formed:
        """Bring all members to the newest state that is alive, saved, or fresh, in this order.

        A checkpoint newer than every live state wins: then the live ones were left behind by a
        partition. Raises GroupError when a member is lost meanwhile.
        """
        saver.settle_copy()
        saved = saver.newest() if group.rank == 0 else FRESH
        rows = group.gather_rows([self.step, saved])
        live, newest_saved = max(row[0] for row in rows), rows[0][1]
        source, restore_ms, lost = "live", 0, 0
        if live < newest_saved or live == FRESH:
            with watch.phase("in restoring the newest checkpoint"):
                source, restore_ms = self._restore(saver)
            lost = max(0, live - self.step) if source == "checkpoint" else 0
            if self.step == FRESH:
                self.step = 0
            rows = [[r[0]] for r in group.gather_rows([self.step])]
        steps = [row[0] for row in rows]
        newest = max(steps)
        if source == "fresh" and newest == 0:
            steps = [0] + [FRESH] * (group.world - 1)  # models built apart differ: rank 0's counts
        if source == "fresh" and newest > 0:
            source = "checkpoint"  # a member could load one, this worker could not
        self._share(group, steps, newest)
        return Formed(group.number, newest, group.world, lost, source, 0, restore_ms)

    def _restore(self, saver: Saver) -> tuple[str, int]:
        """Load the newest checkpoint, if there is one; returns (source, ms)."""
        started_s = time.monotonic()
        loaded = saver.load()
        if loaded is None:
            return "fresh", 0
        self.put(loaded[1])
        return "checkpoint", round((time.monotonic() - started_s) * 1000)

    def _share(self, group: Group, steps: list[int], newest: int) -> None:
        for giver, taker in pairs(steps, newest):
            if group.rank == giver:
                send_state(group, taker, self.take())
            elif group.rank == taker:
                self.put(recv_state(group, giver))
