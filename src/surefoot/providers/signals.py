"""The notice that comes as a signal: a plain SIGTERM, a pod's end, a Slurm preemption."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from surefoot.providers.notice import Notice


class SignalNoticeWatcher:
    """Takes one of `signals` as the word that the VM or pod ends `grace_ms` later.

    Make it in the main thread (Python hands signals to no other); it then owns these signals,
    and repeats of them change nothing. It can never be blind.
    """

    def __init__(
        self,
        *,
        grace_ms: int,
        signals: tuple[signal.Signals, ...] = (signal.SIGTERM,),
        source: str = "signal",
    ) -> None:
        self.blind_since: int | None = None
        self._grace_ms, self._source = grace_ms, source
        self._told: tuple[float, str] | None = None
        for number in signals:
            signal.signal(number, self._note)

    def poll(self) -> Notice | None:
        """Return the notice, with what is left of the grace by now; None before the signal."""
        if self._told is None:
            return None
        at_s, action = self._told
        left = self._grace_ms - round((time.monotonic() - at_s) * 1000)
        return Notice(max(0, left), action, self._source, event=action)

    def watch(self, callback: Callable[[Notice], None], stop_event: threading.Event) -> None:
        """Wait for the signal and call back once."""
        # Polled rather than waited for: a lock taken in a signal handler could be held already.
        while not stop_event.is_set():
            notice = self.poll()
            if notice is not None:
                callback(notice)
                stop_event.wait()
                return
            stop_event.wait(0.1)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._told is None:
            self._told = (time.monotonic(), signal.Signals(number).name)
