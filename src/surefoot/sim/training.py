"""The simulated training: progress in closed form between events, saves, and what losses undo."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from surefoot.core.job import Job
from surefoot.core.tally import relative_speed

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint on its way: begun at `begun_ms`, durable at `commit_ms` if `writer` lives."""

    step: int
    begun_ms: int
    stall_ms: int
    persist_ms: int
    commit_ms: int
    writer: str
    deadline_ms: int | None = None


@dataclass(slots=True)
class Training:
    """Steps as a function of time: `step` was done at `anchor_ms`, then one each `pace_ms`."""

    total: int | None
    step: int = 0
    anchor_ms: float = 0.0
    pace_ms: float = 1.0
    running: bool = False
    safe: int = 0
    saving: Save | None = None
    interval_ms: int = 0
    wanted: bool = False
    """Whether a save was asked for, beside the periodic ones."""
    deadline_ms: int | None = None
    """The nearest deadline that a wanted save has to meet."""
    _work_ms: float = 0.0
    _since_ms: int = 0
    _saved_ms: float = 0.0

    def step_at(self, at_ms: int) -> int:
        """Return the steps done at an instant."""
        if not self.running or at_ms <= self.anchor_ms:
            return self.step
        done = self.step + math.floor((at_ms - self.anchor_ms) / self.pace_ms + EPS)
        return done if self.total is None else min(done, self.total)

    def boundary_ms(self, at_ms: int) -> int:
        """Return the first end of a step at or after an instant, rounded up to a millisecond."""
        steps = max(0.0, math.ceil((at_ms - self.anchor_ms - 1 + EPS) / self.pace_ms))
        return max(at_ms, math.ceil(self.anchor_ms + steps * self.pace_ms - EPS))

    def start(self, at_ms: int, step: int, pace_ms: float) -> None:
        """Train on from `step`, done at `at_ms`."""
        self.step, self.anchor_ms, self.pace_ms = step, float(at_ms), pace_ms
        self.running, self._since_ms = True, at_ms

    def freeze(self, at_ms: int) -> None:
        """Stop training; the step under way is lost."""
        if self.running:
            self.step = self.step_at(at_ms)
            self._work_ms = self.work_ms(at_ms)
            self.running = False

    def work_ms(self, at_ms: int) -> float:
        """Return the time spent training so far."""
        return self._work_ms + (max(0, at_ms - self._since_ms) if self.running else 0)

    def loaded(self, step: int) -> None:
        """Note that the state was loaded from a checkpoint: nothing of it is unsaved."""
        self.step, self._saved_ms = step, self._work_ms

    def finish_ms(self) -> int | None:
        """Return when the last step will be done."""
        if not self.running or self.total is None:
            return None
        left = max(0, self.total - self.step)
        return math.ceil(self.anchor_ms + left * self.pace_ms - EPS)

    def save_ms(self, now_ms: int) -> int | None:
        """Return when the next save will begin: at a step boundary, when work or a wish asks.

        None while one is in flight, and when only the final save is left.
        """
        if not self.running or self.saving is not None:
            return None
        if self.wanted:
            due = now_ms
        else:
            left = self.interval_ms - (self._work_ms - self._saved_ms)
            due = max(now_ms, math.ceil(self._since_ms + left))
        at = self.boundary_ms(due)
        finish = self.finish_ms()
        return None if finish is not None and at >= finish else at

    def begin_save(self, at_ms: int, writer: str, *, stall_ms: int, persist_ms: int) -> Save | None:
        """Begin a save now, if there is anything new; training stands still for the stall."""
        step = self.step_at(at_ms)
        deadline = self.deadline_ms
        emergency = self.wanted and deadline is not None
        self.wanted, self.deadline_ms = False, None
        self._saved_ms = self.work_ms(at_ms)
        if step <= self.safe:
            return None
        commit = at_ms + stall_ms + persist_ms
        self.saving = Save(
            step, at_ms, stall_ms, persist_ms, commit, writer, deadline if emergency else None
        )
        return self.saving

    def pass_saves(
        self, now_ms: int, until_ms: int, *, stall_ms: int, persist_ms: int, hold_ms: float
    ) -> tuple[int, Save | None]:
        """Let the periodic saves that begin and end before an instant pass.

        Returns (how many were committed, the last of them). The same arithmetic as `save_ms`,
        `begin_save`, `hold` and `committed` in turn, without their detours: a year has a million.
        """
        count, last, spans = 0, None, stall_ms + persist_ms
        if self.saving is not None:
            if self.saving.commit_ms >= until_ms or self.saving.deadline_ms is not None:
                return 0, None
            count, last, now_ms = 1, self.saving, self.saving.commit_ms
            self.committed()
        if not self.running:
            return count, last
        pace, anchor, step = self.pace_ms, self.anchor_ms, self.step
        total = sys.maxsize if self.total is None else self.total
        since, work, safe, saved = self._since_ms, self._work_ms, self.safe, self._saved_ms
        base, begun, ceil = since + self.interval_ms - work, -1, math.ceil
        while True:
            at = ceil(base + saved)  # when the next save is due, then the end of that step
            at = at if at > now_ms else now_ms
            gap = ceil((at - anchor - 1 + EPS) / pace)
            end = ceil(anchor + (gap if gap > 0 else 0.0) * pace - EPS)
            at = end if end > at else at
            if at + spans >= until_ms or at >= ceil(anchor + max(0, total - step) * pace - EPS):
                break
            done = step if at <= anchor else step + math.floor((at - anchor) / pace + EPS)
            done = done if done < total else total
            saved = work + max(0, at - since)
            if done <= safe:
                now_ms = at + 1
                continue
            step, anchor, now_ms = done, (at if at > anchor else anchor) + hold_ms, at + spans
            safe, begun, count = done, at, count + 1
        self.step, self.anchor_ms, self.safe, self._saved_ms = step, anchor, safe, saved
        if begun >= 0:
            last = Save(step, begun, stall_ms, persist_ms, now_ms, "")
        return count, last

    def hold(self, at_ms: int, span_ms: float) -> None:
        """Put training off by a span."""
        self.step = self.step_at(at_ms)
        self.anchor_ms = max(self.anchor_ms, at_ms) + span_ms

    def committed(self) -> None:
        """Note that the save in flight is durable."""
        if self.saving is not None:
            self.safe = max(self.safe, self.saving.step)
        self.saving = None


def step_ms(job: Job, worth: float) -> float:
    """Return the time of one step with `worth` reference VMs, from the job's curve."""
    asked = relative_speed(job, float(max(1, job.num_nodes)))
    return max(1e-3, job.work.step_ms * asked / max(relative_speed(job, worth), 1e-9))
