"""The trainer's end of the writer process: starts it, gives it orders, notes its death."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from surefoot.checkpoint import wire
from surefoot.checkpoint.arena import Arena
from surefoot.checkpoint.errors_wire import error_from_json
from surefoot.checkpoint.manifest import File, file_from_json
from surefoot.checkpoint.persist import Order, Persister
from surefoot.checkpoint.retention import spelled
from surefoot.checkpoint.stage import Snapshot
from surefoot.errors import CheckpointError

_CODE = """import sys
from surefoot.checkpoint.process import main
main(int(sys.argv[1]), float(sys.argv[2]))"""
_END_S = 60.0


class WriterProcess:
    """One writer process, started at the first order and again after it died.

    `hold_s`: how long it keeps the last snapshot in memory if this process dies.
    """

    def __init__(self, hold_s: float = 0.0) -> None:
        self._hold_s = hold_s
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._known: set[int] = set()

    @property
    def pid(self) -> int | None:
        """The process id while one runs."""
        return None if self._process is None else self._process.pid

    def persist(
        self,
        persister: Persister,
        order: Order,
        snapshot: Snapshot,
        fill: Callable[[], None],
    ) -> str:
        """Have the process write and commit `order`; returns the folder.

        `fill` copies beside the writing and ends by calling the snapshot whole or void. Raises
        what it raises, what `Persister.persist` raises, and CheckpointError if the process died;
        the next order starts a new one.
        """
        body = {
            "url": persister.url,
            "keep": spelled(persister.keep),
            "corrupt": sorted(persister.corrupt),
            "writer": persister.commits.writer,
            "generation": persister.commits.generation,
            "attempt": persister.attempt,
            "order": asdict(order),
        }
        return str(self._ask(body, snapshot, fill)["folder"])

    def write_data(
        self,
        url: str,
        folder: str,
        name: str,
        snapshot: Snapshot,
        n_bytes: int,
        fill: Callable[[], None],
    ) -> File:
        """Have the process put a snapshot's bytes as one data file; raises as `persist`."""
        body = {"url": url, "folder": folder, "data": name, "n_bytes": n_bytes}
        return file_from_json(self._ask(body, snapshot, fill)["file"])

    def _ask(
        self, body: dict[str, Any], snapshot: Snapshot, fill: Callable[[], None]
    ) -> dict[str, Any]:
        """Give one order, fill the arena meanwhile, and return the answer."""
        arena = snapshot.arena
        sent = self._send({**body, "save": snapshot.number}, arena)
        try:
            fill()
        except BaseException:
            if sent:
                self._receive()  # it says that it gave the order up
            raise
        answer = self._receive() if sent else None
        if answer is None:
            raise self._died()
        if "error" in answer:
            raise error_from_json(answer["error"])
        return answer

    def _send(self, body: dict[str, Any], arena: Arena) -> bool:
        """Send an order, and the arena's descriptor with it if it is new to the process."""
        channel = self._start()
        fresh = arena.number not in self._known
        body = {**body, "arena": arena.number, "live": sorted(Arena.live)}
        try:
            wire.send(channel, body, [arena.fd] if fresh else None)
        except OSError:
            return False
        self._known.add(arena.number)
        return True

    def _receive(self) -> dict[str, Any] | None:
        """Return the process's answer, None if it died."""
        assert self._channel is not None
        try:
            answer = wire.receive(self._channel)
        except OSError:
            return None
        return None if answer is None else answer[0]

    def close(self, *, keeps: bool = False) -> None:
        """End the process; it finishes an order that it has. `keeps`: as if this one had died."""
        if self._process is None or self._channel is None:
            return
        if keeps and self._hold_s > 0:
            self._channel.close()
            self._process.returncode = 0  # let it be: it ends by itself
            self._process = self._channel = None
            return
        with contextlib.suppress(OSError):
            wire.send(self._channel, {"bye": True})
        self._channel.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = self._channel = None
        self._known = set()

    def _start(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        if self._channel is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _CODE, str(theirs.fileno()), str(self._hold_s)],
                    pass_fds=[theirs.fileno()],
                    start_new_session=self._hold_s > 0,  # whoever ends our group leaves it alone
                    stdin=subprocess.DEVNULL,  # and no pipe of the trainer's is held open by it
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            self._channel = ours
        return self._channel

    def _died(self) -> CheckpointError:
        assert self._process is not None
        code = self._process.wait()
        self._forget()
        return CheckpointError(
            f"the writer process died (exit code {code}); the next save starts a new one",
            hint='if it keeps dying, try: python -c "import surefoot.checkpoint.process"',
        )

    def _forget(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._process = self._channel = None
        self._known = set()
