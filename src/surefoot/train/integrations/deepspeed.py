"""DeepSpeed: its engine saves itself; step, place in the data and random numbers ride along.

    engine, *_ = deepspeed.initialize(...)
    with SurefootDeepSpeed(engine, "checkpoints") as surefoot:
        state = surefoot.resume()             # {} at first, then what was given to `after_step`
        for step in range(surefoot.step, total):
            ...; engine.backward(loss); engine.step()
            surefoot.after_step(step + 1, epoch=epoch)

Nothing of DeepSpeed is imported: save_checkpoint and load_checkpoint of its engine are all it needs
(0.19). The shards are DeepSpeed's own files: without checksums and without a fence of ours.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from surefoot.errors import CheckpointError
from surefoot.train.integrations import rng
from surefoot.train.integrations.keeper import Keeper

_OURS = "surefoot"


class SurefootDeepSpeed:
    """Says when to save, on all ranks alike, and puts back what DeepSpeed does not keep."""

    def __init__(
        self,
        engine: Any,
        path: str | os.PathLike[str] | None = None,
        *,
        interval_s: float = 300.0,
    ) -> None:
        self.keeper = Keeper(path, interval_s=interval_s)
        self._engine = engine
        self.step = 0
        """Steps done."""

    def resume(self) -> dict[str, Any]:
        """Load the newest checkpoint; returns what was given with it, {} where there is none.

        Raises CheckpointError for a checkpoint that was saved without this class, or by another
        number of ranks.
        """
        folder, client = self._engine.load_checkpoint(self.keeper.path)
        if folder is None:
            return {}
        ours = client.get(_OURS)
        if ours is None:
            raise CheckpointError(f"{folder} was not saved by Surefoot: its step is unknown")
        if ours["world"] != self.keeper.world:
            raise CheckpointError(
                f"{folder} was saved by {ours['world']} ranks, and there are {self.keeper.world}",
                hint="convert it to DeepSpeed's universal format to go on with another number",
            )
        self.step = int(ours["step"])
        rng.put(ours["rng"])
        state: dict[str, Any] = ours["given"]
        return state

    def after_step(self, step: int, **given: Any) -> bool:
        """Save if it is due; every rank must call it. Returns whether it was saved.

        Raises SystemExit with 143 after the save that a SIGTERM asked for.
        """
        self.step = step
        kind = self.keeper.due(step)
        if kind is not None:
            self.save(**given)
        if self.keeper.stopping:
            raise SystemExit(143)
        return kind is not None

    def save(self, **given: Any) -> None:
        """Save now, on every rank; returns when it is durable."""
        ours = {"step": self.step, "world": self.keeper.world, "rng": rng.take(), "given": given}
        self._engine.save_checkpoint(
            self.keeper.path, tag=f"step-{self.step}", client_state={_OURS: ours}
        )
        self.keeper.answered(self.step)

    def __enter__(self) -> SurefootDeepSpeed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.keeper.close()
