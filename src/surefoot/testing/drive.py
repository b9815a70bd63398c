"""Runs a controller on a fake clock: nothing waits, time jumps to the next thing that happens."""

from __future__ import annotations

from surefoot.controller.loop import Controller
from surefoot.testing.agents import FakeAgents
from surefoot.testing.clock import FakeClock
from surefoot.testing.provider import FakeProvider

TURNS_AT_ONCE = 20
"""Turns at one instant, before time goes on whatever is still said."""


def drive(
    controller: Controller,
    clock: FakeClock,
    provider: FakeProvider,
    agents: FakeAgents,
    *,
    until_ms: int,
) -> None:
    """Take turns until the run is over or the clock has reached `until_ms`."""
    turns = 0
    while clock.now_ms() <= until_ms:
        wake_ms = controller.turn()
        if wake_ms is None:
            return
        if (turns := turns + 1) < TURNS_AT_ONCE:
            agents.advance()
            if agents.waiting:
                continue  # an answer that came at once is heard at once
        turns = 0
        events = (wake_ms, provider.next_event_ms(), agents.next_event_ms())
        due = min(at for at in events if at is not None)
        clock.advance_to(max(due, clock.now_ms() + 1))
