"""The arena: one flat block of memory per rank, kept between saves, into which state is copied.

Its last page is for the writer process: how many bytes are copied so far, and whether the copy
became whole or is void. So the writer can write what is there while the rest is still copied.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import queue
from typing import ClassVar

import torch

from surefoot.checkpoint.gate import CONTROL_BYTES, Fill, control_of
from surefoot.checkpoint.memory import available_bytes
from surefoot.checkpoint.plan import Slot
from surefoot.errors import CheckpointError

_RESERVE_BYTES = 64 << 20


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
        self.pinned = False
        self.fd = os.memfd_create("surefoot-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, n_bytes + CONTROL_BYTES)
        self.memory = mmap.mmap(self.fd, n_bytes + CONTROL_BYTES, flags=mmap.MAP_SHARED)
        self._control = control_of(self.memory)
        self._pin = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._pin)

    def mark(self, save: int, ready_bytes: int, fill: Fill) -> None:
        """Tell the writer that the first bytes of a save are copied, and how the copy stands."""
        control = self._control
        control[0], control[1], control[2] = save, ready_bytes, fill

    def view(self, slot: Slot, like: torch.Tensor) -> torch.Tensor:
        """Return the slot as a tensor of `like`'s dtype and the slot's shape."""
        flat = torch.frombuffer(
            self.memory, dtype=torch.uint8, count=slot.n_bytes, offset=slot.offset
        )
        return flat.view(like.dtype).reshape(slot.shape)

    def close(self) -> None:
        """Give the memory back once nobody maps it."""
        Arena.live.discard(self.number)
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(self.address)  # type: ignore[no-untyped-call]
        del self._pin
        self._control.release()
        with contextlib.suppress(BufferError):
            self.memory.close()
        os.close(self.fd)


class Arenas:
    """A few arenas that take turns; `take` waits for one, `give_back` frees it for the next.

    `budget_bytes`: what all of them together may hold. A further arena that does not fit is not
    made: saves then take turns in those that do.
    """

    def __init__(self, count: int, budget_bytes: int | None = None) -> None:
        self._free: queue.SimpleQueue[Arena | None] = queue.SimpleQueue()
        self._all: list[Arena] = []
        self._budget_bytes = budget_bytes
        for _ in range(count):
            self._free.put(None)  # made when it is first needed

    def take(self, n_bytes: int) -> Arena:
        """Return a free arena of this size, waiting for a save in flight if there is none.

        Raises CheckpointError when memory or the budget is short.
        """
        while True:
            arena = self._free.get()
            if arena is not None and arena.n_bytes == n_bytes:
                return arena
            if arena is not None:
                self._all.remove(arena)
                arena.close()
            if not self._all or self._fits(n_bytes):
                break  # else: fewer arenas than asked for, as the budget holds no more
        try:
            if not self._fits(n_bytes):
                raise _over_budget(n_bytes, self._budget_bytes or 0)
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

    def _fits(self, n_bytes: int) -> bool:
        held = sum(arena.n_bytes for arena in self._all)
        return self._budget_bytes is None or held + n_bytes <= self._budget_bytes


def _over_budget(n_bytes: int, budget_bytes: int) -> CheckpointError:
    return CheckpointError(
        f"a snapshot needs {n_bytes / 1e9:.2f} GB and memory_budget_bytes allows"
        f" {budget_bytes / 1e9:.2f} GB",
        hint="raise memory_budget_bytes, or save fewer tensors",
    )


def _refuse_without_memory(n_bytes: int) -> None:
    available = available_bytes()
    if available is not None and n_bytes + _RESERVE_BYTES > available:
        raise CheckpointError(
            f"a snapshot needs {n_bytes / 1e9:.2f} GB of memory and only"
            f" {available / 1e9:.2f} GB are available",
            hint="use fewer arenas, save fewer tensors, or take a machine with more memory",
        )
