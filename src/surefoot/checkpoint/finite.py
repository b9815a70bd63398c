"""Whether a snapshot holds only finite numbers: broken weights must not push out good ones."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from surefoot.checkpoint.arena import Arena
from surefoot.checkpoint.plan import dtype_of


def first_nonfinite(arena: Arena, parts: Iterable[tuple[str, str, int, int]]) -> str:
    """Return the first name with a NaN or infinity in it, empty if there is none.

    `parts`: name, dtype, offset and length in bytes of each tensor in the arena.
    """
    for name, dtype_name, offset, n_bytes in parts:
        dtype = dtype_of(dtype_name)
        if n_bytes == 0 or not (dtype.is_floating_point or dtype.is_complex):
            continue
        flat = torch.frombuffer(arena.memory, dtype=torch.uint8, count=n_bytes, offset=offset)
        if not _finite(flat.view(dtype)):
            return name
    return ""


def _finite(values: torch.Tensor) -> bool:
    if values.dtype.itemsize == 1:
        values = values.to(torch.float32)
    if values.dtype in (torch.float32, torch.float64) and bool(torch.isfinite(values.sum())):
        return True  # a sum is cheap, and one odd value spoils it; overflow is looked into below
    return bool(torch.isfinite(values).all())
