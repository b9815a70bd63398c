"""Which samples belong to which step and rank: a pure function of seed, epoch and step."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from surefoot.errors import ConfigError

Ids = npt.NDArray[np.int64]
_ROUNDS = 6
_BLOCK_STEPS = 64
_U = np.uint64


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a step: sample ids, and the part's weight in the global mean.

    A rank without a part (more ranks than samples) gets one sample with weight 0: it takes part
    in the collectives and changes nothing.
    """

    ids: list[int]
    weight: float

    @property
    def samples(self) -> int:
        """Samples that count."""
        return len(self.ids) if self.weight > 0 else 0


@dataclass(frozen=True, slots=True)
class DataOrder:
    """The order of `samples` items in global batches of `batch`, whoever computes them.

    Without `drop_last` the last batch of an epoch holds what is left; weights follow its size.
    """

    samples: int
    batch: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise ConfigError(
                f"a data set of {self.samples} samples in batches of {self.batch} holds no step"
            )
        if self.drop_last and self.samples < self.batch:
            raise ConfigError(
                f"drop_last=True with {self.samples} samples and a batch of {self.batch}: no step",
                hint="use a smaller batch_size or drop_last=False",
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps in one pass over the data."""
        whole = self.samples // self.batch
        return whole if self.drop_last else -(-self.samples // self.batch)

    def epoch(self, step: int) -> int:
        """Return the epoch, from 0, that `step` belongs to."""
        return step // self.steps_per_epoch

    def ids(self, step: int) -> Ids:
        """Return the sample ids of one global batch, shape (batch,) or less at an epoch's end."""
        epoch, index = divmod(step, self.steps_per_epoch)
        block, within = divmod(index, _BLOCK_STEPS)
        return _block(self, epoch, block)[within * self.batch : (within + 1) * self.batch]

    def share(self, step: int, rank: int, world: int) -> Share:
        """Return the part of `rank`: contiguous, sizes differ by one at most."""
        ids = self.ids(step)
        share = share_of(len(ids), rank, world)
        return Share([int(ids[place]) for place in share.ids], share.weight)


@functools.lru_cache(maxsize=4)
def _block(order: DataOrder, epoch: int, block: int) -> Ids:
    """Return the ids of a run of steps: numpy costs the same for one batch as for many."""
    start = block * _BLOCK_STEPS * order.batch
    stop = min(start + _BLOCK_STEPS * order.batch, order.samples)
    places = np.arange(start, stop, dtype=np.int64)
    return permute(places, order.samples, (order.seed, epoch)) if order.shuffle else places


def share_of(size: int, part: int, of: int) -> Share:
    """Return a part of a batch of `size` as places in it; one place of weight 0 if it is empty."""
    mine = parts_of(size, part, of)
    return Share(list(mine), len(mine) / size) if mine else Share([0], 0.0)


def parts_of(shards: int, rank: int, world: int) -> range:
    """Return what a rank has of things in order: contiguous, counts differ by one at most."""
    small, more = divmod(shards, world)
    start = rank * small + min(rank, more)
    return range(start, start + small + (rank < more))


@dataclass(frozen=True, slots=True)
class Cut:
    """How a step's batch is cut for one rank: `parts` of `of`, each computed by itself.

    Normally a rank has one part, its own, of as many as there are ranks, or as many equal ones
    as keep a part within its limit. With fixed shards the parts are always the same ones whoever
    computes them; a rank without any computes the first one for nothing.
    """

    parts: range
    of: int
    idle: bool = False

    @staticmethod
    def make(rank: int, world: int, shards: int = 0, *, pieces: int = 1) -> Cut:
        """Return a rank's cut; `shards` 0: `pieces` parts a rank."""
        if not shards:
            return Cut(range(rank * pieces, (rank + 1) * pieces), world * pieces)
        parts = parts_of(shards, rank, world)
        return Cut(parts or range(1), shards, idle=not parts)

    def share(self, order: DataOrder, step: int, number: int) -> Share:
        """Return the number-th part of a step."""
        return self._counting(order.share(step, self.parts[number], self.of))

    def places(self, size: int, number: int) -> Share:
        """Return the number-th part of a batch of `size` as places in it."""
        return self._counting(share_of(size, self.parts[number], self.of))

    def _counting(self, share: Share) -> Share:
        return Share(share.ids, 0.0) if self.idle else share


class ShareSampler:
    """A batch sampler for torch's DataLoader: one rank's parts of the steps from `start` on."""

    def __init__(self, order: DataOrder, start: int, stop: int, cut: Cut) -> None:
        self._order, self._start, self._stop, self._cut = order, start, stop, cut

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self._start, self._stop):
            for part in self._cut.parts:
                yield self._order.share(step, part, self._cut.of).ids

    def __len__(self) -> int:
        return max(0, self._stop - self._start) * len(self._cut.parts)


def permute(places: Ids, size: int, key: tuple[int, ...]) -> Ids:
    """Return where a keyed pseudo-random permutation of range(size) sends `places`.

    A Feistel network on the next even power of two with cycle walking (Black and Rogaway 2002):
    any position costs the same, nothing is stored, so that a resume deep in an epoch is instant.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [mix(*key, number) for number in range(_ROUNDS)]
    value = _feistel(places.astype(np.uint64), half, keys)
    while (outside := value >= _U(size)).any():
        value[outside] = _feistel(value[outside], half, keys)
    return value.astype(np.int64)


def mix(*parts: int) -> int:
    """Return a 64-bit hash of whole numbers, the same on every machine (splitmix64's finaliser)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


def _feistel(value: npt.NDArray[np.uint64], half: int, keys: list[int]) -> npt.NDArray[np.uint64]:
    mask = _U((1 << half) - 1)
    left, right = value >> _U(half), value & mask
    for key in keys:
        left, right = right, left ^ (_hash(right + _U(key & 0xFFFFFFFF)) ^ _U(key >> 32)) & mask
    return (left << _U(half)) | right


def _hash(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        value = (value ^ (value >> _U(30))) * _U(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> _U(27))) * _U(0x94D049BB133111EB)
    return value ^ (value >> _U(31))
