"""Accelerate: a loop over steps that resumes at the right batch, and saves by itself.

accelerator = Accelerator()
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
with SurefootLoop(accelerator, "checkpoints") as loop:
    for step, batch in loop.steps(loader, total=1000):
        accelerator.backward(model(**batch).loss)
        optimizer.step(); scheduler.step(); optimizer.zero_grad()
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from surefoot.errors import CheckpointError, ConfigError
from surefoot.train.integrations import rng
from surefoot.train.integrations.keeper import Keeper, library

_OURS = frozenset({"rng", "epoch_rng"})


class SurefootLoop:
    """Keeps all that was prepared or registered with an Accelerator, and the place in the data.

    `path` (default: SUREFOOT_CHECKPOINT) is a folder or URL. Data-parallel training only: models
    that are sharded over ranks (FSDP, DeepSpeed) are refused.
    """

    def __init__(
        self,
        accelerator: Any,
        path: str | os.PathLike[str] | None = None,
        *,
        keep: int | None = None,
        interval_s: float = 300.0,
    ) -> None:
        self._library = library("accelerate", extra="'surefoot[hf]'")
        kind = str(accelerator.distributed_type).rpartition(".")[2]
        if kind not in ("NO", "MULTI_GPU", "MULTI_CPU"):
            raise ConfigError(
                f"SurefootLoop cannot take a model apart that is spread by {kind}",
                hint="save with accelerator.save_state when $SUREFOOT_SAVE_FILE appears",
            )
        self._accelerator = accelerator
        self.keeper = Keeper(path, keep=keep, interval_s=interval_s)
        self._epoch_rng: Mapping[str, Any] = {}
        self.step = 0
        """Steps done."""

    def steps(self, loader: Any, total: int) -> Iterator[tuple[int, Any]]:
        """Yield (step, batch) for every step still to do; a prepared loader with a length.

        A step is one batch. Ends early, saved, when the process was told to end.
        """
        length = len(loader)
        if not length:
            raise ConfigError("the loader is empty")
        here = self._restore()
        while self.step < total and not self.keeper.stopping:
            epoch, begun = divmod(self.step, length)
            if here is not None:  # the order of an epoch is drawn when it begins
                rng.put(here["epoch_rng"] if begun else here["rng"])
            self._epoch_rng = rng.take()
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(epoch)
            rest = self._library.skip_first_batches(loader, begun) if begun else loader
            if begun and hasattr(rest, "set_epoch"):
                rest.set_epoch(epoch)
            for batch in rest:
                if here is not None and begun:  # what was skipped has drawn as well
                    rng.put(here["rng"])
                here = None
                yield self.step, batch
                self._done(total)
                if self.step >= total or self.keeper.stopping:
                    break
        self._save("final")

    def close(self) -> None:
        """Finish what is on its way."""
        self.keeper.close()

    def __enter__(self) -> SurefootLoop:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------

    def _done(self, total: int) -> None:
        self.step += 1
        kind = self.keeper.due(self.step)
        if kind is not None and self.step < total:
            self._save(kind)

    def _parts(self) -> dict[str, Any]:
        a = self._accelerator
        parts = {f"model{i}": a.unwrap_model(m) for i, m in enumerate(a._models)}
        parts |= {f"optimizer{i}": o for i, o in enumerate(a._optimizers)}
        parts |= {f"scheduler{i}": s for i, s in enumerate(a._schedulers)}
        parts |= {f"custom{i}": c for i, c in enumerate(a._custom_objects)}
        if a.scaler is not None:
            parts["scaler"] = a.scaler
        return parts

    def _save(self, kind: str) -> None:
        body: dict[str, Any] = {name: part.state_dict() for name, part in self._parts().items()}
        self.keeper.save(
            self.step, body | {"rng": rng.take(), "epoch_rng": self._epoch_rng}, kind=kind
        )

    def _restore(self) -> Mapping[str, Any] | None:
        """Take over the newest checkpoint; returns its random numbers, None if none was saved."""
        found = self.keeper.load()
        if found is None:
            return None
        self.step, state = found
        parts = self._parts()
        lacks, more = parts.keys() - state.keys(), state.keys() - parts.keys() - _OURS
        if lacks or more:
            raise CheckpointError(
                f"the checkpoint lacks {sorted(lacks) or 'nothing'} and has"
                f" {sorted(more) or 'nothing'} beyond what was prepared",
                hint="prepare the same objects in the same order as in the run before",
            )
        for name, part in parts.items():
            part.load_state_dict(state[name])
        return {name: state[name] for name in _OURS}
