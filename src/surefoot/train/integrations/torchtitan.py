"""torchtitan: what stands in for its trainer's checkpointer, with the same five calls.

    trainer = config.build()
    trainer.checkpointer = SurefootTitan.of(trainer, "checkpoints")
    trainer.train()

Nothing of torchtitan is imported: this keeps to the interface of its BaseCheckpointManager (0.3).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from surefoot.checkpoint import Checkpointer
from surefoot.errors import CheckpointError
from surefoot.train.integrations import rng
from surefoot.train.integrations.keeper import Keeper


class SurefootTitan:
    """Saves model parts, optimizers, schedulers, the loader of every rank, and the step.

    Sharded tensors are written by the ranks that hold them, and may be loaded by another number
    of ranks; the loaders' places need the number they were saved with.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        model_parts: Sequence[torch.nn.Module],
        optimizers: Any,
        lr_schedulers: Any,
        dataloader: Any,
        states: Mapping[str, Any],
        keep: int | None = None,
        interval_s: float = 300.0,
    ) -> None:
        self.keeper = Keeper(path, keep=keep, interval_s=interval_s, split=True)
        self._models, self._loader = list(model_parts), dataloader
        self._parts = {"optimizer": optimizers, "lr_scheduler": lr_schedulers, **states}

    @staticmethod
    def of(trainer: Any, path: str | os.PathLike[str] | None = None, **more: Any) -> SurefootTitan:
        """Return one for all that a torchtitan Trainer trains."""
        return SurefootTitan(
            path,
            model_parts=trainer.model_parts,
            optimizers=trainer.optimizers,
            lr_schedulers=trainer.lr_schedulers,
            dataloader=trainer.dataloader,
            states={"train_state": trainer},
            **more,
        )

    # -- what a torchtitan trainer calls ---------------------------------------------------------

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        """Save if it is due, or if this is the last step; returns whether one was begun.

        Raises SystemExit with 143 after the save that a SIGTERM asked for.
        """
        kind = "final" if last_step else self.keeper.due(curr_step)
        if kind is None:
            return False
        self.keeper.save(curr_step, self._take(), kind=kind)
        if self.keeper.stopping:
            self.keeper.close()
            raise SystemExit(143)
        return True

    def load(self, step: int = -1) -> bool:
        """Restore `step`, or the newest good checkpoint for -1; returns whether there was one."""
        reader = Checkpointer(self.keeper.path, read_only=True, drain_to=self.keeper.second)
        try:
            if not reader.steps():
                return False
            state = reader.load(self._take(), step=None if step < 0 else step)[1]
        finally:
            reader.close()
        self._put(state)
        return True

    def maybe_wait_for_staging(self) -> None:
        """Return when the copy in flight is taken: called before the optimizer writes."""
        self.keeper.checkpointer.barrier()

    def maybe_wait_for_saving(self) -> None:
        """Return when no save is in flight; raises the error of one that failed."""
        self.keeper.checkpointer.wait()

    def close(self) -> None:
        """Finish what is on its way."""
        self.keeper.close()

    # -- inside ----------------------------------------------------------------------------------

    def _take(self) -> dict[str, Any]:
        model = {k: v for part in self._models for k, v in part.state_dict().items()}
        state = {name: part.state_dict() for name, part in self._parts.items()}
        ranks = _gathered({"loader": _stored(self._loader.state_dict()), "rng": rng.take()})
        return {"model": model, **state, "ranks": {str(i): each for i, each in enumerate(ranks)}}

    def _put(self, state: Mapping[str, Any]) -> None:
        for part in self._models:
            part.load_state_dict(state["model"], strict=False)
        for name, each in self._parts.items():
            each.load_state_dict(state[name])
        saved, here = len(state["ranks"]), self.keeper.world
        if saved != here:
            raise CheckpointError(
                f"the loaders' places were saved by {saved} ranks, and there are {here}",
                hint="go on with as many ranks as before",
            )
        mine = state["ranks"][str(self.keeper.rank)]
        self._loader.load_state_dict(_unstored(mine["loader"]))
        rng.put(mine["rng"])


def _gathered(value: Any) -> list[Any]:
    """Return every rank's value: each has a place in the data of its own."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def _stored(value: Any) -> Any:
    """Return a state with bytes as tensors: a checkpoint holds tensors and plain values."""
    if isinstance(value, bytes):
        return {"__bytes__": torch.frombuffer(bytearray(value), dtype=torch.uint8)}
    if isinstance(value, Mapping):
        return {key: _stored(part) for key, part in value.items()}
    return [_stored(part) for part in value] if isinstance(value, list | tuple) else value


def _unstored(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "__bytes__" in value:
            return bytes(value["__bytes__"].numpy())
        return {key: _unstored(part) for key, part in value.items()}
    return [_unstored(part) for part in value] if isinstance(value, list) else value
