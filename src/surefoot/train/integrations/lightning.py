"""Lightning: a callback that says when to save, and the plugin through which its state goes.

surefoot = SurefootLightning("checkpoints")
trainer = Trainer(callbacks=[surefoot], plugins=[surefoot.plugin], enable_checkpointing=False)
trainer.fit(model, loader, ckpt_path=surefoot.newest())
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from surefoot.errors import ConfigError
from surefoot.train.integrations import rng
from surefoot.train.integrations.keeper import Keeper, library

if TYPE_CHECKING:
    _Callback: Any = object
    _CheckpointIO: Any = object
else:
    library("lightning", extra="'surefoot[lightning]'")
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO as _CheckpointIO
    from lightning.pytorch.callbacks import Callback as _Callback

_OURS = "surefoot"


class SurefootLightning(_Callback):  # type: ignore[misc]
    """Saves at the interval and on notices; resumes in the middle of an epoch.

    Lightning leaves the place in the data to the loader: use torchdata's StatefulDataLoader, or
    give your loader state_dict() and load_state_dict(). One that has none is refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        keep: int | None = None,
        interval_s: float = 300.0,
    ) -> None:
        self.keeper = Keeper(path, keep=keep, interval_s=interval_s)
        self.plugin = _Plugin(self.keeper)
        self._state: dict[str, Any] | None = None

    def newest(self) -> str | None:
        """Return a file for `ckpt_path`, None before the first checkpoint."""
        found = self.keeper.load()
        if found is None:
            return None
        folder = tempfile.mkdtemp(prefix="surefoot-pl-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._state = found[1]
        torch.save(found[1]["lightning"], Path(folder, "newest.ckpt"))
        return str(Path(folder, "newest.ckpt"))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check that the place in the data can be kept."""
        loader = trainer.train_dataloader
        if not hasattr(loader, "state_dict") or not hasattr(loader, "load_state_dict"):
            raise ConfigError(
                f"a {type(loader).__name__} cannot tell its place: a resume would repeat batches",
                hint="use torchdata.stateful_dataloader.StatefulDataLoader",
            )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the random numbers back from which a loader draws the order of an epoch."""
        if self._state is not None:
            rng.put(self._state["rng"])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """And again before an epoch that begins with the resume."""
        self.on_fit_start(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Put them back once more in the middle of an epoch: making its iterator drew from them."""
        if self._state is not None and not self._state["between_epochs"]:
            rng.put(self._state["rng"])
        self._state = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is due; end after it when the process was told to."""
        kind = self.keeper.due(trainer.global_step)
        if kind is not None:
            self._save(trainer, kind)
        if self.keeper.stopping:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last step and wait until it is durable."""
        self._save(trainer, "final")
        self.keeper.close()

    def _save(self, trainer: Any, kind: str) -> None:
        self.plugin.kind, self.plugin.between_epochs = kind, bool(trainer.is_last_batch)
        trainer.save_checkpoint(_OURS)


class _Plugin(_CheckpointIO):  # type: ignore[misc]
    """Takes what the callback has Lightning save; other checkpoints go where they always went."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__()
        self._keeper = keeper
        self.kind, self.between_epochs = "periodic", False

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Hand a state to the Checkpointer if it is for us."""
        if Path(path).name != _OURS:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        state = {
            "lightning": _plain(checkpoint),
            "rng": rng.take(),
            "between_epochs": self.between_epochs,
        }
        self._keeper.save(int(checkpoint["global_step"]), state, kind=self.kind)


def _plain(value: Any) -> Any:
    """Return a state without what only pickle could store: paths, sets and objects become text."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_plain(part) for part in value]
        return tuple(parts) if type(value) is tuple else parts
    if value is None or isinstance(value, bool | int | float | str | torch.Tensor):
        return value
    return str(value)
