"""A plain command on this machine alone: watches for notices and asks it to save, by no import."""

from __future__ import annotations

import logging
import math
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from surefoot.core.interval import asynchronous
from surefoot.core.wire import Saved, Stepped
from surefoot.providers.notice import Notice
from surefoot.providers.watchers import make_watcher
from surefoot.train.child import Child
from surefoot.train.script import Script, ScriptTerms

_TICK_S = 0.1
_FIRST_COST_S = 30.0
"""What a save is taken to cost before one was measured."""
_LEAST_S = 10.0
_LINES = 1 << 16

_log = logging.getLogger("surefoot.agent")


@dataclass(frozen=True, slots=True)
class SoloSettings:
    """`interval_s` None: chosen from the measured cost and `mtbf_s`, mean time between losses."""

    terms: ScriptTerms
    notice: str = "none"
    interval_s: float | None = None
    mtbf_s: float = 4 * 3600.0
    grace_s: float = 30.0


class Solo:
    """Runs one command to its end and asks it to save. `tell` gets lines for people."""

    def __init__(
        self, command: list[str], settings: SoloSettings, tell: Callable[[str], None]
    ) -> None:
        self._command, self._settings, self._tell = command, settings, tell
        self._folder = Path(tempfile.mkdtemp(prefix="surefoot-run-"))
        self._log = self._folder / "output.log"
        self._script = Script(settings.terms, self._folder, Path.cwd(), self._log)
        self._told: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        self._signals: list[int] = []
        self._done = threading.Event()
        self._cost_s = _FIRST_COST_S
        self._deadline_s = math.inf
        self._noticed = self._ended = False
        self._shown = 0

    @property
    def interval_s(self) -> float:
        """Work between two requests by interval, in seconds."""
        if self._settings.interval_s is not None:
            return self._settings.interval_s
        best = asynchronous(self._cost_s, 1 / self._settings.mtbf_s, notice_share=0.5)
        return max(_LEAST_S, best)

    def run(self) -> int:
        """Return the command's exit code, 128 + N for signal N."""
        before = {n: signal.signal(n, self._note) for n in (signal.SIGTERM, signal.SIGINT)}
        watcher = make_watcher(self._settings.notice)
        if watcher is not None:
            arguments = (self._told.put, self._done)
            threading.Thread(target=watcher.watch, args=arguments, daemon=True).start()
        self._script.begin()
        env = {**os.environ, **self._script.environment(), "PYTHONUNBUFFERED": "1"}
        child = Child("", "", env, self._log, words=self._command)
        try:
            return self._live(child)
        finally:
            self._done.set()
            child.kill()
            self._show()
            shutil.rmtree(self._folder, ignore_errors=True)
            for number, action in before.items():
                signal.signal(number, action)

    def _live(self, child: Child) -> int:
        begun_s = asked_s = time.monotonic()
        while (code := child.exit_code()) is None:
            now_s = time.monotonic()
            self._hear(child, now_s)
            self._look(now_s)
            last_s = max(begun_s, asked_s, self._script.saved_s)
            if not self._noticed and now_s - last_s >= self.interval_s:
                asked_s = now_s
                if self._script.unanswered < 3 and not self._script.asked:
                    self._script.ask("interval", None, child.pids())
                elif self._script.asked:
                    self._script.give_up()
            if now_s >= self._deadline_s and self._signals:
                self._tell("the grace is over: the command is killed")
                child.kill()
            self._show()
            time.sleep(_TICK_S)
        self._look(time.monotonic() + 1.0)
        return code

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _hear(self, child: Child, now_s: float) -> None:
        """Act on notices and signals: ask for a save; hand SIGTERM on once it is done."""
        while not self._told.empty():
            notice = self._told.get()
            self._begin_leaving(child, notice.left_ms, f"notice from {notice.source}")
        if not self._signals:
            return
        if self._deadline_s == math.inf:
            self._deadline_s = now_s + self._settings.grace_s
            name = signal.Signals(self._signals[0]).name
            self._begin_leaving(child, round(self._settings.grace_s * 1000), name)
        if not self._ended and (not self._script.asked or len(self._signals) > 1):
            self._ended = True
            child.end()

    def _begin_leaving(self, child: Child, left_ms: int, why: str) -> None:
        self._noticed = True
        asked = self._script.ask(why, left_ms, child.pids())
        how = "a save is asked for" if asked else "there is no way to ask for a save"
        self._tell(f"{why}: {left_ms / 1000:.0f} s left; {how}")

    def _look(self, now_s: float) -> None:
        for message in self._script.look(now_s):
            if isinstance(message, Saved):
                if message.persist_ms:
                    self._cost_s = message.persist_ms / 1000
                self._tell(f"step {message.step} is saved ({message.persist_ms / 1000:.1f} s)")
            elif isinstance(message, Stepped):
                _log.info("step %d", message.step)

    def _show(self) -> None:
        """Pass the command's output on."""
        with self._log.open("rb") as out:
            out.seek(self._shown)
            while data := out.read(_LINES):
                self._shown += len(data)
                sys.stdout.buffer.write(data)
        sys.stdout.flush()
