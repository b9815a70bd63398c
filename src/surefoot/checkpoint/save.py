"""What a caller holds of a save in flight, and what is known of one that is durable."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Saved:
    """A durable checkpoint. Stall: the caller was held; persist: from the call to durable."""

    step: int
    folder: str
    n_bytes: int
    stall_s: float
    persist_s: float


class Pace:
    """How long saves took lately, to tell whether one more fits before a deadline."""

    def __init__(self) -> None:
        self._bytes_s: list[float] = []

    def note(self, saved: Saved) -> None:
        """Learn from a save that became durable."""
        if saved.persist_s > 0:
            self._bytes_s = [*self._bytes_s[-7:], saved.n_bytes / saved.persist_s]

    def expect_s(self, n_bytes: int) -> float | None:
        """Return seconds from call to durable for so many bytes, by the slowest of the last saves.

        None before any save was measured.
        """
        return n_bytes / min(self._bytes_s) if self._bytes_s else None


class SaveHandle:
    """A save in flight; `wait()` returns when it is durable or raises why it is not."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.stall_s = 0.0
        self.tidied = threading.Event()
        self._settled = threading.Event()
        self._saved: Saved | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the save is durable or has failed."""
        return self._settled.is_set()

    @property
    def saved(self) -> Saved | None:
        """The outcome, once durable."""
        return self._saved

    @property
    def error(self) -> BaseException | None:
        """Why the save failed, if it did."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> Saved | None:
        """Return the outcome; None on a rank that had nothing to write.

        Raises the save's CheckpointError, NoSpaceError, AuthError or FencedError, and TimeoutError
        when it is not settled within `timeout_s`.
        """
        if not self._settled.wait(timeout_s):
            raise TimeoutError(f"the save of step {self.step} is not durable after {timeout_s} s")
        if self._error is not None:
            raise self._error
        return self._saved

    def settled(self, timeout_s: float | None = None) -> bool:
        """Return when the save is durable or has failed, or time is up; whether it is settled."""
        return self._settled.wait(timeout_s)

    def settle(self, saved: Saved | None) -> None:
        """Mark the save durable (called by the engine)."""
        self._saved = saved
        self._settled.set()

    def fail(self, error: BaseException) -> None:
        """Mark the save failed (called by the engine)."""
        self._error = error
        self._settled.set()
