"""What the trainer tells the writer through shared memory: how far a copy has come."""

from __future__ import annotations

import enum
import mmap
import select
import socket
from collections.abc import Callable
from typing import Protocol

from surefoot.errors import CheckpointError

CONTROL_BYTES = 4096
_LOOK_S = 0.0005

Ready = Callable[[int], None]
"""Returns when so many bytes from the start are there; raises when they will never be."""


class Fill(enum.IntEnum):
    """How a copy into an arena stands."""

    COPYING = 0
    WHOLE = 1
    VOID = 2


def control_of(memory: mmap.mmap) -> memoryview:
    """Return an arena's last page as whole numbers, each read and written as one.

    They are: the number of the save, how many bytes from the start are copied, and a Fill.
    """
    at = len(memory) - CONTROL_BYTES
    return memoryview(memory)[at : at + 24].cast("Q")


class Gate(Protocol):
    """Whoever writes memory that is still being filled goes through here."""

    def ready(self, n_bytes: int) -> None:
        """Return when the first `n_bytes` are there; raises CheckpointError if they won't be."""
        ...

    def whole(self) -> None:
        """Return when all is there and found good; raises CheckpointError if it never will be."""
        ...


class ArenaGate:
    """The writer process's view of a copy that the trainer still makes.

    `channel`: the conversation with the trainer; its end means that the copy stays what it is, as
    does `gone`, a descriptor that is readable once the trainer is dead (its forks, such as those of
    a data loader, may hold the channel open).
    """

    def __init__(
        self, memory: mmap.mmap, save: int, channel: socket.socket, gone: int | None = None
    ) -> None:
        self._control, self._save, self._channel = control_of(memory), save, channel
        self._ends: list[socket.socket | int] = [channel] if gone is None else [channel, gone]

    def close(self) -> None:
        """Let go of the memory."""
        self._control.release()

    def ready(self, n_bytes: int) -> None:
        """Return when the first `n_bytes` are there, looking twice a millisecond."""
        self._await(n_bytes, Fill.COPYING)

    def whole(self) -> None:
        """Return when the trainer has called the copy whole."""
        self._await(0, Fill.WHOLE)

    def _await(self, n_bytes: int, least: Fill) -> None:
        ended = False
        while True:
            save, ready_bytes, fill = self._control
            if save == self._save and fill == Fill.WHOLE:
                return
            if save == self._save and fill == Fill.COPYING == least and ready_bytes >= n_bytes:
                return
            if ended or (save == self._save and fill == Fill.VOID):
                who = "the trainer died" if ended else "the trainer gave the copy up"
                raise CheckpointError(f"the snapshot was never whole: {who}")
            ended = self._trainer_ended()

    def _trainer_ended(self) -> bool:
        """Wait a moment; whether the trainer is gone (it says nothing while we write)."""
        readable, _, _ = select.select(self._ends, [], [], _LOOK_S)
        if self._channel not in readable:
            return bool(readable)
        try:
            return not self._channel.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True
