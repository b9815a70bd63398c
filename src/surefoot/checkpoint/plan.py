"""Where each tensor of a save lies in the arena and thus in the file: names, offsets, boxes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from surefoot.checkpoint.manifest import Piece, TensorEntry

ALIGN_BYTES = 64
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor's (or one box of a tensor's) place in this rank's arena."""

    name: str
    offset: int
    n_bytes: int
    start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The layout of one rank's file; `total_bytes` is a multiple of the page, for O_DIRECT."""

    slots: tuple[Slot, ...]
    entries: Mapping[str, TensorEntry]
    total_bytes: int


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype as the manifest spells it: torch's name without the prefix."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of a name in a manifest; raises ValueError for an unknown one."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return dtype


def plan_save(leaves: Mapping[str, torch.Tensor]) -> SavePlan:
    """Lay out whole tensors one after the other, each aligned to 64 bytes, in file 0.

    The same names, dtypes and shapes give the same plan object.
    """
    key = tuple((name, t.dtype, t.shape) for name, t in leaves.items())
    return _layout(key)


@functools.lru_cache(maxsize=4)
def _layout(leaves: tuple[tuple[str, torch.dtype, torch.Size], ...]) -> SavePlan:
    slots, entries, offset = [], {}, 0
    for name, dtype, size in leaves:
        shape = tuple(size)
        n_bytes = math.prod(shape) * dtype.itemsize
        start = (0,) * len(shape)
        slots.append(Slot(name, offset, n_bytes, start, shape))
        piece = Piece(0, offset, start, shape)
        entries[name] = TensorEntry(dtype_name(dtype), shape, (piece,))
        offset = up(offset + n_bytes, ALIGN_BYTES)
    return SavePlan(tuple(slots), entries, max(PAGE_BYTES, up(offset, PAGE_BYTES)))


def up(value: int, to: int) -> int:
    """Return `value` rounded up to a multiple of `to`."""
    return (value + to - 1) // to * to
