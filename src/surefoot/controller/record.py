"""What the controller knows of its run: every fact is journaled first, then folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from surefoot.controller.settings import Settings
from surefoot.controller.store import Journal
from surefoot.core.account import Account
from surefoot.core.backoff import Backoff
from surefoot.core.event import (
    Event,
    GroupBroken,
    GroupFormed,
    InstanceGone,
    InstanceReady,
    InstanceRequested,
    State,
    WorkerFailed,
    apply,
)
from surefoot.core.fleet import Ending
from surefoot.core.history import observe
from surefoot.core.job import Job
from surefoot.core.trace import History


class Record:
    """The fold of a run's journal: state, history, bill, back-off; and the way to add to it."""

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        *,
        job: Job | None = None,
        history: History | None = None,
        on_event: Iterable[Callable[[Event], None]] = (),
    ) -> None:
        self.journal = journal
        self.state = State()
        self.history = history or History()
        self.account = Account(job)
        self.backoff = Backoff(
            settings.backoff_ms,
            settings.backoff_limit_ms,
            settings.quota_pause_ms,
            settings.auth_pause_ms,
        )
        self.crashes = 0
        self.setup_failures = 0
        self.last_crash = ""
        self.boot_rounds = 0
        """VMs that were started and never came up since the last that did."""
        self.requested = 0
        """VMs ever requested in this run: the next token's number."""
        self.formed: GroupFormed | None = None
        """The group that trains, or None while none does."""
        self.ever_formed = False
        self._on_event = list(on_event)
        for _, event in journal.events():
            self._fold(event)

    def add(self, *events: Event) -> None:
        """Write events durably, fold them, tell the listeners. Raises FencedError."""
        if not events:
            return
        self.journal.extend(events)
        for event in events:
            self._fold(event)
        for event in events:
            for listener in self._on_event:
                listener(event)

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with each event from now on, after it is journaled."""
        self._on_event.append(listener)

    def _fold(self, event: Event) -> None:
        observe(self.history, event, self.state)
        self.backoff.observe(event, self.state)
        self.account.add(event)
        self._count(event)
        self.state = apply(self.state, event)

    def _count(self, event: Event) -> None:
        match event:
            case InstanceRequested():
                self.requested += 1
            case GroupFormed():
                self.formed, self.ever_formed = event, True
            case InstanceReady():
                self.boot_rounds = 0
            case InstanceGone(ending=Ending.BOOT_FAILED):
                self.boot_rounds += 1
            case GroupBroken():
                self.formed = None
            case WorkerFailed():
                self.last_crash = f"exit code {event.code} on {event.token}: {event.tail}"
                self.crashes += not event.setup
                self.setup_failures += event.setup
            case _:
                return
