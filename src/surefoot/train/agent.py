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
from dataclasses import dataclass
from pathlib import Path

from surefoot.core.wire import Beat, Hello, Leave, Message, Noticed, Pass, Secrets, Stop
from surefoot.errors import ConfigError
from surefoot.providers.notice import NoticeWatcher
from surefoot.providers.watchers import make_watcher
from surefoot.train.crew import Crew, LiveCrew, Memory
from surefoot.train.hidden import Waiting, mask_message, names_of, values_of
from surefoot.train.launch import engine_of
from surefoot.train.lines import HubLine
from surefoot.train.script import ScriptTerms
from surefoot.train.torchrun import ScriptCrew

BEAT_S = 0.2
_TICK_S = 0.05
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
    engine: str = "auto"
    setup: str = ""
    workers: int = 1
    script: ScriptTerms = ScriptTerms()

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
            workers = max(1, int(env.get("SUREFOOT_WORKERS") or 1))
        except ValueError as error:
            which = "SUREFOOT_LEASE_S, _GRACE_S, _MAX_CRASHES, _WORKERS"
            raise ConfigError(f"{which}: {error}") from error
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
            env.get("SUREFOOT_ENGINE") or "auto",
            env.get("SUREFOOT_SETUP", ""),
            workers,
            ScriptTerms.read(env.get("SUREFOOT_SCRIPT", "")),
        )


class Agent:
    """One VM's agent; `run()` returns the exit code. Single-threaded but for the notice watcher."""

    def __init__(self, settings: AgentSettings, env: Mapping[str, str]) -> None:
        self._settings, self._env = settings, dict(env)
        self._selector = selectors.DefaultSelector()
        self._hub = HubLine(
            self._selector, settings.hub, on_message=self._from_hub, greet=self._greet
        )
        self._memory = Memory()
        self._pass = settings.secret
        self._leaving: str | None = None
        self._limit_s = float("inf")
        self._code = 0
        self._beat_s = 0.0
        self._done = threading.Event()
        self._inside, self._wakeup = socket.socketpair()

    def run(self) -> int:
        """Live until told to leave, the worker's work is over, or the lease ends."""
        self._open()
        try:
            while not self._over():
                self._turn()
            self._flush()
            return self._code
        finally:
            self._done.set()
            self._crew.kill()
            self._hub.end()

    # -- one turn ------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._hub.turn()
        for key, events in self._selector.select(_TICK_S):
            key.data(events)
        now_s = time.monotonic()
        if now_s - self._beat_s >= BEAT_S:
            self._beat_s = now_s
            self._hub.send(Beat(worker_alive=self._crew.alive))
        self._crew.turn(now_s)
        if now_s - self._hub.heard_s > self._settings.lease_s and self._leaving is None:
            _log.warning("no controller for %.0f s: the lease is over", self._settings.lease_s)
            self._code = _LOST_LEASE_EXIT
            self._leave("lease", Stop(save=True))

    def _over(self) -> bool:
        if self._leaving is None:
            return False
        return not self._crew.alive or time.monotonic() > self._limit_s

    def _leave(self, why: str, message: Message) -> None:
        """Tell the worker; end when it has ended, or after the grace."""
        self._leaving = why
        self._limit_s = time.monotonic() + self._settings.grace_s
        self._memory.last_word = message
        self._crew.hear(message)

    # -- messages ------------------------------------------------------------------------------

    def _greet(self) -> list[Message]:
        s = self._settings
        greeting: list[Message] = [Hello(s.token, self._pass, s.address)]
        return greeting + self._memory.for_controller()

    def _from_hub(self, message: Message) -> None:
        self._memory.note(message)
        match message:
            case Leave():
                self._leave("leave", message)
            case Stop():
                self._leave("stop", message)
            case Pass():
                self._pass = message.word
            case Secrets():
                self._take_secrets(message)
            case _:
                self._crew.hear(message)

    def _say(self, message: Message) -> None:
        """Tell the controller something in the crew's name, without the job's secrets."""
        message = mask_message(message, values_of(self._env))
        self._memory.note(message)
        self._hub.send(message)

    def _noticed(self, left_ms: int, source: str) -> None:
        notice = Noticed(max(0, left_ms), source)
        _log.info("notice from %s: %d ms left", source, left_ms)
        self._memory.note(notice)
        self._hub.send(notice)
        self._crew.hear(notice)

    # -- start and end -------------------------------------------------------------------------

    def _open(self) -> None:
        self._settings.vm_dir.mkdir(parents=True, exist_ok=True)
        self._crew: Crew = Waiting() if names_of(self._env) else self._make_crew()
        self._inside.setblocking(False)
        self._selector.register(self._inside, selectors.EVENT_READ, self._woken)
        signal.signal(signal.SIGTERM, lambda *_: self._signal_wakeup(b"term\n"))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to hear
        watcher = make_watcher(self._settings.notice)
        if watcher is not None:
            threading.Thread(
                target=self._watch, args=(watcher,), name="notice", daemon=True
            ).start()

    def _make_crew(self) -> Crew:
        s = self._settings
        if engine_of(s.engine, s.command, s.workdir) == "torchrun":
            return ScriptCrew(
                self._env,
                command=s.command,
                setup=s.setup,
                workdir=s.workdir,
                vm_dir=s.vm_dir,
                terms=s.script,
                workers=s.workers,
                grace_s=s.grace_s,
                max_crashes=s.max_crashes,
                say=self._say,
            )
        return LiveCrew(
            self._env,
            command=f"( {s.setup}\n) || exit $?\n{s.command}" if s.setup.strip() else s.command,
            workdir=s.workdir,
            vm_dir=s.vm_dir,
            workers=s.workers,
            max_crashes=s.max_crashes,
            say=self._say,
            memory=self._memory,
            selector=self._selector,
        )

    def _take_secrets(self, message: Secrets) -> None:
        """Give the secrets to all workers to come; begin when they were waited for."""
        wanted = names_of(self._env)
        self._env.update({k: v for k, v in message.values.items() if k in wanted})
        if isinstance(self._crew, Waiting) and all(name in self._env for name in wanted):
            heard, self._crew = self._crew.heard, self._make_crew()
            for each in heard:
                self._crew.hear(each)

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

    def _flush(self) -> None:
        limit_s = time.monotonic() + 2.0
        while self._hub.up and not self._hub.idle and time.monotonic() < limit_s:
            for key, events in self._selector.select(_TICK_S):
                key.data(events)


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
