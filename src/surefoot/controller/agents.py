"""The port to the agents in the VMs: what they said, whether they are there, telling them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from surefoot.core.wire import Message


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the agent with our `token`, received at `at_ms` (monotonic)."""

    token: str
    message: Message
    at_ms: int


@dataclass(frozen=True, slots=True)
class Silent:
    """An agent is not heard any more: its connection closed, or no beat came in time."""

    token: str
    reason: str
    at_ms: int


class Agents(Protocol):
    """All agents of a run. Beats stay inside; everything else comes out of `poll` in order."""

    def poll(self) -> Sequence[Said | Silent]:
        """Return what arrived since the last call, in order of receipt; never blocks."""

    def send(self, token: str, message: Message) -> bool:
        """Hand a message to one agent; False when it is not connected."""

    def connected(self) -> frozenset[str]:
        """Return the tokens of the agents that are heard."""

    def address(self, token: str) -> str | None:
        """Return where the VM's peers reach it, as its agent said; None before its Hello."""

    def wait(self, timeout_s: float) -> None:
        """Block until something can be polled, `wake` was called, or the time is over."""

    def wake(self) -> None:
        """Let a blocked `wait` return at once; from any thread."""
