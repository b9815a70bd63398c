"""Snapshots that outlive their trainer: the writer process keeps them, a restarted trainer asks.

They meet at a socket without a file (Linux's abstract names), by user, path and data file. What is
handed over is a read-only descriptor of the arena; the reader checks every chunk against the
committed manifest as it would a file, so the log and its fence decide what counts, not the memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from surefoot.checkpoint import wire
from surefoot.checkpoint.gate import CONTROL_BYTES, Fill, control_of
from surefoot.checkpoint.memory import available_bytes

_SETTLE_S = 60.0
_ANSWER_S = 5.0
_LOOK_S = 1.0
_LEAST_FREE_SHARE = 0.05
_LIBC = ctypes.CDLL(None)
_LIBC.memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True, slots=True)
class Kept:
    """A data file's bytes in an arena, as long as save number `save` is the last into it."""

    url: str
    folder: str
    name: str
    n_bytes: int
    arena: int
    save: int


class Keeper:
    """The writer process's side: what it holds, and the sockets where it can be asked for it."""

    def __init__(self, arenas: dict[int, mmap.mmap], fds: dict[int, int]) -> None:
        self._arenas, self._fds = arenas, fds
        self._kept: dict[int, Kept] = {}
        self._doors: dict[tuple[str, str], socket.socket] = {}
        self._dismissed = False

    def open_door(self, url: str, name: str) -> None:
        """Be there to be asked for a data file of a path, from the first order for it on."""
        if (url, name) in self._doors:
            return
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            door.bind(_address(url, name))
            door.listen(16)
        except OSError:  # somebody else keeps this one: we do without
            door.close()
            return
        self._doors[url, name] = door

    def keep(self, kept: Kept) -> None:
        """Remember what an arena holds now."""
        self._kept[kept.arena] = kept

    def wait(self, channel: socket.socket | None, hold_s: float, gone: int | None = None) -> bool:
        """Answer who asks; returns True when `channel` has news, False when there is no more to do.

        With a channel it ends when `gone`, the dead trainer's descriptor, is readable. Without
        one (the trainer died) it goes on for `hold_s`, until dismissed, or until memory is short.
        """
        until_s = time.monotonic() + hold_s
        while channel is not None or self._goes_on(until_s):
            doors = list(self._doors.values())
            ends = [end for end in (channel, gone) if end is not None]
            pause_s = None if channel is not None else _LOOK_S
            ready, _, _ = select.select([*doors, *ends], [], [], pause_s)
            if channel in ready:
                return True
            if gone is not None and gone in ready:
                return False
            for door in doors:
                if door in ready:
                    with contextlib.suppress(OSError):
                        self._answer(door.accept()[0], alive=channel is not None)
        return False

    def _goes_on(self, until_s: float) -> bool:
        if self._dismissed or not self._kept or time.monotonic() > until_s:
            return False
        free, held = available_bytes(), sum(kept.n_bytes for kept in self._kept.values())
        return free is None or free > max(held * _LEAST_FREE_SHARE, 64 << 20)

    def _answer(self, caller: socket.socket, *, alive: bool) -> None:
        with caller:
            caller.settimeout(_ANSWER_S)
            if _user_of(caller) != os.getuid():
                return
            message = wire.receive(caller)
            if message is None:
                return
            body = message[0]
            if "dismiss" in body and not alive:
                self._dismissed = True
                for door in self._doors.values():  # free the names before we say so
                    door.close()
                self._doors.clear()
            if "want" not in body:
                wire.send(caller, {"alive": alive})
                return
            self._hand_over(caller, body["want"])

    def _hand_over(self, caller: socket.socket, want: list[str]) -> None:
        for kept in self._kept.values():
            if [kept.url, kept.folder, kept.name] == want and self._is_whole(kept):
                fd = os.open(f"/proc/self/fd/{self._fds[kept.arena]}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    wire.send(caller, {"n_bytes": kept.n_bytes}, [fd])
                finally:
                    os.close(fd)
                return
        wire.send(caller, {})

    def _is_whole(self, kept: Kept) -> bool:
        memory = self._arenas.get(kept.arena)
        if memory is None:
            return False
        with control_of(memory) as control:
            return control[0] == kept.save and control[2] == Fill.WHOLE


class MemorySource:
    """A data file's bytes in a dead trainer's arena; read as a file is."""

    def __init__(self, fd: int, n_bytes: int) -> None:
        self._memory = mmap.mmap(fd, n_bytes + CONTROL_BYTES, flags=mmap.MAP_PRIVATE)
        os.close(fd)
        self._pin = ctypes.c_char.from_buffer(self._memory)
        self._address, self._n_bytes = ctypes.addressof(self._pin), n_bytes

    def read(self, offset: int, into: memoryview) -> int:
        """Copy bytes from `offset`; returns how many there were."""
        n = max(0, min(len(into), self._n_bytes - offset))
        if n:
            target = ctypes.c_char.from_buffer(into)
            _LIBC.memmove(ctypes.addressof(target), self._address + offset, n)
        return n

    def scatter(self, offset: int, into: list[memoryview]) -> bool:
        """Copy bytes from `offset` straight to where they go."""
        if offset + sum(len(part) for part in into) > self._n_bytes:
            return False
        for part in into:
            offset += self.read(offset, part)
        return True

    def close(self) -> None:
        """Let go of the memory."""
        del self._pin
        self._memory.close()


def find(url: str, folder: str, name: str, n_bytes: int) -> MemorySource | None:
    """Return a data file out of a keeper's memory, or None where nobody keeps it."""
    answer = _ask(url, name, {"want": [url, folder, name]}, _ANSWER_S)
    if answer is None or not answer[1]:
        return None
    body, (fd, *_) = answer
    if body["n_bytes"] != n_bytes or os.fstat(fd).st_size < n_bytes + CONTROL_BYTES:
        os.close(fd)
        return None
    return MemorySource(fd, n_bytes)


def settle(url: str, name: str) -> None:
    """Return when the writer of a trainer that died has finished the save it had.

    At once where there is none, or where its trainer lives.
    """
    _ask(url, name, {"settle": 1}, _SETTLE_S)


def dismiss(url: str, name: str) -> None:
    """Have a keeper whose trainer died let go of its memory."""
    _ask(url, name, {"dismiss": 1}, _ANSWER_S)


def _ask(
    url: str, name: str, body: dict[str, Any], timeout_s: float
) -> tuple[dict[str, Any], list[int]] | None:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(OSError, ValueError), caller:
        caller.settimeout(timeout_s)
        caller.connect(_address(url, name))
        if _user_of(caller) == os.getuid():
            wire.send(caller, body)
            return wire.receive(caller)
    return None


def _address(url: str, name: str) -> str:
    text = f"{os.getuid()}|{url}|{name}"
    return "\0surefoot-keeper-" + hashlib.sha256(text.encode()).hexdigest()[:32]


def _user_of(peer: socket.socket) -> int:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])
