"""The arena: one flat block of memory per rank, faulted in once, into which state is copied."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import torch

from surefoot.checkpoint.plan import Slot
from surefoot.errors import CheckpointError

_LIBC = ctypes.CDLL(None)
_LIBC.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_LIBC.memcpy.restype = ctypes.c_void_p
_RESERVE_BYTES = 64 << 20
SMALL_BYTES = 1 << 20


class Arena:
    """Shared memory without a name (memfd): nothing is left behind, whoever is killed."""

    def __init__(self, n_bytes: int) -> None:
        _refuse_without_memory(n_bytes)
        self.n_bytes = n_bytes
        self.fd = os.memfd_create("surefoot-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, n_bytes)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0x8000)
        self.memory = mmap.mmap(self.fd, n_bytes, flags=flags)
        self._pin = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._pin)

    def view(self, slot: Slot, like: torch.Tensor) -> torch.Tensor:
        """Return the slot as a tensor of `like`'s dtype and the slot's shape."""
        flat = torch.frombuffer(
            self.memory, dtype=torch.uint8, count=slot.n_bytes, offset=slot.offset
        )
        return flat.view(like.dtype).reshape(slot.shape)

    def close(self) -> None:
        """Give the memory back once nobody maps it."""
        del self._pin
        with contextlib.suppress(BufferError):
            self.memory.close()
        os.close(self.fd)


def copy_in(arena: Arena, pairs: Iterable[tuple[Slot, torch.Tensor]]) -> None:
    """Copy tensors into their slots; memcpy (which drops the interpreter lock) where it can."""
    for slot, tensor in pairs:
        if slot.n_bytes == 0:
            continue
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj():
            _LIBC.memcpy(arena.address + slot.offset, tensor.data_ptr(), slot.n_bytes)
        else:
            arena.view(slot, tensor).copy_(tensor)


Pair = tuple[Slot, torch.Tensor]


class Snapshot:
    """One copy of a state into an arena: part of it at once, the rest beside training.

    `torn` names a tensor that was written to while it was being copied, if one was: torch counts
    in-place writes, so a forgotten barrier is found out and the snapshot is never used.
    """

    def __init__(self, arena: Arena, now: list[Pair], beside: list[Pair]) -> None:
        self.arena = arena
        self.torn = ""
        self._thread: threading.Thread | None = None
        copy_in(arena, now)
        if beside:
            versions = [_version(tensor) for _, tensor in beside]
            self._thread = threading.Thread(
                target=self._copy, args=(beside, versions), name="surefoot-copy", daemon=True
            )
            self._thread.start()

    def join(self) -> None:
        """Return when the copy is complete."""
        if self._thread is not None:
            self._thread.join()

    def _copy(self, pairs: list[Pair], versions: list[int]) -> None:
        try:
            copy_in(self.arena, pairs)
        except BaseException as error:
            self.torn = f"(the copy failed: {error!r}) the state"
            return
        for (slot, tensor), version in zip(pairs, versions):
            if _version(tensor) != version:
                self.torn = f"state[{slot.name}]"
                return


def split(
    pairs: list[Pair], guarded: set[int] | None, *, overlap: bool
) -> tuple[list[Pair], list[Pair]]:
    """Return (what must be copied now, what may be copied beside training).

    `guarded`: the data pointers that only the guarded optimizers write; without it and with
    `overlap`, large tensors, as small ones may be buffers that the forward pass writes to.
    """
    if guarded is not None:
        beside = [pair[1].data_ptr() in guarded for pair in pairs]
    else:
        beside = [overlap and pair[0].n_bytes > SMALL_BYTES for pair in pairs]
    now = [pair for pair, later in zip(pairs, beside) if not later]
    return now, [pair for pair, later in zip(pairs, beside) if later]


def owned_by(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    """Return the data pointers of the parameters and state that these optimizers write."""
    owned: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            owned.update(p.data_ptr() for p in group["params"])
        for state in optimizer.state.values():
            owned.update(v.data_ptr() for v in state.values() if isinstance(v, torch.Tensor))
    return owned


def _version(tensor: torch.Tensor) -> int:
    """Return the counter that every in-place write raises; 0 for inference tensors."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _refuse_without_memory(n_bytes: int) -> None:
    available = available_bytes()
    if available is not None and n_bytes + _RESERVE_BYTES > available:
        raise CheckpointError(
            f"a snapshot needs {n_bytes / 1e9:.2f} GB of memory and only"
            f" {available / 1e9:.2f} GB are available",
            hint="use fewer arenas, save fewer tensors, or take a machine with more memory",
        )


def available_bytes() -> int | None:
    """Return memory that can be had without swapping, or None where the system does not say."""
    found = [limit for limit in (_meminfo(), _cgroup()) if limit is not None]
    return min(found) if found else None


def _meminfo() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroup() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return None if limit == "max" else int(limit) - used
    return None
