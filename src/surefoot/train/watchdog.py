"""Ends a worker that hangs in its own work, with every thread's stack, so that it is restarted."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from surefoot.errors import ConfigError
from surefoot.train.environment import positive

HANG_EXIT = 70
"""Exit code of a worker that gave up on itself (EX_SOFTWARE): a crash of user code."""

LIMIT_S = 1800.0
"""Time without a sign of life after which a worker under an agent counts as hung."""


def limit_of(given_s: float | None, alone: bool) -> float:
    """Return the limit: as given, else SUREFOOT_HANG_S, else LIMIT_S; alone: only as given.

    Nobody would start a script without an agent again. Raises ConfigError unless above 0.
    """
    if given_s is not None and not given_s > 0:
        raise ConfigError(
            f"hang_limit_s must be above 0, not {given_s}", hint="use math.inf for no limit"
        )
    if given_s is not None:
        return given_s
    return float("inf") if alone else positive(os.environ, "SUREFOOT_HANG_S") or LIMIT_S


class Watchdog:
    """Watches phases that are this worker's own doing: loop body, batch, restore.

    What a worker waits for (a slow peer, a save on its way) is no phase: the one that is waited
    for has a watchdog too, and the controller hears the dead. `waiting` tells of waits inside a
    phase; they do not count.
    """

    def __init__(self, limit_s: float, waiting: Callable[[], bool]) -> None:
        self._limit_s, self._waiting = limit_s, waiting
        self._phase, self._since_s = "", 0.0
        self._closed = threading.Event()
        if limit_s < float("inf"):
            threading.Thread(target=self._watch, name="surefoot-watchdog", daemon=True).start()

    def begin(self, phase: str) -> None:
        """A phase begins, named as in "in the loop body of step 7"."""
        self._since_s, self._phase = time.monotonic(), phase

    def end(self) -> None:
        """The phase is over."""
        self._phase = ""

    @contextlib.contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Watch a block."""
        self.begin(phase)
        try:
            yield
        finally:
            self.end()

    def see_life(self) -> None:
        """The phase is long but goes on: count its time from here."""
        self._since_s = time.monotonic()

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._limit_s / 10)):
            if self._waiting():
                self.see_life()
            phase, silent_s = self._phase, time.monotonic() - self._since_s
            if phase and silent_s > self._limit_s and phase == self._phase:
                self._give_up(phase, silent_s)

    def _give_up(self, phase: str, silent_s: float) -> None:
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        print(
            f"surefoot: this worker hangs {phase}: no sign of life for {silent_s:.0f} s. It ends,"
            " to be started again. If this is no hang, call session.check_notice() in long"
            " evaluations or raise Session(hang_limit_s=...).",
            file=sys.stderr,
            flush=True,
        )
        os._exit(HANG_EXIT)
