"""Copying a state into an arena: some of it at once, the rest beside the next forward pass."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator

import torch

from surefoot.checkpoint.arena import Arena
from surefoot.checkpoint.device import DeviceCopy, Lane, pin
from surefoot.checkpoint.gate import Fill
from surefoot.checkpoint.plan import Slot

Pair = tuple[Slot, torch.Tensor]
Act = Callable[[], object]
SMALL_BYTES = 1 << 20
_PIECE_BYTES = 16 << 20
_WITH_STREAMS = ("cuda", "xpu")
_ALONE_BELOW_BYTES = 64 << 20

_LIBC = ctypes.CDLL(None)
_LIBC.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_LIBC.memcpy.restype = ctypes.c_void_p


class Snapshot:
    """One copy of a state into an arena: part of it by `begin()`, the rest beside training.

    `torn` names a tensor that was written to while it was being copied, if one was: torch counts
    in-place writes, so a forgotten barrier is found out and the snapshot is never used.
    With `final` the snapshot is called whole as soon as it is; otherwise by `call()`.
    All threads that call `begin`, `barrier` or `work` take pieces of the copying.
    """

    _numbers = itertools.count(1)

    def __init__(
        self, arena: Arena, now: list[Pair], beside: list[Pair], *, final: bool = True
    ) -> None:
        self._final = final
        self.arena, self.number, self.torn = arena, next(Snapshot._numbers), ""
        self.overlaps = bool(beside)
        self.n_now_bytes = sum(slot.n_bytes for slot, _ in now)
        self._lanes: dict[torch.device, Lane] = {}
        first, later = self._acts(now), self._acts(beside)
        self._now, self._later = iter(first), iter(later)  # several threads take from them
        self._starts_now = {start for start, _ in first}
        self._left_now, self._left = len(first), len(first) + len(later)
        self._reach = _Reach([start for start, _ in first + later])
        self._lock = threading.Lock()
        self._have_now, self._whole = threading.Event(), threading.Event()
        self._watched = [(slot.name, t, _version(t)) for slot, t in beside]
        self._held = (first, later) if self._lanes else None  # until the device has read them
        arena.mark(self.number, 0, Fill.COPYING)
        if self._lanes:
            pin(arena)
        self._note()

    @property
    def is_small(self) -> bool:
        """Whether what must be copied at once is little enough for one thread."""
        return self.n_now_bytes < _ALONE_BELOW_BYTES

    def begin(self) -> None:
        """Return when what must be copied at once is copied, doing part of it."""
        self._drain(self._now)
        self._have_now.wait()
        self._hold_back()

    def barrier(self) -> None:
        """Return when the copy is complete; whoever calls does part of what is left."""
        self._drain(self._now, self._later)
        self._whole.wait()
        self._hold_back()

    def work(self) -> None:
        """Do what is left and return when every byte is in the arena."""
        self._drain(self._now, self._later)
        self._whole.wait()
        for lane in self._lanes.values():
            lane.finish()
        self._held = None

    def call(self, fill: Fill) -> None:
        """Tell the writer process that the copy is whole, or void."""
        self.arena.mark(self.number, self.arena.n_bytes, fill)

    def _drain(self, *todo: Iterator[tuple[int, Act]]) -> None:
        """Do pieces of work until none is left; others may still be at theirs."""
        for start, act in itertools.chain(*todo):
            try:
                act()
            except BaseException as error:
                self.torn = self.torn or f"the copy failed: {error!r}"
            with self._lock:
                self._left_now -= start in self._starts_now
                self._left -= 1
                ready_bytes = self._reach.note(start)
                if ready_bytes and not self._lanes and not self.torn:
                    self.arena.mark(self.number, ready_bytes, Fill.COPYING)
                self._note()

    def _note(self) -> None:
        if self._left_now == 0:
            self._have_now.set()
        if self._left == 0:
            self._check()
            if self._final and not self.torn and not self._lanes:
                self.call(Fill.WHOLE)
            self._whole.set()

    def _check(self) -> None:
        for name, tensor, version in self._watched:
            if _version(tensor) != version:
                self.torn = f"state[{name}] was written to before barrier() let it"
                break
        self._watched = []

    def _hold_back(self) -> None:
        for lane in self._lanes.values():
            lane.hold_back()

    def _acts(self, pairs: Iterable[Pair]) -> list[tuple[int, Act]]:
        """Return the copies to do, each with the place where it starts in the arena.

        From the CPU by memcpy (which drops the interpreter lock) where the bytes are in order.
        """
        acts: list[tuple[int, Act]] = []
        for slot, tensor in pairs:
            if slot.n_bytes == 0:
                continue
            if tensor.is_cpu and tensor.is_contiguous() and not _is_lazy(tensor):
                acts += _pieces(self.arena, slot, tensor)
            elif tensor.device.type in _WITH_STREAMS:
                lane = self._lane(tensor.device)
                acts.append((slot.offset, DeviceCopy(self.arena, slot, tensor, lane)))
            else:
                acts.append((slot.offset, _Copy(self.arena, slot, tensor)))
        return acts

    def _lane(self, device: torch.device) -> Lane:
        if device not in self._lanes:
            self._lanes[device] = Lane(device)
        return self._lanes[device]


class _Reach:
    """How far the copied bytes reach from the start without a gap."""

    def __init__(self, starts: list[int]) -> None:
        self._order = sorted(starts)
        self._done: set[int] = set()
        self._at = 0

    def note(self, start: int) -> int:
        """Count the piece at `start` as copied; returns the bytes that are there (0: unchanged)."""
        self._done.add(start)
        before = self._at
        while self._at < len(self._order) and self._order[self._at] in self._done:
            self._at += 1
        moved = before < self._at < len(self._order)
        return self._order[self._at] if moved else 0


def split(
    pairs: list[Pair], guarded: set[int] | None, *, overlap: bool
) -> tuple[list[Pair], list[Pair]]:
    """Return (what must be copied now, what may be copied beside training).

    `guarded`: the data pointers that only the guarded optimizers write; without it and with
    `overlap`, large tensors, as small ones may be buffers that the forward pass writes to.
    """
    now: list[Pair] = []
    beside: list[Pair] = []
    for pair in pairs:
        if guarded is not None:
            later = pair[1].data_ptr() in guarded
        else:
            later = overlap and pair[0].n_bytes > SMALL_BYTES
        (beside if later else now).append(pair)
    return now, beside


def owned_by(optimizers: Iterable[torch.optim.Optimizer]) -> set[int]:
    """Return the data pointers of the parameters and state that these optimizers write."""
    owned: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            owned.update([p.data_ptr() for p in group["params"]])
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    owned.add(value.data_ptr())
    return owned


def _pieces(arena: Arena, slot: Slot, tensor: torch.Tensor) -> list[tuple[int, Act]]:
    target, source = arena.address, tensor.data_ptr()
    if slot.n_bytes <= _PIECE_BYTES:
        return [(slot.offset, _Memcpy(target + slot.offset, source, slot.n_bytes, tensor))]
    acts: list[tuple[int, Act]] = []
    for at in range(0, slot.n_bytes, _PIECE_BYTES):
        n, start = min(_PIECE_BYTES, slot.n_bytes - at), slot.offset + at
        acts.append((start, _Memcpy(target + start, source + at, n, tensor)))
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
    """One copy through torch: from memory that is not in order, or from other devices."""

    __slots__ = ("_arena", "_slot", "_tensor")

    def __init__(self, arena: Arena, slot: Slot, tensor: torch.Tensor) -> None:
        self._arena, self._slot, self._tensor = arena, slot, tensor

    def __call__(self) -> None:
        self._arena.view(self._slot, self._tensor).copy_(self._tensor)


def _version(tensor: torch.Tensor) -> int:
    """Return the counter that every in-place write raises; 0 for inference tensors."""
    return 0 if tensor.is_inference() else int(tensor._version)
