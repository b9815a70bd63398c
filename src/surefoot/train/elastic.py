"""Which group this worker is in, which one comes next, and how it goes from one to the other.

A new generation's group is formed by a thread while the old one still trains. Every worker says
in the gradient all-reduce that its new group stands; when all have said so, all leave the old one
after the same step. So an addition costs a pause of a state transfer, and a generation whose
joiner dies on the way costs nothing. When a member is lost, the old group's connections are cut at
once, and the wait is only for the new group.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

from surefoot.core.wire import Broken, Generation, StoreUp
from surefoot.train.environment import local_place
from surefoot.train.group import Group, form
from surefoot.train.link import Link

REPEAT_S = 3.0
"""A worker without a group says so again after this long."""


@dataclass(slots=True, eq=False)
class _Forming:
    """A generation on its way to be this worker's group."""

    order: Generation
    named: bool
    group: Group | None = None
    error: str = ""
    given_up: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Membership:
    """The present group and the next one. Methods are for the training thread unless noted."""

    def __init__(self, link: Link, token: str, address: str) -> None:
        self._link, self._token, self._address = link, token, address
        self._lock = threading.Lock()
        self.group: Group | None = None
        self._next: _Forming | None = None
        self._last = 0
        link.on_generation = self.hear

    def hear(self, order: Generation) -> None:
        """Act on a new membership (called by the link's thread): cut, and start to form."""
        with self._lock:
            newest = self._next.order.number if self._next else self._number()
            if order.number <= newest:
                return
            if self._next is not None:
                self._give_up(self._next)
            if self.group is not None and self._is_lost(self.group, order):
                self.group.cut()
            self._next = _Forming(order, self._token in order.tokens)
            self._start(self._next)

    @property
    def ready_to_leave(self) -> bool:
        """Whether this worker can go on in the next generation, or is not in it."""
        upcoming = self._next
        return upcoming is not None and (not upcoming.named or upcoming.group is not None)

    @property
    def excluded(self) -> bool:
        """Whether the next generation goes on without this worker."""
        return self._next is not None and not self._next.named

    def survivors(self) -> int | None:
        """Return how many members of the present group are in the next; None if none is known."""
        if self._next is None or self.group is None:
            return None
        return len(set(self._next.order.addresses) & set(self.group.addresses))

    def drop(self) -> None:
        """Close the present group."""
        with self._lock:
            group, self.group = self.group, None
        if group is not None:
            group.close()

    def adopt(self) -> Group | None:
        """Make the next generation's group the present one, if it stands."""
        with self._lock:
            upcoming = self._next
            if upcoming is None or upcoming.group is None:
                return None
            self._next, self.group = None, upcoming.group
            return self.group

    def wait(self, timeout_s: float) -> None:
        """Wait a little for the next generation to stand."""
        upcoming = self._next
        if upcoming is not None and upcoming.named:
            upcoming.done.wait(timeout_s)
            if not upcoming.error:
                return
        with self._link.changed:
            self._link.changed.wait(timeout_s)

    @property
    def trouble(self) -> str:
        """Why the next generation could not be formed, if it could not."""
        return self._next.error if self._next is not None else ""

    @property
    def next_number(self) -> int:
        """Number of the newest generation heard of; 0 before the first."""
        return self._next.order.number if self._next is not None else self._number()

    def _number(self) -> int:
        return self.group.number if self.group is not None else self._last

    def _is_lost(self, group: Group, order: Generation) -> bool:
        if order.lost:
            return bool(set(order.lost) & set(group.addresses))
        return order.urgent

    def _give_up(self, forming: _Forming) -> None:
        forming.given_up = True
        if forming.group is not None:
            forming.group.close()
            forming.group = None

    def _start(self, forming: _Forming) -> None:
        self._last = forming.order.number
        if forming.named:
            name = f"surefoot-form-{forming.order.number}"
            threading.Thread(target=self._form, args=(forming,), name=name, daemon=True).start()

    def _form(self, forming: _Forming) -> None:
        """Form a group (own thread); a late one that nobody waits for any more is closed."""

        def await_store(number: int) -> StoreUp:
            return self._link.await_store(number, lambda: not forming.given_up)

        try:
            group = form(
                forming.order,
                self._token,
                self._address,
                publish=self._link.send,
                await_store=await_store,
                local=local_place(os.environ),
            )
        except (RuntimeError, OSError) as error:  # TimeoutError is an OSError
            forming.error = f"{type(error).__name__}: {error}"[:200]
        else:
            with self._lock:
                if forming.given_up:
                    group.close()
                else:
                    forming.group = group
        forming.done.set()
        with self._link.changed:
            self._link.changed.notify_all()


class Patience:
    """Says `Broken` when a group is lost, and again while the next one keeps a worker waiting."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._number = 0
        self._due_s = 0.0

    def lost(self, generation: int, newest: int, step: int, reason: str) -> None:
        """Report a lost group, unless a newer generation is known and so already on its way."""
        if newest == generation:
            self._link.send(Broken(generation, step, reason))
        self._wait_for(newest)

    def complain(self, newest: int, step: int, reason: str) -> None:
        """Report every REPEAT_S that the newest generation has given this worker no group."""
        if newest != self._number:
            self._wait_for(newest)
        elif time.monotonic() >= self._due_s:
            self._link.send(Broken(newest, step, reason))
            self._wait_for(newest)

    def _wait_for(self, number: int) -> None:
        self._number, self._due_s = number, time.monotonic() + REPEAT_S
