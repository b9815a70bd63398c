"""How a user's DataLoader becomes one rank's stream of batches from any step on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from surefoot.errors import ConfigError, NotBuiltError
from surefoot.train.sampler import Cut, DataOrder, Share, ShareSampler
from surefoot.train.stream import StreamFeed, check_same


def feed_of(loader: Any, seed: int) -> Feed | StreamFeed:
    """Return the stream of batches of a loader whose batch_size is the global batch.

    A loader over an IterableDataset, or one that is no DataLoader, is read from front to back.
    Raises ConfigError or NotBuiltError for loaders whose order is not ours to keep.
    """
    indexed = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    return Feed(loader, order_of(loader, seed)) if indexed else StreamFeed(loader, seed)


def pieces_of(batch_size: int | None, world: int, limit: int | None) -> int:
    """Return into how many parts a rank cuts its share so that none is above `limit` samples."""
    if limit is None:
        return 1
    if limit < 1 or batch_size is None:
        raise ConfigError(
            f"micro_batch must be 1 or more, with a loader that has a batch_size; got {limit}"
            f" with batch_size {batch_size}"
        )
    return max(1, -(-batch_size // (world * limit)))


def order_of(loader: DataLoader[Any], seed: int) -> DataOrder:
    """Return the data order of a loader over a map-style dataset."""
    if loader.batch_size is None or loader.batch_sampler is None:
        raise ConfigError("Session needs a DataLoader with batch_size, which is the global batch")
    if not isinstance(loader.sampler, RandomSampler | SequentialSampler):
        raise NotBuiltError(
            f"Session keeps the order itself and cannot use a {type(loader.sampler).__name__}",
            hint="pass DataLoader(dataset, batch_size=..., shuffle=True or False)",
        )
    return DataOrder(
        samples=len(loader.dataset),  # type: ignore[arg-type]
        batch=loader.batch_size,
        seed=seed,
        shuffle=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
    )


class Feed:
    """Batches of one rank, prefetched by the loader's workers; a new place is a new iterator."""

    def __init__(self, loader: DataLoader[Any], order: DataOrder) -> None:
        self.order = order
        self.seed, self.batch_size = order.seed, order.batch
        self._loader = loader
        self._place: tuple[int, int, Cut] | None = None
        self._stream: Iterator[Any] | None = None
        self._generator = torch.Generator()  # the iterator draws from it, not from the user's RNG

    def shares(self, step: int, cut: Cut) -> list[Share]:
        """Return a rank's parts of `step`."""
        return [cut.share(self.order, step, number) for number in range(len(cut.parts))]

    def batch(self, step: int, stop: int, cut: Cut, number: int = 0) -> Any:
        """Return the number-th of a rank's parts of `step`, which are asked for in order.

        What was prefetched for another place is dropped.
        """
        if self._stream is None or self._place != (step, number, cut):
            self._stream = iter(self._from(step, stop, cut))
            for _ in range(number):
                next(self._stream)
        batch = next(self._stream)
        last = number + 1 == len(cut.parts)
        self._place = (step + 1, 0, cut) if last else (step, number + 1, cut)
        return batch

    def rewind(self) -> None:
        """Forget what was prefetched: the next batch is fetched anew."""
        self._stream = None

    def describe(self, step: int) -> dict[str, Any]:
        """Return what the order of samples depends on, beside the step."""
        order = self.order
        return {"seed": order.seed, "samples": order.samples, "batch": order.batch}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise ConfigError if the saved run had other data, or another order of them."""
        check_same(saved, self.describe(0))

    def seek(self, saved: Mapping[str, Any]) -> None:
        """Nothing to do: any step's samples are known at once."""

    def _from(self, step: int, stop: int, cut: Cut) -> DataLoader[Any]:
        old = self._loader
        sampler = ShareSampler(self.order, step, stop, cut)
        return DataLoader(
            old.dataset,
            batch_sampler=sampler,
            num_workers=old.num_workers,
            collate_fn=old.collate_fn,
            pin_memory=old.pin_memory,
            timeout=old.timeout,
            worker_init_fn=old.worker_init_fn,
            multiprocessing_context=old.multiprocessing_context,
            generator=self._generator,
            prefetch_factor=old.prefetch_factor if old.num_workers else None,
        )
