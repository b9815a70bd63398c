"""A run's course as figures show it: series over time, marks and lines, folded from its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from surefoot.core.account import Account
from surefoot.core.event import (
    Decided,
    Event,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    LaunchFailed,
    MetricSeen,
    NoticeReceived,
    RunEnded,
    RunStarted,
    State,
    StepsDone,
    apply,
)
from surefoot.core.fleet import HELD, Ending, Instance, InstanceState
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Decision
from surefoot.core.units import usd
from surefoot.report.words import Line, Tone, say

ENOUGH_POINTS = 3_000
ENOUGH_LINES = 5_000
MOST_MONEY = 2_000


@dataclass(slots=True)
class Course:
    """A quantity over time, thinned as it grows: at most about `ENOUGH_POINTS` points.

    `points` are (epoch ms, value); the newest value is always kept.
    """

    points: list[tuple[int, float]] = field(default_factory=list)
    _every_ms: int = 0

    def add(self, at_ms: int, value: float) -> None:
        """Append a value; one that comes sooner than the thinning allows replaces the last."""
        points = self.points
        crowded = len(points) > 1 and at_ms - points[-2][0] < self._every_ms
        if points and (points[-1][0] >= at_ms or crowded):
            points[-1] = (at_ms, value)
            return
        points.append((at_ms, value))
        if len(points) > ENOUGH_POINTS:
            self._thin()

    def add_step(self, at_ms: int, value: float) -> None:
        """Append a value of a step function: nothing when it has not changed."""
        if not self.points or self.points[-1][1] != value:
            self.add(at_ms, value)

    def _thin(self) -> None:
        self.points = [*self.points[0:-1:2], self.points[-1]]
        gaps = [b[0] - a[0] for a, b in pairwise(self.points)]
        self._every_ms = max(self._every_ms, sorted(gaps)[len(gaps) // 2])

    @property
    def last(self) -> float | None:
        """The newest value, None before the first."""
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, slots=True)
class Mark:
    """A preemption: `kind` is notice (when it was told) or silent; `pool` lost the VM."""

    at_ms: int
    kind: str
    pool: str = ""


@dataclass(slots=True)
class Story:
    """Everything that live view and report show of a run; grows with `add`.

    `job` gives the size asked for, which the on-demand comparison is made with.
    """

    job: Job
    state: State = field(default_factory=State)
    account: Account = field(init=False)
    spot: Course = field(default_factory=Course)
    on_demand: Course = field(default_factory=Course)
    training: Course = field(default_factory=Course)
    spent: Course = field(default_factory=Course)
    reference: Course = field(default_factory=Course)
    """What an on-demand fleet of the size asked for would have cost by then, US dollars."""
    interval_s: Course = field(default_factory=Course)
    hazard_per_h: Course = field(default_factory=Course)
    steps: Course = field(default_factory=Course)
    losses: dict[int, float] = field(default_factory=dict)
    """Training loss by step; a step done again has the value of its last attempt."""
    former_losses: deque[tuple[int, float]] = field(
        default_factory=lambda: deque(maxlen=ENOUGH_POINTS)
    )
    """(step, loss) of attempts that were thrown away, kept apart from `losses`."""
    metrics: dict[str, dict[int, float]] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    lines: deque[tuple[int, Line]] = field(default_factory=lambda: deque(maxlen=ENOUGH_LINES))
    told: int = 0
    """How many lines there ever were; `lines` keeps the last of them."""
    decision: Decision | None = None
    trouble: str = ""
    """What keeps the run from going on right now, set from outside; empty if nothing does."""
    tokens: int = 0
    began_ms: int | None = None
    ending: RunEnded | None = None

    _refusing: set[tuple[Pool, Capacity]] = field(default_factory=set)
    _held: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    """VMs that are billed now, by whether they are spot."""

    def __post_init__(self) -> None:
        self.account = Account(self.job)

    def add_all(self, events: Iterable[Event]) -> Story:
        """Take in events in order; return self."""
        for event in events:
            self.add(event)
        return self

    def add(self, event: Event) -> None:
        """Take in one event."""
        if (line := say(self.state, event)) is not None and not self._is_old_news(event):
            self.lines.append((event.at_ms, line))
            self.told += 1
        self._mark(event)
        token = getattr(event, "token", "")
        before = self.state.fleet.get(token)
        self.state = apply(self.state, event)
        self.account.add(event)
        self._note(event)
        self._money(event)
        self._count(event.at_ms, before, self.state.fleet.get(token))

    def _note(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.began_ms = event.at_ms if self.began_ms is None else self.began_ms
                self.ending = None
            case Decided():
                self.decision = event.decision
                choice = event.decision.interval
                self.interval_s.add_step(event.at_ms, choice.interval_ms / 1000)
                self.hazard_per_h.add_step(event.at_ms, choice.hazard_per_h)
            case StepsDone():
                self.tokens = event.tokens or self.tokens
                self.steps.add(event.at_ms, event.step)
                if event.loss is not None:
                    self.losses[event.step] = event.loss
            case MetricSeen():
                self.metrics.setdefault(event.name, {})[event.step] = event.value
            case GroupFormed():
                self._forget_after(event.step)
            case RunEnded():
                self.ending = event

    def _forget_after(self, step: int) -> None:
        """Drop losses of steps that were thrown away: one value a step, the last attempt's."""
        for later in [s for s in self.losses if s > step]:
            self.former_losses.append((later, self.losses.pop(later)))

    def _is_old_news(self, event: Event) -> bool:
        """Whether a pool refuses once more without having granted anything in between."""
        vm = self.state.fleet.get(event.token) if hasattr(event, "token") else None
        match event:
            case InstanceLaunched() if vm is not None:
                self._refusing.discard((vm.pool, vm.capacity))
            case LaunchFailed(kind="CapacityError") if vm is not None:
                known = (vm.pool, vm.capacity) in self._refusing
                self._refusing.add((vm.pool, vm.capacity))
                return known
        return False

    def _mark(self, event: Event) -> None:
        match event:
            case NoticeReceived():
                vm = self.state.fleet.get(event.token)
                told = vm is not None and vm.notice_deadline_ms is not None
                if vm is not None and not told:
                    self.marks.append(Mark(event.at_ms, "notice", str(vm.pool)))
            case InstanceGone(ending=Ending.PREEMPTED_SILENT):
                vm = self.state.fleet.get(event.token)
                if vm is not None:
                    self.marks.append(Mark(event.at_ms, "silent", str(vm.pool)))
            case _:
                pass

    def _money(self, event: Event) -> None:
        """Advance what is spent, and what the on-demand fleet of the size asked for would be.

        No more often than a chart of the run can show, and once more at its end.
        """
        if self.began_ms is None:
            return
        newest_ms = self.spent.points[-1][0] if self.spent.points else self.began_ms
        crowded = (event.at_ms - newest_ms) * MOST_MONEY < event.at_ms - self.began_ms
        if crowded and not isinstance(event, RunEnded):
            return
        self.spent.add(event.at_ms, usd(self.account.bill.total))
        reference = self.account.on_demand_same_time()
        if reference is not None:
            self.reference.add(event.at_ms, usd(reference))

    def _count(self, at_ms: int, before: Instance | None, after: Instance | None) -> None:
        """Follow the number of held VMs by the one that an event changed."""
        for vm, change in ((before, -1), (after, 1)):
            if vm is not None and vm.state in HELD:
                self._held[vm.capacity is Capacity.SPOT] += change
        self.spot.add_step(at_ms, self._held[True])
        self.on_demand.add_step(at_ms, self._held[False])
        self.training.add_step(at_ms, self.state.progress.members)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens (or samples) a second at the present pace; None while nothing trains."""
        progress = self.state.progress
        if not self.tokens or not progress.members or progress.step_ms <= 0:
            return None
        return self.tokens * 1000 / progress.step_ms

    @property
    def loss(self) -> float | None:
        """The newest training loss."""
        return self.losses[max(self.losses)] if self.losses else None

    def recent(self, count: int) -> list[tuple[int, Line]]:
        """Return the last lines that are worth showing on a small screen, oldest first."""
        loud = [entry for entry in self.lines if entry[1][0] is not Tone.QUIET]
        return loud[-count:]

    def lines_after(self, count: int) -> list[tuple[int, Line]]:
        """Return the lines that came after the first `count` ones and are still kept."""
        new = min(self.told - count, len(self.lines))
        return list(self.lines)[-new:] if new > 0 else []

    def fleet_rows(self) -> list[tuple[str, str, dict[InstanceState, int]]]:
        """Return (pool, capacity, VMs by state) in order of pool."""
        rows: dict[tuple[str, str], dict[InstanceState, int]] = {}
        for vm in self.state.fleet:
            counts = rows.setdefault((str(vm.pool), vm.capacity.value), {})
            counts[vm.state] = counts.get(vm.state, 0) + 1
        return [(pool, capacity, counts) for (pool, capacity), counts in sorted(rows.items())]
