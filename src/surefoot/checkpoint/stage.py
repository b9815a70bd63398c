"""The arena: one flat block of memory per rank, kept between saves, into which state is copied."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import torch

from surefoot.checkpoint.plan import Slot
from surefoot.errors import CheckpointError

Pair = tuple[Slot, torch.Tensor]
Act = Callable[[], object]
SMALL_BYTES = 1 << 20
_RESERVE_BYTES = 64 << 20
_PIECE_BYTES = 16 << 20
_TWO_THREADS_FROM_BYTES = 64 << 20

_LIBC = ctypes.CDLL(None)
_LIBC.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_LIBC.memcpy.restype = ctypes.c_void_p


class Arena:
    """Shared memory without a name (memfd): nothing is left behind, whoever is killed.

    Its pages are touched first by the first copy, which may run beside training, and stay.
    """

    _numbers = itertools.count(1)
    live: ClassVar[set[int]] = set()
    """Numbers of the arenas that are mapped in this process."""

    def __init__(self, n_bytes: int) -> None:
        _refuse_without_memory(n_bytes)
        self.number = next(self._numbers)
        Arena.live.add(self.number)
        self.n_bytes = n_bytes
        self.fd = os.memfd_create("surefoot-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, n_bytes)
        self.memory = mmap.mmap(self.fd, n_bytes, flags=mmap.MAP_SHARED)
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
        Arena.live.discard(self.number)
        del self._pin
        with contextlib.suppress(BufferError):
            self.memory.close()
        os.close(self.fd)


class Arenas:
    """A few arenas that take turns; `take` waits for one, `give_back` frees it for the next."""

    def __init__(self, count: int) -> None:
        self._free: queue.SimpleQueue[Arena | None] = queue.SimpleQueue()
        self._all: list[Arena] = []
        for _ in range(count):
            self._free.put(None)  # made when it is first needed

    def take(self, n_bytes: int) -> Arena:
        """Return a free arena of this size, waiting for a save in flight if there is none.

        Raises CheckpointError when memory is short.
        """
        arena = self._free.get()
        if arena is not None and arena.n_bytes == n_bytes:
            return arena
        if arena is not None:
            self._all.remove(arena)
            arena.close()
        try:
            arena = Arena(n_bytes)
        except BaseException:
            self._free.put(None)
            raise
        self._all.append(arena)
        return arena

    def give_back(self, arena: Arena) -> None:
        """Let another save have it."""
        self._free.put(arena)

    def close(self) -> None:
        """Give all memory back."""
        while self._all:
            self._all.pop().close()


class Snapshot:
    """One copy of a state into an arena: part of it at once, the rest beside training.

    `torn` names a tensor that was written to while it was being copied, if one was: torch counts
    in-place writes, so a forgotten barrier is found out and the snapshot is never used.
    What may be copied beside training waits for `work()`, called from another thread.
    """

    def __init__(self, arena: Arena, now: list[Pair], beside: list[Pair]) -> None:
        self.arena = arena
        self.torn = ""
        self._lock = threading.Lock()
        self._whole = threading.Event()
        self._work: Iterator[Act] = iter(())
        self._left = 0
        self._watched: list[tuple[str, torch.Tensor, int]] = []
        self._run(_acts(arena, now))
        if sum(slot.n_bytes for slot, _ in now) >= _TWO_THREADS_FROM_BYTES:
            threading.Thread(target=self._drain, name="surefoot-copy", daemon=True).start()
        self.barrier()
        self.overlaps = bool(beside) and not self.torn
        if self.overlaps:
            self._watched = [(slot.name, t, _version(t)) for slot, t in beside]
            self._run(_acts(arena, beside))

    def barrier(self) -> None:
        """Return when the copy is complete; whoever calls does part of what is left."""
        self._drain()
        self._whole.wait()

    work = barrier

    def _run(self, acts: list[Act]) -> None:
        self._work, self._left = iter(acts), len(acts)
        self._whole.clear()
        if not acts:
            self._whole.set()

    def _drain(self) -> None:
        """Do pieces of work until none is left; several threads may."""
        for act in self._work:
            try:
                act()
            except BaseException as error:
                self.torn = self.torn or f"the copy failed: {error!r}"
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    self._check()
                    self._whole.set()

    def _check(self) -> None:
        for name, tensor, version in self._watched:
            if _version(tensor) != version:
                self.torn = f"state[{name}] was written to before barrier() let it"
                break
        self._watched = []


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


def _acts(arena: Arena, pairs: Iterable[Pair]) -> list[Act]:
    """Return the copies to do, memcpy (which drops the interpreter lock) where it can be."""
    acts: list[Act] = []
    for slot, tensor in pairs:
        if slot.n_bytes == 0:
            continue
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not _is_lazy(tensor):
            target, source = arena.address + slot.offset, tensor.data_ptr()
            for at in range(0, slot.n_bytes, _PIECE_BYTES):
                n = min(_PIECE_BYTES, slot.n_bytes - at)
                acts.append(_Memcpy(target + at, source + at, n, tensor))
        else:
            acts.append(_Copy(arena, slot, tensor))
    return acts


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


class _Memcpy:
    """One raw copy; holds on to the tensor until it is done."""

    __slots__ = ("_n", "_source", "_target", "_tensor")

    def __init__(self, target: int, source: int, n: int, tensor: torch.Tensor) -> None:
        self._target, self._source, self._n, self._tensor = target, source, n, tensor

    def __call__(self) -> None:
        _LIBC.memcpy(self._target, self._source, self._n)


class _Copy:
    """One copy through torch: from another device, or from memory that is not in order."""

    __slots__ = ("_arena", "_slot", "_tensor")

    def __init__(self, arena: Arena, slot: Slot, tensor: torch.Tensor) -> None:
        self._arena, self._slot, self._tensor = arena, slot, tensor

    def __call__(self) -> None:
        self._arena.view(self._slot, self._tensor).copy_(self._tensor)


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
