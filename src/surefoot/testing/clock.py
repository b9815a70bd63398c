"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """Implements the controller's Clock; `advance_to` is the only way in which time passes."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the present instant, epoch ms."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the same as `now_ms`: this clock has no jumps."""
        return self._now_ms

    def advance_to(self, at_ms: int) -> None:
        """Move to a later instant. Raises ValueError for an earlier one."""
        if at_ms < self._now_ms:
            raise ValueError(f"time cannot go back from {self._now_ms} to {at_ms}")
        self._now_ms = at_ms
