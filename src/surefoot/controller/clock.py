"""The one place of the controller that reads time, behind a port that tests replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Epoch milliseconds for the record, monotonic milliseconds for liveness."""

    def now_ms(self) -> int:
        """Return epoch ms; never goes back during a controller's life."""

    def monotonic_ms(self) -> int:
        """Return ms since an arbitrary start, unaffected by settings of the clock."""


class RealClock:
    """This machine's time: the epoch is read once, then carried on by the boot-time clock.

    A clock that NTP sets back by an hour therefore neither stretches a lease nor kills a VM,
    and a laptop's sleep counts (the cloud bills it).
    """

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - self.monotonic_ms()

    def now_ms(self) -> int:
        """Return epoch ms, free of jumps."""
        return self._offset_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        """Return ms since boot, sleep included where the system tells it."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        ns = time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)
        return ns // 1_000_000


class SteadyClock:
    """A clock moved ahead so that it never reads less than a journal's last instant.

    A machine whose calendar was set back while no controller ran would else stand still, to
    its controller, until the calendar has caught up.
    """

    def __init__(self, clock: Clock, *, not_before_ms: int) -> None:
        self._clock = clock
        self._ahead_ms = max(0, not_before_ms - clock.now_ms())

    def now_ms(self) -> int:
        """Return epoch ms, moved ahead."""
        return self._clock.now_ms() + self._ahead_ms

    def monotonic_ms(self) -> int:
        """Return the clock's own."""
        return self._clock.monotonic_ms()
