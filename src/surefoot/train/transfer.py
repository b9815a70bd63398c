"""How training state goes from a live worker to one that joins: JSON tree, then flat bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch

from surefoot.checkpoint.tree import flatten, restore
from surefoot.train.group import Group

_CHUNK_BYTES = 32 << 20
_ALIGN = 16


def pairs(steps: list[int], newest: int) -> list[tuple[int, int]]:
    """Return who sends to whom, (from, to): ranks at `newest` share the work of the others."""
    have = [rank for rank, step in enumerate(steps) if step == newest]
    lack = [rank for rank, step in enumerate(steps) if step != newest]
    return [(have[i % len(have)], rank) for i, rank in enumerate(lack)]


def send_state(group: Group, rank: int, state: Any) -> None:
    """Send nested state to `rank`. Raises GroupError."""
    tree, leaves = flatten(state)
    tensors = list(leaves.items())
    spec = [[n, str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in tensors]
    head = torch.frombuffer(
        bytearray(json.dumps({"tree": tree, "tensors": spec}).encode()), dtype=torch.uint8
    )
    group.send(torch.tensor([head.numel()]), rank)
    group.send(head, rank)
    sizes = [t.numel() * t.element_size() for _, t in tensors]
    for chunk in _chunks(sizes):
        group.send(torch.cat([_padded(tensors[i][1]) for i in chunk]), rank)


def recv_state(group: Group, rank: int) -> Any:
    """Receive what `send_state` sent. Raises GroupError."""
    size = torch.zeros(1, dtype=torch.int64)
    group.recv(size, rank)
    head = torch.empty(int(size.item()), dtype=torch.uint8)
    group.recv(head, rank)
    body = json.loads(head.numpy().tobytes())
    spec = [(name, getattr(torch, dtype), shape) for name, dtype, shape in body["tensors"]]
    sizes = [_bytes(dtype, shape) for _, dtype, shape in spec]
    tensors = {name: torch.empty(shape, dtype=dtype) for name, dtype, shape in spec if 0 in shape}
    for chunk in _chunks(sizes):
        flat = torch.empty(sum(_pad(sizes[i]) for i in chunk), dtype=torch.uint8)
        group.recv(flat, rank)
        at = 0
        for i in chunk:
            name, dtype, shape = spec[i]
            tensors[name] = flat[at : at + sizes[i]].view(dtype).reshape(shape)
            at += _pad(sizes[i])
    return restore(body["tree"], tensors)


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return torch.nn.functional.pad(raw, (0, _pad(raw.numel()) - raw.numel()))


def _pad(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _bytes(dtype: torch.dtype, shape: list[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count * dtype.itemsize


def _chunks(sizes: list[int]) -> Iterator[list[int]]:
    """Yield runs of tensor numbers that make up about one chunk; empty tensors have no bytes."""
    chunk: list[int] = []
    total = 0
    for i, size in enumerate(sizes):
        if size == 0:
            continue
        chunk.append(i)
        total += size
        if total >= _CHUNK_BYTES:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
