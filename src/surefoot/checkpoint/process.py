"""The writer process: takes orders and arenas from a trainer, and finishes its order without it.

It imports no torch and ignores the terminal's signals. When the trainer's end of the channel closes
it makes the order durable that it has by then, if the copy is whole. Then it ends: at once after a
word of farewell, else after it has kept the last snapshot in memory for a restarted trainer.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

from surefoot.checkpoint import wire
from surefoot.checkpoint.errors_wire import error_json
from surefoot.checkpoint.gate import ArenaGate
from surefoot.checkpoint.keeper import Keeper, Kept
from surefoot.checkpoint.manifest import file_json
from surefoot.checkpoint.persist import Order, Persister, data_name, typed_errors
from surefoot.checkpoint.retention import unspelled
from surefoot.checkpoint.storage import open_storage

_PR_SET_NAME = 15


def main(channel_fd: int, hold_s: float = 0.0) -> None:
    """Serve orders until the channel closes; keep the last snapshot for `hold_s` after that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"surefoot-writer", 0, 0, 0)
    server = _Server(socket.socket(fileno=channel_fd), _end_of(os.getppid()), keeps=hold_s > 0)
    while server.keeper.wait(server.channel, 0.0, server.gone):
        message = wire.receive(server.channel)
        if message is None:
            break
        if "bye" in message[0]:
            return
        server.answer(*message)
    server.keeper.wait(None, hold_s)


def _end_of(pid: int) -> int | None:
    """Return a descriptor that is readable once a process is dead, where the system has such."""
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


class _Server:
    """The arenas that were passed, by number, and one persister per path."""

    def __init__(self, channel: socket.socket, gone: int | None, *, keeps: bool) -> None:
        self.channel, self.gone, self._keeps = channel, gone, keeps
        self._arenas: dict[int, mmap.mmap] = {}
        self._fds: dict[int, int] = {}
        self._persisters: dict[str, Persister] = {}
        self.keeper = Keeper(self._arenas, self._fds)

    def answer(self, body: dict[str, Any], fds: list[int]) -> None:
        """Do one order and tell the trainer, if it still lives, how it ended."""
        if fds:
            self._take_arena(body["arena"], fds[0])
        for number in self._arenas.keys() - set(body["live"]):
            self._arenas.pop(number).close()
            os.close(self._fds.pop(number))
        name = body.get("data") or data_name(0)
        if self._keeps:
            self.keeper.open_door(body["url"], name)
        try:
            reply = self._data(body) if "data" in body else {"folder": self._persist(body)}
            self._keep(body, name, reply)
        except Exception as error:  # it goes to the trainer, typed
            reply = {"error": error_json(error)}
        with contextlib.suppress(OSError):
            wire.send(self.channel, reply)
        if "folder" in reply:  # durable: the trainer knows, and what is left may take its time
            self._persisters[body["url"]].tidy(reply["folder"])

    def _take_arena(self, number: int, fd: int) -> None:
        n_bytes = os.fstat(fd).st_size
        self._arenas[number] = mmap.mmap(fd, n_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._fds[number] = fd

    def _keep(self, body: dict[str, Any], name: str, reply: dict[str, Any]) -> None:
        folder = body.get("folder") or reply["folder"]
        n_bytes = body["n_bytes"] if "data" in body else body["order"]["n_bytes"]
        kept = Kept(body["url"], folder, name, n_bytes, body["arena"], body["save"])
        self.keeper.keep(kept)

    def _data(self, body: dict[str, Any]) -> dict[str, Any]:
        """Write one data file of a checkpoint that several ranks make."""
        storage = open_storage(body["url"])
        with typed_errors(body["url"]), self._open(body, body["n_bytes"]) as (part, gate):
            file = storage.write_data(body["folder"], body["data"], part, gate.ready)
            gate.whole()
        return {"file": file_json(file)}

    def _persist(self, body: dict[str, Any]) -> str:
        url = body["url"]
        persister = self._persisters.setdefault(url, Persister(url, unspelled(body["keep"])))
        persister.corrupt = set(body["corrupt"])
        persister.go_on(body["writer"], body["generation"], body["attempt"])
        order = Order(**body["order"])
        with self._open(body, order.n_bytes) as (part, gate):
            return persister.persist(order, part, gate)

    @contextlib.contextmanager
    def _open(self, body: dict[str, Any], n_bytes: int) -> Iterator[tuple[memoryview, ArenaGate]]:
        """Give the bytes of a snapshot, and how far they are copied."""
        memory = self._arenas[body["arena"]]
        gate = ArenaGate(memory, body["save"], self.channel, self.gone)
        try:
            with memoryview(memory) as whole, whole[:n_bytes] as part:
                yield part, gate
        finally:
            gate.close()
