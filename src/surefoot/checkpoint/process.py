"""The writer process: takes orders and arenas from a trainer, and finishes its order without it.

It imports no torch, ignores the terminal's signals, and ends when the trainer's end of the channel
closes; an order that it has by then is still made durable.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
from typing import Any

from surefoot.checkpoint import wire
from surefoot.checkpoint.errors_wire import error_json
from surefoot.checkpoint.manifest import file_json
from surefoot.checkpoint.persist import Order, Persister, typed_errors
from surefoot.checkpoint.storage import open_storage

_PR_SET_NAME = 15


def main(channel_fd: int) -> None:
    """Serve orders until the channel closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"surefoot-writer", 0, 0, 0)
    server = _Server(socket.socket(fileno=channel_fd))
    while (message := wire.receive(server.channel)) is not None:
        server.answer(*message)


class _Server:
    """The arenas that were passed, by number, and one persister per path."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._arenas: dict[int, mmap.mmap] = {}
        self._persisters: dict[str, Persister] = {}

    def answer(self, body: dict[str, Any], fds: list[int]) -> None:
        """Do one order and tell the trainer, if it still lives, how it ended."""
        if fds:
            self._take_arena(body["arena"], fds[0])
        for number in self._arenas.keys() - set(body["live"]):
            self._arenas.pop(number).close()
        try:
            reply = self._data(body) if "data" in body else {"folder": self._persist(body)}
        except Exception as error:  # it goes to the trainer, typed
            reply = {"error": error_json(error)}
        with contextlib.suppress(OSError):
            wire.send(self.channel, reply)
        if "folder" in reply:  # durable: the trainer knows, and what is left may take its time
            self._persisters[body["url"]].tidy(reply["folder"])

    def _take_arena(self, number: int, fd: int) -> None:
        n_bytes = os.fstat(fd).st_size
        self._arenas[number] = mmap.mmap(fd, n_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        os.close(fd)

    def _data(self, body: dict[str, Any]) -> dict[str, Any]:
        """Write one data file of a checkpoint that several ranks make."""
        storage = open_storage(body["url"])
        view = memoryview(self._arenas[body["arena"]])
        with typed_errors(body["url"]), view as memory, memory[: body["n_bytes"]] as part:
            file = storage.write_data(body["folder"], body["data"], part)
        return {"file": file_json(file)}

    def _persist(self, body: dict[str, Any]) -> str:
        url = body["url"]
        persister = self._persisters.setdefault(url, Persister(url, body["keep"]))
        persister.corrupt = set(body["corrupt"])
        persister.go_on(body["writer"], body["generation"], body["attempt"])
        order = Order(**body["order"])
        with memoryview(self._arenas[body["arena"]]) as memory, memory[: order.n_bytes] as part:
            return persister.persist(order, part)
