"""SIGTERM, and Ctrl-C where there is no agent: noted at once, acted on at a step boundary."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from surefoot.core.wire import Noticed
from surefoot.train.environment import positive
from surefoot.train.link import Link

_GRACE_S = 30
"""Time that a bare SIGTERM is taken to leave; SUREFOOT_GRACE_S sets another."""


class Signals:
    """Catches what a process is sent, if this is the main thread (no other may)."""

    def __init__(self, link: Link) -> None:
        self.number = 0
        """The signal that ends a script without an agent; 0: none yet."""
        self._link = link
        self._old: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        numbers = (signal.SIGTERM, signal.SIGINT) if link.alone else (signal.SIGTERM,)
        for number in numbers:
            self._old[number] = signal.signal(number, self._hear)

    def close(self) -> None:
        """Put back what was found."""
        for number, old in self._old.items():
            signal.signal(number, old)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Only note it: the loop saves at a step boundary. A second one has its usual effect."""
        if self._link.alone:
            self.number = number
            signal.signal(number, self._old[number])
            return
        left_ms = round((positive(os.environ, "SUREFOOT_GRACE_S") or _GRACE_S) * 1000)
        self._link.wish_save(left_ms, "signal")
        threading.Thread(
            target=self._link.send, args=(Noticed(left_ms, "signal"),), daemon=True
        ).start()
