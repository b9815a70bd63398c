"""Who writes which part of a state when several ranks save together: every byte once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
    """Lay out a rank's shards in its own file, whose number is the rank."""
    slots, entries, offset = [], {}, 0
    for shard in shards:
        shape, dtype = tuple(shard.view.shape), shard.view.dtype
        n_bytes = math.prod(shape) * dtype.itemsize
        slots.append(Slot(shard.name, offset, n_bytes, shard.start, shape))
        piece = Piece(rank, offset, shard.start, shape)
        entries[shard.name] = TensorEntry(dtype_name(dtype), shard.whole, (piece,))
        offset = up(offset + n_bytes, ALIGN_BYTES)
    return SavePlan(tuple(slots), entries, max(PAGE_BYTES, up(offset, PAGE_BYTES)))


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is spread over ranks by torch.distributed."""
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def local_box(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return a DTensor's local memory and where it lies in the whole.

    Raises CheckpointError for placements other than Shard and Replicate.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as ShardOn
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    placements, mesh = tensor.placements, tensor.device_mesh  # type: ignore[attr-defined]
    if not all(type(p) in (ShardOn, Replicate) for p in placements):
        raise CheckpointError(
            f"a tensor is placed as {placements}; only Shard and Replicate can be saved",
            hint="redistribute it first",
        )
    local: torch.Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    _, start = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    return local, tuple(int(at) for at in start)


def _own_box(name: str, tensor: torch.Tensor) -> list[Shard]:
    """Return this rank's box, unless another rank that holds the same one writes it."""
    local, start = local_box(tensor)
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    coordinate = mesh.get_coordinate()
    placements = tensor.placements  # type: ignore[attr-defined]
    copies = [at for at, p in zip(coordinate, placements) if p.is_replicate()]
    if any(copies) or local.numel() == 0:
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
