"""Copies from an accelerator: through a stream of its own, into memory that it can reach.

The copy starts after what the training stream has been told so far, and the training stream is told
to go on only after it: both are orders among streams, and the program itself waits for neither.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from surefoot.checkpoint.arena import Arena
from surefoot.checkpoint.plan import Slot


class Lane:
    """One device's copies of one snapshot; made on the thread whose stream the training uses."""

    def __init__(self, device: torch.device) -> None:
        self._module: Any = torch.get_device_module(device)
        self._device = device
        named = device.type != "cpu"  # the CPU's streams do nothing: they are for the tests
        self._stream = self._module.Stream(device) if named else self._module.Stream()
        self._stream.wait_stream(self._training_stream())
        self._done = self._module.Event()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Order one copy; it is not done when this returns."""
        with self._module.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._done.record(self._stream)

    def hold_back(self) -> None:
        """Let nothing that the current stream is told from now on begin before the copies end."""
        self._training_stream().wait_event(self._done)

    def finish(self) -> None:
        """Return when the copies that were ordered are done."""
        self._done.synchronize()

    def _training_stream(self) -> Any:
        named = self._device.type != "cpu"
        return self._module.current_stream(self._device if named else "cpu")


class DeviceCopy:
    """One tensor's copy through a lane; holds on to the tensor until the snapshot lets go."""

    __slots__ = ("_arena", "_lane", "_slot", "_tensor")

    def __init__(self, arena: Arena, slot: Slot, tensor: torch.Tensor, lane: Lane) -> None:
        self._arena, self._slot, self._tensor, self._lane = arena, slot, tensor, lane

    def __call__(self) -> None:
        """Order the copy."""
        self._lane.copy(self._arena.view(self._slot, self._tensor), self._tensor)


def pin(arena: Arena) -> None:
    """Have the CUDA driver lock the arena's pages once, so that copies run at full speed.

    Where it refuses, copies still work and each holds the thread that orders it.
    """
    if arena.pinned or not torch.cuda.is_available():
        return
    n_bytes = arena.n_bytes
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    failed = runtime.cudaHostRegister(arena.address, n_bytes, 0)
    arena.pinned = int(failed) == 0
    if not arena.pinned:
        warnings.warn(
            f"{n_bytes / 1e9:.2f} GB of memory could not be pinned (CUDA error {int(failed)}):"
            " saves will take longer",
            stacklevel=2,
        )
