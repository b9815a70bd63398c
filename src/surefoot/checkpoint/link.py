"""The trainer's end of the writer process: starts it, gives it orders, notes its death."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from surefoot.checkpoint import wire
from surefoot.checkpoint.errors_wire import error_from_json
from surefoot.checkpoint.manifest import File, file_from_json
from surefoot.checkpoint.persist import Order, Persister
from surefoot.checkpoint.stage import Arena
from surefoot.errors import CheckpointError

_CODE = "import sys; from surefoot.checkpoint.process import main; main(int(sys.argv[1]))"
_END_S = 60.0


class WriterProcess:
    """One writer process, started at the first order and again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._known: set[int] = set()

    @property
    def pid(self) -> int | None:
        """The process id while one runs."""
        return None if self._process is None else self._process.pid

    def persist(self, persister: Persister, order: Order, arena: Arena) -> str:
        """Have the process write and commit `order`; returns the folder.

        Raises what `Persister.persist` raises, and CheckpointError if the process died; the next
        order starts a new one.
        """
        body = {
            "url": persister.url,
            "keep": persister.keep,
            "corrupt": sorted(persister.corrupt),
            "writer": persister.commits.writer,
            "generation": persister.commits.generation,
            "attempt": persister.attempt,
            "order": asdict(order),
        }
        return str(self._ask(body, arena)["folder"])

    def write_data(self, url: str, folder: str, name: str, arena: Arena, n_bytes: int) -> File:
        """Have the process put the arena's first bytes as one data file; raises as `persist`."""
        body = {"url": url, "folder": folder, "data": name, "n_bytes": n_bytes}
        return file_from_json(self._ask(body, arena)["file"])

    def _ask(self, body: dict[str, Any], arena: Arena) -> dict[str, Any]:
        channel = self._start()
        fresh = arena.number not in self._known
        body = {**body, "arena": arena.number, "live": sorted(Arena.live)}
        try:
            wire.send(channel, body, [arena.fd] if fresh else None)
            self._known.add(arena.number)
            answer = wire.receive(channel)
        except OSError:
            answer = None
        if answer is None:
            raise self._died()
        if "error" in answer[0]:
            raise error_from_json(answer[0]["error"])
        return answer[0]

    def close(self) -> None:
        """End the process; it finishes an order that it has."""
        if self._process is None or self._channel is None:
            return
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
                    [sys.executable, "-c", _CODE, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
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
