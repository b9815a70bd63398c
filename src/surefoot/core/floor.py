"""How long a run trained below its throughput floor, folded from its events."""

from __future__ import annotations

from collections.abc import Iterable

from surefoot.core.event import Event, GroupBroken, GroupFormed, State, apply
from surefoot.core.job import FloorKind, Job

EPS = 1e-6


class FloorWatch:
    """Adds up the time under the floor from the first group on.

    Feed every event in order: to `see` with the state after it, or to `add` alone.
    """

    def __init__(self, job: Job) -> None:
        self.floor, self.rule = job.throughput.floor, job.throughput
        self.state = State()
        self.short_ms = 0
        """Time below the floor, pauses and boots of replacements included."""
        self.broken_ms = 0
        """The part of it that lasted longer than a boot, a load and a re-forming.

        For a floor on average: the length of the whole windows whose mean is under it.
        """
        self._worth = 0.0
        self._from_ms: int | None = None
        self._short_since: int | None = None
        self._window_start = 0
        self._window_area = 0.0

    def add(self, event: Event) -> None:
        """Take in one event, the state being kept here."""
        self.see(event, apply(self.state, event))

    def see(self, event: Event, state: State) -> None:
        """Take in one event and the state after it."""
        if self._from_ms is not None and self.rule.kind is FloorKind.AVERAGE:
            self._advance(event.at_ms)
        self.state = state
        match event:
            case GroupFormed():
                if self._from_ms is None:
                    self._from_ms = self._window_start = event.at_ms
                members = (self.state.fleet.get(token) for token in event.members)
                self._set(event.at_ms, sum(vm.speed for vm in members if vm is not None))
            case GroupBroken():
                self._set(event.at_ms, 0.0)
            case _:
                pass

    def add_all(self, events: Iterable[Event]) -> FloorWatch:
        """Take in all events of a run that is over; return self."""
        last = None
        for event in events:
            self.add(event)
            last = event
        if last is not None:
            self.close(last.at_ms)
        return self

    def _set(self, at_ms: int, worth: float) -> None:
        self._worth = worth
        if worth < self.floor - EPS:
            self._short_since = at_ms if self._short_since is None else self._short_since
        else:
            self.close(at_ms)

    def close(self, at_ms: int) -> None:
        """End the present spell under the floor, if there is one."""
        if self._short_since is None:
            return
        span, cost = at_ms - self._short_since, self.state.fleet_cost
        self._short_since = None
        self.short_ms += span
        if self.rule.kind is FloorKind.INSTANT:
            excused = cost.boot_ms + cost.reform_ms + self.state.save_cost.restore_ms
            self.broken_ms += max(0, span - excused - cost.detect_ms)

    def _advance(self, at_ms: int) -> None:
        """Close the windows of an average floor that end by now."""
        then = max(self.state.now_ms, self._window_start)
        while at_ms - self._window_start >= self.rule.window_ms:
            end = self._window_start + self.rule.window_ms
            self._window_area += self._worth * (end - then)
            if self._window_area < (self.floor - EPS) * self.rule.window_ms:
                self.broken_ms += self.rule.window_ms
            self._window_start, self._window_area, then = end, 0.0, end
        self._window_area += self._worth * max(0, at_ms - then)
