"""Who writes which part of a state when several ranks save together: every byte once."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from surefoot.checkpoint.manifest import Piece, TensorEntry
from surefoot.checkpoint.plan import ALIGN_BYTES, PAGE_BYTES, SavePlan, Slot, dtype_name, up
from surefoot.errors import CheckpointError

Box = tuple[tuple[int, ...], tuple[int, ...]]  # start, shape


@dataclass(frozen=True, slots=True)
class Shard:
    """The box of one tensor that this rank writes, as a view of its own memory."""

    name: str
    start: tuple[int, ...]
    view: torch.Tensor
    whole: tuple[int, ...]


def shards_of(leaves: Mapping[str, torch.Tensor], rank: int, world: int) -> list[Shard]:
    """Return what `rank` writes: its own boxes of DTensors, its even share of replicated tensors.

    Replicated tensors are cut, one after the other in order, into `world` runs of about as many
    bytes; a tensor on a boundary is cut between two rows. All ranks must hold the same names.
    """
    plain = {name: t for name, t in leaves.items() if not is_dtensor(t)}
    total = sum(t.numel() * t.element_size() for t in plain.values())
    low, high = total * rank // world, total * (rank + 1) // world
    shards, position = [], 0
    for name, tensor in leaves.items():
        if is_dtensor(tensor):
            shards += _own_box(name, tensor)
            continue
        n_bytes = tensor.numel() * tensor.element_size()
        shards += _share(name, tensor, (low - position, high - position), is_first=rank == 0)
        position += n_bytes
    return shards


def plan_split(shards: list[Shard], rank: int) -> SavePlan:
    """Lay out a rank's shards in its own file, whose number is the rank.

    The same shards give the same plan object.
    """
    return _layout(
        rank, tuple((s.name, s.start, s.view.shape, s.view.dtype, s.whole) for s in shards)
    )


@functools.lru_cache(maxsize=4)
def _layout(rank: int, shards: tuple[tuple[Any, ...], ...]) -> SavePlan:
    slots, entries, offset = [], {}, 0
    for name, start, size, dtype, whole in shards:
        shape = tuple(size)
        n_bytes = math.prod(shape) * dtype.itemsize
        slots.append(Slot(name, offset, n_bytes, start, shape))
        piece = Piece(rank, offset, start, shape)
        entries[name] = TensorEntry(dtype_name(dtype), whole, (piece,))
        offset = up(offset + n_bytes, ALIGN_BYTES)
    return SavePlan(tuple(slots), entries, max(PAGE_BYTES, up(offset, PAGE_BYTES)))


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is spread over ranks by torch.distributed."""
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def local_box(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return a DTensor's local memory and where it lies in the whole.

    Raises CheckpointError for placements other than Shard and Replicate.
    """
    local, start, _ = _local(tensor)
    return local, start


def _local(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...], bool]:
    """Return what `local_box` does, and whether another rank holds the same box, before this."""
    local: torch.Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    start, shape, is_copy = _place(tensor)
    if local.numel() == 0:
        return local, (0,) * tensor.dim(), is_copy
    if tuple(local.shape) != shape:
        placements = tensor.placements  # type: ignore[attr-defined]
        raise CheckpointError(
            f"a tensor {list(tensor.shape)} placed as {placements} has a local part of"
            f" {list(local.shape)}, not {list(shape)}",
            hint="redistribute it first, so that its parts are as even as torch makes them",
        )
    return local, start, is_copy


def _place(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Return a DTensor's local box (start, shape) and whether another rank holds it too, first."""
    import torch.distributed as dist

    return _placed(tensor._spec, dist.get_rank())  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1 << 14)
def _placed(spec: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Answer `_place` for a DTensor's spec as this rank.

    Torch's own function, and a mesh's own coordinate, remember answers by mesh: a process that
    joins an equal mesh again under another rank would get those of its old rank.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as ShardOn

    if not all(type(p) in (ShardOn, Replicate) for p in spec.placements):
        raise CheckpointError(
            f"a tensor is placed as {spec.placements}; only Shard and Replicate can be saved",
            hint="redistribute it first",
        )
    found = (spec.mesh.mesh == rank).nonzero().tolist()
    if not found:
        return (0,) * len(spec.shape), (0,) * len(spec.shape), True
    cuts = tuple(p.dim if p.is_shard() else -1 for p in spec.placements)
    start, shape = _box(tuple(spec.shape), tuple(spec.mesh.shape), tuple(found[0]), cuts)
    return start, shape, any(at for at, axis in zip(found[0], cuts) if axis < 0)


def _box(
    shape: tuple[int, ...], sizes: tuple[int, ...], place: tuple[int, ...], cuts: tuple[int, ...]
) -> Box:
    """Return (start, shape) of the part at `place`: equal parts, rounded up, one cut after another.

    This is how DTensor cuts: the last parts may be smaller or empty.
    """
    start, length = [0] * len(shape), list(shape)
    for size, at, axis in zip(sizes, place, cuts):
        if axis >= 0:
            part = -(-length[axis] // size)
            first = min(at * part, length[axis])
            start[axis] += first
            length[axis] = min(part, length[axis] - first)
    return tuple(start), tuple(length)


def _own_box(name: str, tensor: torch.Tensor) -> list[Shard]:
    """Return this rank's box, unless another rank that holds the same one writes it."""
    local, start, is_copy = _local(tensor)
    if local.numel() == 0 or is_copy:
        return []
    return [Shard(name, start, local, tuple(tensor.shape))]


def _share(
    name: str, tensor: torch.Tensor, window: tuple[int, int], *, is_first: bool
) -> list[Shard]:
    whole = tuple(tensor.shape)
    rows = whole[0] if whole else 1
    n_bytes = tensor.numel() * tensor.element_size()
    if n_bytes == 0:
        return [Shard(name, (0,) * len(whole), tensor, whole)] if is_first else []
    row_bytes = n_bytes // rows
    first = min(max(0, -(-window[0] // row_bytes)), rows)
    last = min(max(0, -(-window[1] // row_bytes)), rows)
    if first >= last:
        return []
    view = tensor if last - first == rows else tensor.narrow(0, first, last - first)
    return [Shard(name, (first, *(0,) * (len(whole) - 1))[: len(whole)], view, whole)]
