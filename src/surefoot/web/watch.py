"""The runs below a folder, each folded from its journal as it grows; no controller is needed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from surefoot.controller.clock import RealClock
from surefoot.controller.leader import Leader, leader_in
from surefoot.controller.store import Store, may_be_there
from surefoot.controller.store.queries import events_after
from surefoot.core.event import (
    CheckpointCommitted,
    CheckpointFailed,
    Event,
    GroupBroken,
    InstanceGone,
    LaunchFailed,
    OfferingsSeen,
    StepsDone,
)
from surefoot.core.fleet import Instance, InstanceState
from surefoot.core.market import Capacity, Pool
from surefoot.errors import ConfigError, SurefootError
from surefoot.report import Story
from surefoot.report.card import CARD, Card, journal_of, read_card
from surefoot.report.clean import clean
from surefoot.report.story import Course

KEPT_LINES = 50_000
ENOUGH_GOODPUT = 1_000
FRESH_MS = 200
"""A run that was read this short a time ago is not read again."""

LOOK_MS = 1_000
"""How long the list of folders is believed."""


@dataclass(frozen=True, slots=True)
class Line:
    """One event as lists show it; `text` is empty for what is not worth a line."""

    seq: int
    at_ms: int
    kind: str
    tone: str
    text: str


@dataclass(slots=True)
class Watch:
    """One run: its story so far, its VMs (gone ones too), its lines and saves. Not for threads."""

    folder: Path
    card: Card
    store: Store | None = None
    story: Story = field(init=False)
    seq: int = 0
    unreadable: int = 0
    vms: dict[str, Instance] = field(default_factory=dict)
    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    saves: list[CheckpointCommitted | CheckpointFailed] = field(default_factory=list)
    speed: Course = field(default_factory=Course)
    """Training steps per second; 0 while nothing trains."""
    goodput: Course = field(default_factory=Course)
    prices: dict[tuple[Pool, Capacity], Course] = field(default_factory=dict)
    read_ms: int = 0
    trouble: str = ""
    """Why the journal cannot be read, empty if it can."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _goodput_ms: int = 0
    _worked_out: dict[str, tuple[object, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.story = Story(self.card.job())

    def refresh(self, *, now_ms: int) -> None:
        """Take in what the journal has gained; a run without a journal yet has nothing."""
        if now_ms - self.read_ms < FRESH_MS:
            return
        self.read_ms = now_ms
        self._try_to_read()

    def _try_to_read(self) -> None:
        try:
            self._read()
            self.trouble = ""
        except (SurefootError, SQLAlchemyError, OSError) as error:
            self.trouble = clean(error)

    def _read(self) -> None:
        if self.store is None:
            journal = journal_of(self.folder)
            if not may_be_there(journal):
                return
            self.store = Store(journal)
        for seq, event in self.store.events(self.card.run, after=self.seq):
            self._take(seq, event)
        passed_over = [bad.seq for bad in self.store.unreadable]
        self.store.unreadable.clear()
        self.unreadable += len(passed_over)
        self.seq = max([self.seq, *passed_over])

    def _take(self, seq: int, event: Event) -> None:
        told, token = self.story.told, getattr(event, "token", "")
        before = self.story.state.fleet.get(token)
        self.story.add(event)
        self.seq = seq
        tone, text = "quiet", ""
        if self.story.told > told:
            _, (mood, text) = self.story.lines[-1]
            tone = mood.value
        self.lines.append(Line(seq, event.at_ms, type(event).__name__, tone, text))
        if token:
            self._vm(event, token, before)
        self._note(event)
        ran_ms = event.at_ms - (self.story.began_ms or event.at_ms)
        if (event.at_ms - self._goodput_ms) * ENOUGH_GOODPUT >= ran_ms:
            self._goodput_ms = event.at_ms
            share = self.story.account.goodput.share
            if share is not None:
                self.goodput.add(event.at_ms, share)

    def _vm(self, event: Event, token: str, before: Instance | None) -> None:
        now = self.story.state.fleet.get(token)
        if now is not None:
            self.vms[token] = now
        elif isinstance(event, LaunchFailed):
            self.vms.pop(token, None)
        elif isinstance(event, InstanceGone) and before is not None:
            gone = InstanceState.GONE
            ended = replace(before, state=gone, gone_ms=event.at_ms, ending=event.ending)
            self.vms[token] = ended

    def _note(self, event: Event) -> None:
        match event:
            case StepsDone():
                self.speed.add(event.at_ms, 1_000 / event.step_ms if event.step_ms > 0 else 0.0)
            case GroupBroken():
                self.speed.add(event.at_ms, 0.0)
            case CheckpointCommitted() | CheckpointFailed():
                self.saves.append(event)
            case OfferingsSeen():
                for offer in event.offerings:
                    price = offer.price_micro_usd_h
                    if price > 0:
                        course = self.prices.setdefault((offer.pool, offer.capacity), Course())
                        course.add_step(event.at_ms, price / 1e6)
            case _:
                pass

    def once(self, what: str, given: object, work_out: Callable[[], Any]) -> Any:
        """Return what `work_out` gives; worked out anew after new events or for another `given`."""
        key = (self.seq, given)
        known = self._worked_out.get(what)
        if known is None or known[0] != key:
            known = self._worked_out[what] = (key, work_out())
        return known[1]

    @property
    def leader(self) -> Leader | None:
        """The process that leads the run now, if its lease runs and it is not known to be dead."""
        found = leader_in(self.store, self.card.run) if self.store is not None else None
        return found if found is not None and found.is_alive else None

    @property
    def state(self) -> str:
        """Return not begun, under way, left (nobody leads it), or the outcome."""
        return self.story.state.outcome or self.state_by(self.leader)

    def state_by(self, leader: Leader | None) -> str:
        """Return the state, given who leads the run."""
        if self.story.state.outcome:
            return self.story.state.outcome
        if leader is not None:
            return "under way"
        self._try_to_read()  # a leader writes the end before it goes: what was read may be older
        return self.story.state.outcome or ("left" if self.seq else "not begun")

    def bodies(self, after: int, limit: int) -> list[tuple[int, str, str]]:
        """Return (seq, kind, body as JSON text) of stored events, readable or not."""
        if self.store is None:
            return []
        query = events_after(self.card.run, after).limit(limit)
        with self.store.engine.connect().execution_options(reading=True) as link:
            return [(int(seq), str(kind), str(body)) for seq, kind, body in link.execute(query)]


class Runs:
    """All runs whose folder lies in `root` (or is `root`), for any number of threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._clock = RealClock()
        self._lock = threading.Lock()
        self._known: dict[Path, Watch] = {}
        self._looked_ms: int | None = None

    def all(self) -> list[Watch]:
        """Return every run there is, the newest first, each read up to now."""
        with self._lock:
            self._look()
            found = list(self._known.values())
        for watch in found:
            self._fresh(watch)
        return sorted(found, key=lambda w: (-w.card.started_ms, w.card.run))

    def get(self, run: str) -> Watch:
        """Return a run, read up to now. Raises KeyError when there is none of that name."""
        with self._lock:
            self._look()
            fit = [w for w in self._known.values() if w.card.run == run]
        if not fit:
            raise KeyError(run)
        watch = max(fit, key=lambda w: w.card.started_ms)
        self._fresh(watch)
        return watch

    def now_ms(self) -> int:
        """Return the time, epoch ms."""
        return self._clock.now_ms()

    def close(self) -> None:
        """Let go of all journals."""
        for watch in self._known.values():
            if watch.store is not None:
                watch.store.close()

    def _fresh(self, watch: Watch) -> None:
        with watch.lock:
            watch.refresh(now_ms=self.now_ms())

    def _look(self) -> None:
        now_ms = self.now_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        there = dict(_cards(self.root))
        for folder in [f for f in self._known if f not in there]:
            gone = self._known.pop(folder)
            if gone.store is not None:
                gone.store.close()
        for folder, card in there.items():
            known = self._known.get(folder)
            if known is not None and known.card.run == card.run:
                known.card = card  # terms may have changed when the run was taken up again
                continue
            if known is not None and known.store is not None:
                known.store.close()
            self._known[folder] = Watch(folder, card)


def _cards(root: Path) -> Iterator[tuple[Path, Card]]:
    """Yield the folders of runs: the root itself, and the folders in it."""
    for path in sorted({root / CARD, *root.glob(f"*/{CARD}")}):
        card = read_card(path.parent)
        if card is not None and _is_sane(card):
            yield path.parent, card


def _is_sane(card: Card) -> bool:
    """Whether a card that somebody may have edited gives a job at all."""
    try:
        card.job()
        return isinstance(card.run, str) and bool(card.run) and isinstance(card.started_ms, int)
    except (ValueError, TypeError, AttributeError):
        return False


def open_runs(root: Path) -> Runs:
    """Return the runs of a folder. Raises ConfigError when there is no such folder."""
    if not root.is_dir():
        raise ConfigError(f"{root}: there is no such folder", hint="name a folder that holds runs")
    return Runs(root)
