"""The clock of the training loop: how long steps and changes of group take, and the pace."""

from __future__ import annotations

import os
import time

from surefoot.core.wire import Formed

_REPORT_EVERY_S = 0.25


class StepClock:
    """Reads time for a session: how long steps take, and how long a change of group took."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._until_s = 0.0
        self._boundary_s = time.monotonic()
        self._reported_s = 0.0
        self.step_ms = 0

    def begin(self, least_s: float) -> None:
        """A step begins that is to take `least_s` at least."""
        self._began_s = time.monotonic()
        self._until_s = self._began_s + least_s

    def end(self) -> float:
        """The step is done: sleep what is left of its least time; returns seconds it took."""
        left_s = self._until_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        self._boundary_s = time.monotonic()
        took_s = self._boundary_s - self._began_s
        self.step_ms = round(took_s * 1000)
        return took_s

    def formed(self, formed: Formed) -> Formed:
        """Return the message with the pause since the last step boundary filled in."""
        pause_ms = round((time.monotonic() - self._boundary_s) * 1000)
        return Formed(
            formed.generation,
            formed.step,
            formed.world,
            formed.lost_steps,
            formed.source,
            pause_ms,
            formed.restore_ms,
        )

    def may_report(self) -> bool:
        """Return whether it is time for another progress report."""
        if self._boundary_s - self._reported_s < _REPORT_EVERY_S:
            return False
        self._reported_s = self._boundary_s
        return True


def since_process_start_ms() -> int:
    """Return the process's age: what imports and building the model took."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return max(0, round(age_s * 1000))
