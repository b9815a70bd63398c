"""Agents in a storm: they fall silent, come back, end their VM when nobody leads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from surefoot.controller.agents import Said, Silent
from surefoot.core.wire import Hello, Message, Ready, WorkerExited
from surefoot.testing.agents import FakeAgents

if TYPE_CHECKING:
    from surefoot.testing.chaos_world import ChaosWorld

BEATS_MS = 1_000
"""An agent that is not heard for this long counts as silent."""

LEASE_MS = 90_000
"""A VM whose agent has found no controller for this long ends itself."""


class ChaosAgents(FakeAgents):
    """FakeAgents whose connections can hang."""

    def mute(self, token: str, span_ms: int) -> None:
        """Cut one agent off for a while; its worker trains on."""
        worker, now_ms = self.workers.get(token), self.clock.now_ms()
        if worker is None or not worker.connected:
            return
        worker.connected = False

        def missed(at_ms: int) -> None:
            if token in self.workers and not worker.connected:
                self._inbox.append(Silent(token, "not heard", at_ms))

        self._at(now_ms + BEATS_MS, missed)
        self._at(now_ms + span_ms, lambda now: self._back(token, now))

    def crash_worker(self, token: str) -> None:
        """Let the training script of one VM fail; its agent starts it again."""
        group = self._group
        if token not in self.workers:
            return
        self.workers[token].holds = None
        if group is not None and token in group.order.tokens and not group.broken:
            self._break(group, self.clock.now_ms())
        self.say(token, WorkerExited(1, "ValueError: chaos"))
        self._at(self.clock.now_ms() + 3_000, lambda now: self._up(token, 3_000, now))

    def training(self) -> tuple[str, ...]:
        """Return the members of the group that really trains now."""
        group = self._group
        return group.order.tokens if group and group.formed and not group.broken else ()

    def _back(self, token: str, at_ms: int) -> None:
        worker = self.workers.get(token)
        if worker is None or worker.connected:
            return
        worker.connected = True
        self._say(token, Hello(token, "", worker.address), at_ms)
        self._say(token, Ready(0, self.durable), at_ms)

    def _say(self, token: str, message: Message, at_ms: int) -> None:
        worker = self.workers.get(token)
        if worker is not None and not worker.connected:
            return  # what a cut-off agent says is not heard
        super()._say(token, message, at_ms)


class Line:
    """One controller's end of the agents; dead once another controller has come."""

    def __init__(self, world: ChaosWorld) -> None:
        self.world = world

    @property
    def _live(self) -> bool:
        return self.world.line is self

    def poll(self) -> Sequence[Said | Silent]:
        """Return what was said."""
        return self.world.agents.poll() if self._live else ()

    def send(self, token: str, message: Message) -> bool:
        """Hand a message to one agent."""
        return self._live and self.world.agents.send(token, message)

    def connected(self) -> frozenset[str]:
        """Return the agents that are heard."""
        return self.world.agents.connected() if self._live else frozenset()

    def address(self, token: str) -> str | None:
        """Return a VM's address."""
        return self.world.agents.address(token) if self._live else None

    def wait(self, timeout_s: float) -> None:
        """Return at once."""

    def wake(self) -> None:
        """Nothing waits."""
