"""How a stream of global batches, which nobody can index, is shared by a fleet that changes.

Every worker reads the whole stream and computes its rows of each batch: so all stand at the same
place whoever joins or leaves, and each sample counts once. The place goes into the checkpoint and
to those who join: the state of the loader or data set where they have one (torchdata's
StatefulDataLoader, Hugging Face's streaming data sets), else a count of batches to read past.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from surefoot.errors import ConfigError
from surefoot.train.sampler import Cut, Share

_log = logging.getLogger("surefoot.train")

_TELL_AFTER_S = 5.0


class StreamFeed:
    """Batches of one rank out of a loader that can only be read from front to back."""

    def __init__(self, loader: Any, seed: int) -> None:
        self.seed = seed
        self.batch_size: int | None = getattr(loader, "batch_size", None)
        self._loader = loader
        self._source = getattr(loader, "dataset", None)
        _refuse_divided(self._source)
        self._stateful = _stateful(loader, self._source)
        self._epoch, self._index = 0, 0
        self._stream: Iterator[Any] | None = None
        self._held: tuple[int, Any, int] | None = None
        self._before: dict[str, Any] = {}

    def shares(self, step: int, cut: Cut) -> list[Share]:
        """Return a rank's parts of `step`; reads the step's batch."""
        _, size = self._read(step)
        return [cut.places(size, number) for number in range(len(cut.parts))]

    def batch(self, step: int, stop: int, cut: Cut, number: int = 0) -> Any:
        """Return the number-th of a rank's parts of `step`."""
        batch, size = self._read(step)
        places = cut.places(size, number).ids
        return take_rows(batch, places[0], places[-1] + 1)

    def rewind(self) -> None:
        """A step is done again: the batch is still here."""

    def describe(self, step: int) -> dict[str, Any]:
        """Return where the stream stands before the batch of `step`."""
        read = self._held is not None and self._held[0] == step
        place = self._before if read else self._place()
        return {"seed": self.seed, "batch": self.batch_size, "stream": place}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise ConfigError if the saved run read other data or other batches."""
        if "stream" not in saved:
            raise ConfigError(
                "the run was begun with a data set that can be indexed and goes on with a stream",
                hint="give the data set of the run before, or a new checkpoint path",
            )
        check_same(saved, {"seed": self.seed, "batch": self.batch_size})

    def seek(self, saved: Mapping[str, Any]) -> None:
        """Stand where `describe` stood; a stream without a state is read up to there."""
        place = saved["stream"]
        self._held = None
        self._epoch, self._index = int(place["epoch"]), 0
        if self._stateful is not None and place["state"] is not None:
            self._open(lambda: self._stateful.load_state_dict(place["state"]))
            self._index = int(place["index"])
            return
        self._open()
        self._skip(int(place["index"]))

    def _read(self, step: int) -> tuple[Any, int]:
        """Return the batch of `step`, which follows the one read before, and its size."""
        if self._held is not None and self._held[0] == step:
            return self._held[1:]
        self._before = self._place()
        batch = self._next()
        self._held = (step, batch, rows_of(batch))
        by_sample = self._stateful is not None and self._stateful is self._source
        if by_sample and self._held[2] < (self.batch_size or 0):
            # The data set has come to its end, and may say so as the beginning of the next pass.
            self._epoch, self._index, self._stream = self._epoch + 1, 0, None
        return self._held[1:]

    def _place(self) -> dict[str, Any]:
        begun = self._stateful is not None and self._index > 0
        state = self._stateful.state_dict() if begun and self._stateful is not None else None
        return {"epoch": self._epoch, "index": self._index, "state": state}

    def _next(self) -> Any:
        """Return the next batch, of the next epoch if this one is over."""
        if self._stream is None:
            self._open()
        assert self._stream is not None
        for batch in self._stream:
            self._index += 1
            return batch
        if self._index == 0:
            raise ConfigError(
                f"epoch {self._epoch} of the data stream holds no batch",
                hint="check the data set, or drop_last with fewer samples than batch_size",
            )
        self._epoch, self._index = self._epoch + 1, 0
        self._open()
        return self._next()

    def _open(self, load: Callable[[], Any] = lambda: None) -> None:
        """Begin to read the present epoch, from the state that `load` sets."""
        for part in (self._source, self._loader):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self._epoch)
                break
        load()
        self._stream = iter(self._loader)

    def _skip(self, count: int) -> None:
        """Read past batches, and say how long it will take if it takes long."""
        began_s = told_s = time.monotonic()
        for done in range(count):
            now_s = time.monotonic()
            if now_s - told_s > _TELL_AFTER_S and done:
                told_s = now_s
                left_s = (now_s - began_s) / done * (count - done)
                _log.warning("reading past batch %d of %d: %.0f s to go", done, count, left_s)
            self._next()
        self._held = None


def check_same(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise ConfigError naming the first setting that is not what the run was begun with."""
    for name, value in ours.items():
        if saved.get(name) != value:
            shown = {"batch": "a global batch of "}.get(name, f"{name}=")
            raise ConfigError(
                f"the run was begun with {shown}{saved.get(name)} and goes on with"
                f" {shown}{value}: samples would be repeated or skipped",
                hint="give the data set, batch size and seed of the run before, or a new"
                " checkpoint path",
            )


def rows_of(batch: Any) -> int:
    """Return how many samples a collated batch holds. Raises ConfigError if parts differ."""
    sizes = set(_sizes(batch))
    if len(sizes) != 1 or 0 in sizes:
        raise ConfigError(
            f"a batch of the stream must hold the same number of rows in every part, 1 or more;"
            f" found {sorted(sizes) or 'no tensor or list'}",
            hint="collate samples along the first dimension",
        )
    return sizes.pop()


def take_rows(batch: Any, start: int, stop: int) -> Any:
    """Return rows start to stop of every tensor and list in a collated batch."""
    if _is_leaf(batch):
        return batch[start:stop]
    if isinstance(batch, Mapping):
        return {name: take_rows(part, start, stop) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [take_rows(part, start, stop) for part in batch]
        if hasattr(batch, "_fields"):
            return type(batch)(*parts)
        return type(batch)(parts)
    return batch


def _sizes(batch: Any) -> Iterator[int]:
    if _is_leaf(batch):
        yield len(batch)
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _sizes(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _sizes(part)


def _is_leaf(batch: Any) -> bool:
    """Return whether the rows of this are samples: a tensor, an array, a list of plain values."""
    if isinstance(batch, torch.Tensor) or hasattr(batch, "__array_interface__"):
        return bool(batch.ndim)
    if isinstance(batch, list | tuple):
        return not any(isinstance(v, torch.Tensor | Mapping | list | tuple) for v in batch)
    return False


def _stateful(loader: Any, source: Any) -> Any:
    """Return what knows and takes up a place in the stream; None if nothing does.

    A data set's own state is of use only where no loader workers read ahead of it, and where it
    leaves out nothing.
    """
    if _forgets_buffer(source):
        return None
    whole = [loader] if getattr(loader, "num_workers", 0) else [loader, source]
    for part in whole:
        if all(callable(getattr(part, n, None)) for n in ("state_dict", "load_state_dict")):
            return part
    return None


def _forgets_buffer(source: Any) -> bool:
    """Return whether a Hugging Face stream is shuffled in a buffer, which its state leaves out.

    Samples in the buffer would be skipped; reading past what was used skips none.
    """
    part = getattr(source, "_ex_iterable", None)
    while part is not None:
        if type(part).__name__.startswith("BufferShuffled"):
            return True
        part = getattr(part, "ex_iterable", None)
    return False


def _refuse_divided(source: Any) -> None:
    if getattr(source, "_distributed", None) is not None:
        raise ConfigError(
            "the data set was split by node: Surefoot shares every batch itself",
            hint="leave out split_dataset_by_node",
        )
