"""Ten planted faults: what a careless change to the controller could do, as patches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from sqlalchemy.exc import OperationalError

import surefoot.controller.act as act
import surefoot.controller.loop as loop
import surefoot.controller.store.journal as journal
from surefoot.controller.act import Actor
from surefoot.controller.guard import Guard
from surefoot.controller.observe import Watch
from surefoot.controller.record import Record
from surefoot.controller.store import Journal
from surefoot.core.event import InstanceGone, InstanceRequested
from surefoot.errors import SurefootError

Patch = Callable[[Any], None]
"""Takes pytest's monkeypatch."""


def forget_the_token(patch: Any) -> None:
    """A launch that is asked again gets a new token."""
    numbers = count()
    plain = act.LaunchRequest

    def request(**terms: Any) -> Any:
        made = plain(**terms)
        return replace(made, token=f"{made.token}-{next(numbers)}")

    patch.setattr(act, "LaunchRequest", request)


def act_before_the_intent(patch: Any) -> None:
    """The intent is written together with the outcome, after the call."""
    plain, held = Record.add, []

    def add(self: Record, *events: Any) -> None:
        if len(events) == 1 and isinstance(events[0], InstanceRequested):
            self._fold(events[0])
            held.append(events[0])
            return
        waiting, held[:] = list(held), []
        for event in waiting:
            self.journal.extend([event])
        plain(self, *events)

    patch.setattr(Record, "add", add)


def ignore_the_fence(patch: Any) -> None:
    """A deposed controller writes on, behind its successor's events."""
    plain = Journal.extend

    def extend(self: Journal, facts: Any, *, now_ms: int | None = None) -> int:
        newest = self.store.events(self.run)
        self.seq = newest[-1][0] if newest else 0
        return plain(self, facts, now_ms=now_ms)

    patch.setattr(Journal, "_check", lambda self, rows: None)
    patch.setattr(Journal, "extend", extend)


def forget_orphans(patch: Any) -> None:
    """VMs that the list shows and nobody owns are left alone."""
    plain = Watch.look
    patch.setattr(Watch, "look", lambda self, *args: (plain(self, *args)[0], []))


def believe_a_failed_end(patch: Any) -> None:
    """A VM whose end was refused counts as gone."""

    def try_end(self: Actor, doomed: Any, now_ms: int) -> None:
        self.doomed.pop(doomed.instance_id, None)
        try:
            self.provider.terminate(doomed.instance_id)
        except SurefootError:
            self.record.state.fleet.get(doomed.token)
        if self.record.state.fleet.get(doomed.token) is not None:
            self.record.add(InstanceGone(now_ms, doomed.token, doomed.ending))

    patch.setattr(Actor, "_try_end", try_end)
    patch.setattr(Watch, "look", _owned_once(Watch.look))


def _owned_once(plain: Any) -> Any:
    """Take every VM that once had an owner for taken care of."""
    return lambda self, *args: (plain(self, *args)[0], [])


def follow_the_calendar_back(patch: Any) -> None:
    """A successor on a machine whose calendar was set back waits until it has caught up."""
    patch.setattr(loop, "SteadyClock", lambda clock, *, not_before_ms: clock)


def forget_the_bill(patch: Any) -> None:
    """Nothing seems to cost anything."""
    patch.setattr(Guard, "spent", lambda *args: 0)


def number_groups_anew(patch: Any) -> None:
    """Each controller counts its generations from one."""

    def next_generation(self: Journal, *, above: int = 0) -> int:
        self.generation = getattr(self, "_count", 0) + 1
        self._count = self.generation
        return self.generation

    patch.setattr(Journal, "next_generation", next_generation)


def go_on_after_a_failed_write(patch: Any) -> None:
    """A fact that could not be written is believed all the same."""
    plain = Record.add

    def add(self: Record, *events: Any) -> None:
        try:
            plain(self, *events)
        except OperationalError:
            for event in events:
                self._fold(event)

    patch.setattr(Record, "add", add)


def take_a_live_lease(patch: Any) -> None:
    """Whoever comes is in charge."""
    patch.setattr(journal, "_refuse_while_held", lambda *args, **terms: None)


PLANTED: dict[str, Patch] = {
    f.__name__: f
    for f in (
        forget_the_token,
        act_before_the_intent,
        ignore_the_fence,
        forget_orphans,
        believe_a_failed_end,
        follow_the_calendar_back,
        forget_the_bill,
        number_groups_anew,
        go_on_after_a_failed_write,
        take_a_live_lease,
    )
}
