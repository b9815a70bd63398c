"""What happened in a run, counted: preemptions, fallbacks, returns, growth, saves, step times."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from surefoot.core.event import (
    CheckpointCommitted,
    DrainStarted,
    Event,
    GroupFormed,
    InstanceGone,
    InstanceReady,
    InstanceRequested,
    LaunchFailed,
    MetricSeen,
    NoticeReceived,
    RunStarted,
    StepsDone,
)
from surefoot.core.fleet import Ending
from surefoot.core.job import Job
from surefoot.core.market import Capacity


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts over a whole run.

    `on_demand_fallbacks`: times that on-demand VMs beyond the base were taken after spot had
    been tried. `returns_to_spot`: times that the last of them was let go with spot VMs ready and
    training went on. `scale_ups`: times that the group grew past the number asked for.
    """

    steps: int = 0
    lost_steps: int = 0
    notice: int = 0
    silent: int = 0
    on_demand_fallbacks: int = 0
    returns_to_spot: int = 0
    scale_ups: int = 0
    checkpoints: int = 0
    emergency_saves: int = 0
    launches_refused: int = 0


@dataclass(slots=True)
class Tally:
    """Incremental counts. `base` on-demand VMs are the job's own wish and no fallback."""

    num_nodes: int
    base: int = 0
    lost_steps: int = 0
    preemptions: dict[Ending, int] = field(default_factory=dict)
    fallbacks: int = 0
    returns: int = 0
    scale_ups: int = 0
    checkpoints: int = 0
    emergency_saves: int = 0
    refused: int = 0
    first_step: int | None = None
    step: int = 0
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(first, last) value of each figure of the user's."""
    pace: dict[float, tuple[int, int]] = field(default_factory=dict)
    """By VMs' worth of the group: (steps measured, their time in ms)."""
    _capacity: dict[str, tuple[Capacity, float]] = field(default_factory=dict)
    _on_demand: set[str] = field(default_factory=set)
    _spot_ready: set[str] = field(default_factory=set)
    _leaving: set[str] = field(default_factory=set)
    """VMs that were given notice or are let go: their replacements are no growth."""
    _spot_tried: bool = False
    _return_open: bool = False
    _worth: float = 0.0
    _grown: bool = False
    _resumed: bool = False

    def add(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case RunStarted():
                self._started(event)
            case GroupFormed():
                self._formed(event)
            case StepsDone():
                self._stepped(event)
            case CheckpointCommitted():
                self.checkpoints += 1
                self.emergency_saves += event.emergency
            case MetricSeen():
                first, _ = self.metrics.get(event.name, (event.value, event.value))
                self.metrics[event.name] = (first, event.value)
            case _:
                self._fleet(event)

    def counts(self) -> Counts:
        """Return the counts so far."""
        return Counts(
            steps=self.step,
            lost_steps=self.lost_steps,
            notice=self.preemptions.get(Ending.PREEMPTED_NOTICE, 0),
            silent=self.preemptions.get(Ending.PREEMPTED_SILENT, 0),
            on_demand_fallbacks=self.fallbacks,
            returns_to_spot=self.returns,
            scale_ups=self.scale_ups,
            checkpoints=self.checkpoints,
            emergency_saves=self.emergency_saves,
            launches_refused=self.refused,
        )

    @property
    def kept_steps(self) -> int:
        """Steps done since the run first began and not thrown away."""
        return max(0, self.step - (self.first_step or 0))

    def step_ms_at(self, worth: float, job: Job) -> float:
        """Return the time of one step for a fleet of `worth` reference VMs.

        Measured with that very fleet if it trained for 10 steps; else measured with any fleet
        and carried over by the job's scaling curve; else the job's prior.
        """
        steps, time_ms = self.pace.get(round(worth, 3), (0, 0))
        if steps < 10:
            points = [(n, ms, relative_speed(job, at)) for at, (n, ms) in self.pace.items()]
            steps = sum(n for n, _, _ in points)
            if not steps:
                return (
                    job.work.step_ms
                    * relative_speed(job, job.num_nodes)
                    / max(relative_speed(job, worth), 1e-9)
                )
            work = sum(ms * speed for _, ms, speed in points)
            return work / steps / max(relative_speed(job, worth), 1e-9)
        return time_ms / steps

    def _started(self, event: RunStarted) -> None:
        if self.first_step is None:
            self.first_step = self.step = event.step
        self._resumed = True

    def _formed(self, event: GroupFormed) -> None:
        thrown_away = event.lost_steps
        if self._resumed:  # new workers cannot know what the old ones had done
            thrown_away = max(thrown_away, self.step - event.step)
        self._resumed = False
        self.lost_steps += thrown_away
        self.step = event.step
        self._worth = sum(self._capacity.get(m, (None, 1.0))[1] for m in event.members)
        staying = sum(m not in self._leaving for m in event.members)
        grown = staying > self.num_nodes
        self.scale_ups += grown and not self._grown
        self._grown = grown
        self._went_on()

    def _stepped(self, event: StepsDone) -> None:
        new = max(0, event.step - self.step)
        if new and event.step_ms > 0 and self._worth > 0:
            key = round(self._worth, 3)
            steps, time_ms = self.pace.get(key, (0, 0))
            self.pace[key] = (steps + new, time_ms + new * event.step_ms)
        self.step = event.step
        self._resumed = False
        self._went_on()

    def _went_on(self) -> None:
        self.returns += self._return_open
        self._return_open = False

    def _fleet(self, event: Event) -> None:
        match event:
            case InstanceRequested():
                self._requested(event)
            case InstanceReady():
                if self._capacity.get(event.token, (None, 0))[0] is Capacity.SPOT:
                    self._spot_ready.add(event.token)
            case LaunchFailed():
                self.refused += 1
                self._forget(event.token, by_us=False)
                self._capacity.pop(event.token, None)
            case NoticeReceived():
                self._leaving.add(event.token)
            case DrainStarted():
                self._leaving.add(event.token)
                self._spot_ready.discard(event.token)
                self._forget(event.token, by_us=True)
            case InstanceGone():
                if event.ending.is_preemption:
                    self.preemptions[event.ending] = self.preemptions.get(event.ending, 0) + 1
                self._spot_ready.discard(event.token)
                self._leaving.discard(event.token)
                self._forget(event.token, by_us=event.ending is Ending.RELEASED)
                self._capacity.pop(event.token, None)
            case _:
                pass

    def _requested(self, event: InstanceRequested) -> None:
        self._capacity[event.token] = (event.capacity, event.speed)
        if event.capacity is Capacity.SPOT:
            self._spot_tried = True
        elif event.capacity is Capacity.ON_DEMAND:
            self._on_demand.add(event.token)
            first = len(self._on_demand) == self.base + 1
            self.fallbacks += first and self._spot_tried
            self._return_open = False

    def _forget(self, token: str, *, by_us: bool) -> None:
        if token not in self._on_demand:
            return
        self._on_demand.discard(token)
        last = len(self._on_demand) == self.base
        self._return_open = last and by_us and bool(self._spot_ready) and self.fallbacks > 0


def relative_speed(job: Job, worth: float) -> float:
    """Return training speed with `worth` reference VMs, from the job's curve (linear without).

    Between points it is interpolated, beyond the last it grows no further than in proportion
    to the last slope.
    """
    points = sorted(job.work.scaling)
    if len(points) < 2:
        return worth
    if worth <= points[0][0]:
        return points[0][1] * worth / points[0][0] if points[0][0] > 0 else points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if worth <= x1 or (x1, y1) == points[-1]:
            return max(0.0, y0 + (y1 - y0) * (worth - x0) / (x1 - x0))
    return worth
