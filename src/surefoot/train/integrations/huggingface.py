"""Hugging Face Trainer: a callback that saves without stopping, and the way back from it.

surefoot = SurefootCallback("checkpoints")
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[surefoot])
trainer.train(resume_from_checkpoint=surefoot.newest())
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from surefoot.train.integrations import rng
from surefoot.train.integrations.keeper import Keeper, library

if TYPE_CHECKING:
    _Base: Any = object
else:
    _Base = library("transformers", extra="'surefoot[hf]'").TrainerCallback


class SurefootCallback(_Base):  # type: ignore[misc]
    """Saves model, optimizer, scheduler, random numbers and the Trainer's own state.

    `path` (default: SUREFOOT_CHECKPOINT) is a folder or URL. Set `save_strategy="no"`: saves come
    from the interval and from notices. Models that are sharded (FSDP, DeepSpeed) or wrapped by
    PEFT are saved by the Trainer itself, into its output_dir, at the same moments.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        keep: int | None = None,
        interval_s: float = 300.0,
    ) -> None:
        self.keeper = Keeper(path, keep=keep, interval_s=interval_s)

    def newest(self) -> str | None:
        """Return a folder for `resume_from_checkpoint`, None before the first checkpoint."""
        found = self.keeper.load()
        if found is None:
            return None
        folder = tempfile.mkdtemp(prefix="surefoot-hf-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        _write_folder(Path(folder), found[1])
        return folder

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        """Save if it is due; end after it when the process was told to."""
        kind = self.keeper.due(state.global_step)
        if kind is not None:
            if _is_whole(args, more["model"]):
                self._save(state, control, more, kind)
            else:
                control.should_save = True
        if self.keeper.stopping:
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The Trainer has saved a state that is not ours to take apart."""
        if not _is_whole(args, more["model"]):
            self.keeper.answered(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Save the last step and wait until it is durable."""
        if _is_whole(args, more["model"]):
            self._save(state, control, more, "final")
        self.keeper.close()

    def _save(self, state: Any, control: Any, more: dict[str, Any], kind: str) -> None:
        state.stateful_callbacks["TrainerControl"] = control.state()
        body = {
            "model": _unwrapped(more["model"]).state_dict(),
            "optimizer": more["optimizer"].state_dict(),
            "scheduler": more["lr_scheduler"].state_dict(),
            "rng": rng.take(),
            "trainer": _as_json(state),
        }
        self.keeper.save(state.global_step, body, kind=kind)


def _unwrapped(model: Any) -> Any:
    return model.module if hasattr(model, "module") else model


def _is_whole(args: Any, model: Any) -> bool:
    """Whether rank 0 holds all of a model as plain tensors."""
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        return False
    return not hasattr(_unwrapped(model), "peft_config")


def _as_json(state: Any) -> str:
    with tempfile.TemporaryDirectory(prefix="surefoot-hf-") as folder:
        state.save_to_json(f"{folder}/state.json")
        return Path(folder, "state.json").read_text()


def _write_folder(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint in the Trainer's own layout."""
    generators: dict[str, Any] = {
        "python": rng.python_state(state["rng"]),
        "numpy": rng.numpy_state(state["rng"]),
        "cpu": state["rng"]["torch"],
    }
    if "cuda" in state["rng"]:
        generators["cuda"] = state["rng"]["cuda"]
    torch.save(state["model"], folder / "pytorch_model.bin")
    torch.save(state["optimizer"], folder / "optimizer.pt")
    torch.save(state["scheduler"], folder / "scheduler.pt")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    name = "rng_state.pth" if world <= 1 else f"rng_state_{rank}.pth"
    torch.save(generators, folder / name)
    (folder / "trainer_state.json").write_text(state["trainer"])
