"""The agent of one VM: starts the worker, passes messages, watches for notices, keeps the lease.

Run as `python -m surefoot.train.agent`; configured by environment only (SUREFOOT_*). It imports
neither torch nor numpy. Training goes on while the controller is away, up to the lease.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from surefoot.core.wire import (
    Beat,
    Formed,
    Generation,
    Hello,
    Leave,
    Message,
    Noticed,
    Ready,
    SetInterval,
    Stop,
    StoreUp,
    WorkerExited,
    encode,
)
from surefoot.errors import ConfigError
from surefoot.providers.notice import NoticeWatcher
from surefoot.providers.watchers import make_watcher
from surefoot.train.child import Child, worker_environment
from surefoot.train.lines import HubLine, Lines

BEAT_S = 0.2
_TICK_S = 0.05
_MAX_PATH = 100
_LOST_LEASE_EXIT = 75

_log = logging.getLogger("surefoot.agent")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What the environment says; `grace_s`: time a worker gets to hand over and end."""

    hub: str
    token: str
    secret: str
    address: str
    command: str
    workdir: str
    vm_dir: Path
    notice: str = "none"
    lease_s: float = 600.0
    grace_s: float = 30.0
    max_crashes: int = 3

    @staticmethod
    def read(env: Mapping[str, str]) -> AgentSettings:
        """Read SUREFOOT_*; raises ConfigError naming what is missing or wrong."""
        names = ("HUB", "TOKEN", "SECRET", "ADDRESS", "COMMAND")
        missing = [f"SUREFOOT_{n}" for n in names if not env.get(f"SUREFOOT_{n}")]
        if missing:
            raise ConfigError(f"the agent needs {', '.join(missing)} in its environment")
        hub, notice = env["SUREFOOT_HUB"], env.get("SUREFOOT_NOTICE") or "none"
        if not hub.rpartition(":")[2].isdigit() or not hub.rpartition(":")[0]:
            raise ConfigError(f"SUREFOOT_HUB must be host:port, not {hub!r}")
        try:
            make_watcher(notice)
        except ConfigError as error:
            raise ConfigError(f"SUREFOOT_NOTICE: {error}", hint=error.hint) from error
        vm_dir = env.get("SUREFOOT_VM_DIR") or tempfile.mkdtemp(prefix="surefoot-vm-")
        try:
            lease_s = float(env.get("SUREFOOT_LEASE_S") or 600)
            grace_s = float(env.get("SUREFOOT_GRACE_S") or 30)
            crashes = int(env.get("SUREFOOT_MAX_CRASHES") or 3)
        except ValueError as error:
            raise ConfigError(f"SUREFOOT_LEASE_S, _GRACE_S, _MAX_CRASHES: {error}") from error
        return AgentSettings(
            hub,
            env["SUREFOOT_TOKEN"],
            env["SUREFOOT_SECRET"],
            env["SUREFOOT_ADDRESS"],
            env["SUREFOOT_COMMAND"],
            env.get("SUREFOOT_WORKDIR", ""),
            Path(vm_dir),
            notice,
            lease_s,
            grace_s,
            crashes,
        )


class Agent:
    """One VM's agent; `run()` returns the exit code. Single-threaded but for the notice watcher."""

    def __init__(self, settings: AgentSettings, env: Mapping[str, str]) -> None:
        self._settings, self._env = settings, env
        self._selector = selectors.DefaultSelector()
        self._hub = HubLine(
            self._selector, settings.hub, on_message=self._from_hub, greet=self._greet
        )
        self._worker: Lines | None = None
        self._child: Child | None = None
        self._memory = Memory()
        self._crashes = 0
        self._restart_s = 0.0
        self._leaving: str | None = None
        self._limit_s = float("inf")
        self._code = 0
        self._beat_s = 0.0
        self._done = threading.Event()
        self._inside, self._wakeup = socket.socketpair()
        self._folder: str | None = None
        self._path = ""

    def run(self) -> int:
        """Live until told to leave, the worker's work is over, or the lease ends."""
        self._open()
        try:
            while not self._over():
                self._turn()
            self._flush()
            return self._code
        finally:
            self._close()

    # -- one turn ------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._hub.turn()
        for key, events in self._selector.select(_TICK_S):
            key.data(events)
        now_s = time.monotonic()
        if now_s - self._beat_s >= BEAT_S:
            self._beat_s = now_s
            self._hub.send(Beat(worker_alive=self._child is not None))
        self._watch_child(now_s)
        if now_s - self._hub.heard_s > self._settings.lease_s and self._leaving is None:
            _log.warning("no controller for %.0f s: the lease is over", self._settings.lease_s)
            self._code = _LOST_LEASE_EXIT
            self._leave("lease", Stop(save=True))

    def _watch_child(self, now_s: float) -> None:
        if self._child is None:
            if self._leaving is None and now_s >= self._restart_s:
                self._start_child()
            return
        code = self._child.exit_code()
        if code is None:
            return
        tail = self._child.tail() if code else ""
        self._child.kill()  # what it left running in its session
        self._child = None
        self._memory.forget_group()
        self._hub.send(WorkerExited(code, tail))
        _log.info("worker exited with %d", code)
        self._crashes += code != 0
        self._restart_s = now_s + min(30.0, 0.5 * 2 ** (self._crashes - 1))
        if code == 0 or self._crashes > self._settings.max_crashes:
            self._restart_s = float("inf")  # its work is over, or it cannot do it

    def _over(self) -> bool:
        if self._leaving is None:
            return False
        return self._child is None or time.monotonic() > self._limit_s

    def _leave(self, why: str, message: Message) -> None:
        """Tell the worker; end when it has ended, or after the grace."""
        self._leaving = why
        self._limit_s = time.monotonic() + self._settings.grace_s
        self._memory.last_word = message
        self._to_worker(message)

    # -- messages ------------------------------------------------------------------------------

    def _greet(self) -> list[Message]:
        s = self._settings
        greeting: list[Message] = [Hello(s.token, s.secret, s.address)]
        return greeting + self._memory.for_controller()

    def _from_hub(self, message: Message) -> None:
        self._memory.note(message)
        match message:
            case Leave():
                self._leave("leave", message)
            case Stop():
                self._leave("stop", message)
            case _:
                self._to_worker(message)

    def _from_worker(self, message: Message) -> None:
        self._memory.note(message)
        self._hub.send(message)

    def _to_worker(self, message: Message) -> None:
        if self._worker is not None:
            self._worker.send(encode(message))

    def _noticed(self, left_ms: int, source: str) -> None:
        notice = Noticed(max(0, left_ms), source)
        _log.info("notice from %s: %d ms left", source, left_ms)
        self._memory.note(notice)
        self._hub.send(notice)
        self._to_worker(notice)

    def _accept(self, events: int) -> None:
        connection, _ = self._server.accept()
        if self._worker is not None:
            self._worker.end()
        self._worker = Lines(self._selector, connection, self._from_worker, self._worker_gone)
        for message in self._memory.for_worker():
            self._to_worker(message)

    def _worker_gone(self) -> None:
        self._worker = None

    # -- start and end -------------------------------------------------------------------------

    def _open(self) -> None:
        self._settings.vm_dir.mkdir(parents=True, exist_ok=True)
        self._path = str(self._settings.vm_dir / "agent.sock")
        if len(self._path) > _MAX_PATH:
            self._folder = tempfile.mkdtemp(prefix="surefoot-")
            self._path = f"{self._folder}/agent.sock"
        Path(self._path).unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self._path)
        self._server.listen(8)
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        self._inside.setblocking(False)
        self._selector.register(self._inside, selectors.EVENT_READ, self._woken)
        signal.signal(signal.SIGTERM, lambda *_: self._signal_wakeup(b"term\n"))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to hear
        watcher = make_watcher(self._settings.notice)
        if watcher is not None:
            threading.Thread(
                target=self._watch, args=(watcher,), name="notice", daemon=True
            ).start()

    def _signal_wakeup(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            self._wakeup.send(word)

    def _woken(self, events: int) -> None:
        for word in self._inside.recv(4096).decode().split():
            if word == "term":
                self._noticed(round(self._settings.grace_s * 1000), "signal")
            else:
                self._noticed(int(word), self._settings.notice)

    def _watch(self, watcher: NoticeWatcher) -> None:
        """Watch for notices (own thread) until the agent ends."""
        watcher.watch(
            lambda notice: self._signal_wakeup(f"{notice.left_ms}\n".encode()), self._done
        )

    def _start_child(self) -> None:
        s = self._settings
        env = worker_environment(self._env, self._path)
        try:
            self._child = Child(s.command, s.workdir, env, s.vm_dir / "worker.log")
        except OSError as error:
            self._hub.send(WorkerExited(127, f"{s.command}: {error}"))
            self._restart_s = float("inf")
            return
        _log.info("worker started, pid %d", self._child.pid)

    def _flush(self) -> None:
        limit_s = time.monotonic() + 2.0
        while self._hub.up and not self._hub.idle and time.monotonic() < limit_s:
            for key, events in self._selector.select(_TICK_S):
                key.data(events)

    def _close(self) -> None:
        self._done.set()
        if self._child is not None:
            self._child.kill()
        self._hub.end()
        Path(self._path).unlink(missing_ok=True)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                Path(self._folder).rmdir()


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


def main() -> int:
    """Run the agent that the environment describes; returns the exit code."""
    try:
        settings = AgentSettings.read(os.environ)
    except ConfigError as error:
        print(f"surefoot agent: {error}", file=sys.stderr)
        return 2
    settings.vm_dir.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=settings.vm_dir / "agent.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    return Agent(settings, os.environ).run()


if __name__ == "__main__":
    sys.exit(main())
