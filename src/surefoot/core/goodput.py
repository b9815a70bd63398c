"""What a run's wall-clock time went into: kept training, or one of the causes of badput."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, fields, replace

from surefoot.core.event import (
    CheckpointCommitted,
    Event,
    GroupBroken,
    GroupFormed,
    InstanceGone,
    InstanceReady,
    InstanceRequested,
    LaunchFailed,
    NoticeReceived,
    RestoreDone,
    RunEnded,
    RunStarted,
    StepsDone,
)
from surefoot.core.fleet import Ending


@dataclass(frozen=True, slots=True)
class Badput:
    """Wall-clock time of the run that did not become kept training, in ms, by cause.

    lost_work: computed and thrown away. recovery: from a loss to the first step after it.
    checkpoint_stall: training held still for a snapshot. restore: loading a checkpoint.
    waiting: no VM is ready. startup: from the start to the first step. reconfiguration: planned
    changes of membership. idle: between an end of the run and its resumption.
    """

    lost_work: int = 0
    recovery: int = 0
    checkpoint_stall: int = 0
    restore: int = 0
    waiting: int = 0
    startup: int = 0
    reconfiguration: int = 0
    idle: int = 0

    @property
    def total_ms(self) -> int:
        """Sum over causes."""
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, int]:
        """Return milliseconds by cause."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def plus(self, cause: str, span_ms: int) -> Badput:
        """Return this with a span (negative: taken back) added to one cause."""
        if not span_ms:
            return self
        return replace(self, **{cause: getattr(self, cause) + span_ms})


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of the run's wall-clock time that became kept training."""

    wall_ms: int = 0
    badput: Badput = Badput()

    @property
    def share(self) -> float | None:
        """Useful share in [0, 1]; None for a run of no length."""
        if self.wall_ms <= 0:
            return None
        return max(0.0, 1.0 - self.badput.total_ms / self.wall_ms)


@dataclass(slots=True)
class TimeSplit:
    """Splits wall-clock time by what it went into; every millisecond goes to one place.

    A pause is attributed when it ends, since only then is it known whether a loss caused it.
    `kept_ms` is training time not (yet) thrown away; `marks` are (step, kept_ms) pairs since
    the newest durable checkpoint, from which the time of a roll-back is read.
    """

    at_ms: int | None = None
    wall_ms: int = 0
    kept_ms: int = 0
    spent: dict[str, int] = field(default_factory=dict)
    """Milliseconds by cause, under the names of `Badput`."""
    recoveries_ms: list[int] = field(default_factory=list)
    running: bool = False
    group: bool = False
    formed_once: bool = False
    refused: bool = False
    gap_ms: int = 0
    """Time since the run ended, which becomes idle time if it is resumed."""
    pause_ms: int = 0
    """Time of the present pause with a VM ready."""
    paused_at_ms: int = 0
    last_pause: tuple[str, int] = ("startup", 0)
    step_ms: int = 0
    marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    held: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    members: frozenset[str] = frozenset()
    told: set[str] = field(default_factory=set)
    """Members that were given notice and have not left the group yet."""
    lost: set[str] = field(default_factory=set)
    """Members that were gone before a new group had formed."""

    def add(self, event: Event) -> None:
        """Take in one event."""
        self._advance(event.at_ms)
        match event:
            case RunStarted():
                self._started(event)
            case RunEnded():
                self._close_pause()
                self.running = self.group = False
            case GroupBroken() if self.group:
                self.group, self.paused_at_ms = False, event.at_ms
            case GroupFormed():
                self._formed(event)
            case StepsDone():
                self._stepped(event)
            case CheckpointCommitted():
                self._saved(event)
            case RestoreDone():
                self._restored(event.restore_ms)
            case _:
                self._fleet(event)

    def quiet_saves(self, at_ms: int, stall_ms: int) -> None:
        """Take in the stalls of saves up to an instant that are not told one by one."""
        self._advance(at_ms)
        stall = min(stall_ms, self.kept_ms - self.marks[-1][1])
        if stall > 0:
            self._spend("checkpoint_stall", stall)
            self.kept_ms -= stall

    def goodput(self) -> Goodput:
        """Return the split so far; a pause still going on counts as what it now looks like."""
        return Goodput(self.wall_ms, Badput(**self.spent).plus(self._cause(), self.pause_ms))

    def _fleet(self, event: Event) -> None:
        match event:
            case InstanceRequested():
                self.held.add(event.token)
            case InstanceReady():
                self.ready.add(event.token)
            case LaunchFailed():
                self.refused = True
                self.held.discard(event.token)
            case NoticeReceived() if event.token in self.members:
                self.told.add(event.token)
            case InstanceGone():
                self.held.discard(event.token)
                self.ready.discard(event.token)
                if event.token in self.members and event.ending is not Ending.RELEASED:
                    self.lost.add(event.token)
            case _:
                pass

    def _advance(self, at_ms: int) -> None:
        self.at_ms = at_ms if self.at_ms is None else self.at_ms
        span = max(0, at_ms - self.at_ms)
        self.at_ms += span
        if not self.running:
            self.gap_ms += span
            return
        self.wall_ms += span
        if self.group:
            self.kept_ms += span
        elif self.ready:
            self.pause_ms += span
        else:
            booting = not self.formed_once and (self.held or not self.refused)
            self._spend("startup" if booting else "waiting", span)

    def _started(self, event: RunStarted) -> None:
        if self.wall_ms or self.formed_once:
            self._spend("idle", self.gap_ms)
            self.wall_ms += self.gap_ms
        elif event.step:
            self.marks = [(event.step, 0)]
        self.gap_ms, self.running, self.group = 0, True, False
        self.paused_at_ms = event.at_ms

    def _spend(self, cause: str, span_ms: int) -> None:
        if span_ms:
            self.spent[cause] = self.spent.get(cause, 0) + span_ms

    def _cause(self) -> str:
        if not self.formed_once:
            return "startup"
        return "recovery" if self.lost else "reconfiguration"

    def _close_pause(self) -> None:
        self.last_pause = (self._cause(), self.pause_ms)
        self._spend(*self.last_pause)
        self.pause_ms = 0

    def _formed(self, event: GroupFormed) -> None:
        left = (self.lost | self.told) - set(event.members)
        planned = self.group and not event.lost_steps
        began = self.paused_at_ms
        self._close_pause()
        thrown_ms = self._roll_back(event.step, "reconfiguration" if planned else "lost_work")
        if left and self.formed_once:
            self.recoveries_ms.append(thrown_ms if self.group else max(0, event.at_ms - began))
        self.members = frozenset(event.members)
        self.told &= self.members
        self.lost.clear()
        self.group = self.formed_once = True

    def _roll_back(self, step: int, cause: str) -> int:
        """Keep only the training time up to a step; return what went to `cause` instead.

        Where a group changed by plan no step is lost: what is beyond is the pause itself.
        """
        kept = min(self.kept_ms, self._kept_at(step))
        thrown_ms = self.kept_ms - kept
        self._spend(cause, thrown_ms)
        self.kept_ms = kept
        while self.marks and self.marks[-1][0] >= step:
            self.marks.pop()
        self.marks.append((step, kept))
        return thrown_ms

    def _kept_at(self, step: int) -> int:
        """Return the kept time at which a step had been reached, interpolated between marks."""
        index = bisect.bisect_left(self.marks, (step, -1))
        if index == len(self.marks):
            last, kept = self.marks[-1]
            return kept + (step - last) * self.step_ms
        high, high_ms = self.marks[index]
        if high == step or index == 0:
            return high_ms
        low, low_ms = self.marks[index - 1]
        return low_ms + (high_ms - low_ms) * (step - low) // (high - low)

    def _stepped(self, event: StepsDone) -> None:
        self.step_ms = event.step_ms
        if not self.group:  # a taken-over run: the workers never stopped
            self._close_pause()
            self.group = self.formed_once = True
        if event.step > self.marks[-1][0]:
            self.marks.append((event.step, self.kept_ms))

    def _saved(self, event: CheckpointCommitted) -> None:
        stall = min(event.stall_ms, self.kept_ms - self._kept_at(event.step), self.kept_ms)
        if stall > 0:
            self._spend("checkpoint_stall", stall)
            self.kept_ms -= stall
            self.marks = [(s, k if s <= event.step else max(0, k - stall)) for s, k in self.marks]
        first = max(0, bisect.bisect_right(self.marks, (event.step, self.kept_ms)) - 1)
        del self.marks[:first]

    def _restored(self, restore_ms: int) -> None:
        """Move the time of loading out of the pause in which it happened."""
        if not self.group:
            span = min(restore_ms, self.pause_ms)
            self.pause_ms -= span
        else:
            cause, pause_ms = self.last_pause
            span = min(restore_ms, pause_ms)
            self.last_pause = (cause, pause_ms - span)
            self._spend(cause, -span)
        self._spend("restore", span)
