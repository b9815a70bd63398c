"""The workers of one VM that re-form in place: one process for each GPU, each with its own line.

Rank 0 of the VM speaks for it; the others are heard only where every one of them counts.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from surefoot.core.wire import (
    Broken,
    Formed,
    Generation,
    Message,
    Noticed,
    Ready,
    SetInterval,
    StoreUp,
    WorkerExited,
    encode,
)
from surefoot.train.child import Child, worker_environment
from surefoot.train.lines import Lines

Say = Callable[[Message], None]
"""Tells the controller something in the VM's name."""

_MAX_PATH = 100

_log = logging.getLogger("surefoot.agent")


class Crew(Protocol):
    """What trains in a VM."""

    @property
    def alive(self) -> bool:
        """Whether anything of it runs."""

    def hear(self, message: Message) -> None:
        """Act on what the controller says, or on a notice."""

    def turn(self, now_s: float) -> None:
        """Do what is due; `now_s` is monotonic."""

    def kill(self) -> None:
        """End all of it at once."""


@dataclass(slots=True, eq=False)
class _Worker:
    """One worker process's place: its socket, and who is there now."""

    local_rank: int
    path: str
    server: socket.socket
    line: Lines | None = None
    child: Child | None = None
    ready: Ready | None = field(default=None)


class LiveCrew:
    """Starts the workers, passes messages, and starts all again when one of them fails."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        command: str,
        workdir: str,
        vm_dir: Path,
        workers: int,
        max_crashes: int,
        say: Say,
        memory: Memory,
        selector: selectors.BaseSelector,
    ) -> None:
        self._env, self._command, self._workdir, self._vm_dir = env, command, workdir, vm_dir
        self._max_crashes, self._say, self._memory = max_crashes, say, memory
        self._selector = selector
        self._folder: str | None = None
        self._crashes = 0
        self._restart_s = 0.0
        self._leaving = False
        self._workers = [self._open(number) for number in range(workers)]

    @property
    def alive(self) -> bool:
        """Whether a worker runs."""
        return any(worker.child is not None for worker in self._workers)

    def hear(self, message: Message) -> None:
        """Pass it on to the workers."""
        if message is self._memory.last_word:
            self._leaving = True
        for worker in self._workers:
            self._tell(worker, message)

    def turn(self, now_s: float) -> None:
        """Start the workers, or see whether one has ended."""
        if not self.alive:
            if not self._leaving and now_s >= self._restart_s:
                for worker in self._workers:
                    self._start(worker)
            return
        for worker in self._workers:
            code = None if worker.child is None else worker.child.exit_code()
            if code is not None:
                self._ended(worker, code, now_s)

    def kill(self) -> None:
        """End the workers and close their sockets."""
        for worker in self._workers:
            self._end(worker)
            Path(worker.path).unlink(missing_ok=True)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                Path(self._folder).rmdir()

    def _ended(self, worker: _Worker, code: int, now_s: float) -> None:
        """One that fails takes the others along; those that end well wait for each other."""
        tail = worker.child.tail() if worker.child and code else ""
        _log.info("worker exited with %d", code)
        self._end(worker)
        if code == 0 and self.alive:
            return
        for other in self._workers:
            self._end(other)
        self._memory.forget_group()
        self._say(WorkerExited(code, tail))
        self._crashes += code != 0
        self._restart_s = now_s + min(30.0, 0.5 * 2 ** (self._crashes - 1))
        if code == 0 or self._crashes > self._max_crashes:
            self._restart_s = float("inf")  # its work is over, or it cannot do it

    def _end(self, worker: _Worker) -> None:
        if worker.child is not None:
            worker.child.kill()  # it, and what it left running
        worker.child = worker.ready = None

    # -- messages --------------------------------------------------------------------------------

    def _heard(self, worker: _Worker, message: Message) -> None:
        if isinstance(message, Ready):
            worker.ready = message
            said = [w.ready for w in self._workers if w.ready is not None]
            if len(said) < len(self._workers):
                return
            message = replace(message, boot_ms=max(r.boot_ms for r in said))
        elif isinstance(message, Broken) and worker.local_rank:
            return  # the first of the VM says so too
        elif isinstance(message, StoreUp):  # the hub passes it on to the other VMs
            for other in self._workers:
                if other is not worker:
                    self._tell(other, message)
        self._say(message)

    def _tell(self, worker: _Worker, message: Message) -> None:
        if worker.line is not None:
            worker.line.send(encode(message))

    def _accept(self, worker: _Worker) -> None:
        connection, _ = worker.server.accept()
        if worker.line is not None:
            worker.line.end()

        def gone() -> None:
            worker.line = None

        worker.line = Lines(
            self._selector, connection, lambda message: self._heard(worker, message), gone
        )
        for message in self._memory.for_worker():
            self._tell(worker, message)

    # -- start -----------------------------------------------------------------------------------

    def _open(self, local_rank: int) -> _Worker:
        name = f"agent{local_rank or ''}.sock"
        path = str(self._vm_dir / name)
        if len(path) > _MAX_PATH:
            self._folder = self._folder or tempfile.mkdtemp(prefix="surefoot-")
            path = f"{self._folder}/{name}"
        Path(path).unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(path)
        server.listen(8)
        worker = _Worker(local_rank, path, server)
        self._selector.register(server, selectors.EVENT_READ, lambda events: self._accept(worker))
        return worker

    def _start(self, worker: _Worker) -> None:
        env = worker_environment(self._env, worker.path)
        count = len(self._workers)
        env = {k: v for k, v in env.items() if k not in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")}
        if count > 1:
            env |= {"LOCAL_RANK": str(worker.local_rank), "LOCAL_WORLD_SIZE": str(count)}
        log = f"worker{worker.local_rank or ''}.log"
        try:
            worker.child = Child(self._command, self._workdir, env, self._vm_dir / log)
        except OSError as error:
            self._say(WorkerExited(127, f"{self._command}: {error}"))
            self._restart_s = float("inf")
            return
        _log.info("worker started, pid %d", worker.child.pid)


class Memory:
    """What a worker or a controller that comes (back) later must still be told."""

    def __init__(self) -> None:
        self.last_word: Message | None = None
        self._ready: Ready | None = None
        self._formed: Formed | None = None
        self._generation: Generation | None = None
        self._store: StoreUp | None = None
        self._interval: SetInterval | None = None
        self._notice: tuple[Noticed, float] | None = None

    def note(self, message: Message) -> None:
        """Remember the newest of each kind that matters."""
        match message:
            case Ready():
                self._ready = message
            case Formed():
                self._formed = message
            case Generation():
                self._generation = message
            case StoreUp():
                self._store = message
            case SetInterval():
                self._interval = message
            case Noticed():
                self._notice = (message, time.monotonic() + message.left_ms / 1000)
            case _:
                pass

    def forget_group(self) -> None:
        """The worker ended: its next run was in no group and has not said that it is ready."""
        self._ready = self._formed = None
        self._generation = self._store = None

    def for_controller(self) -> list[Message]:
        """Return what to say after Hello; a controller that knew it all ignores it."""
        told: list[Message] = [m for m in (self._ready, self._formed) if m is not None]
        return told + [n for n in (self._left(),) if n is not None]

    def for_worker(self) -> list[Message]:
        """Return what to tell a worker that has just connected."""
        known = (self._interval, self._generation, self._store, self._left(), self.last_word)
        return [m for m in known if m is not None]

    def _left(self) -> Noticed | None:
        if self._notice is None:
            return None
        notice, deadline_s = self._notice
        return replace(notice, left_ms=max(0, round((deadline_s - time.monotonic()) * 1000)))
