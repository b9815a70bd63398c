"""What one pool's history amounts to: losses, exposure, pool events, launch tries, spells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from surefoot.core.forecast.ages import AgeCurve
from surefoot.core.trace import Life, LifeEnd, PoolHistory, Signal
from surefoot.core.units import MS_PER_HOUR

MERGE_MS = 180_000
"""Losses this soon after the first of a burst are one pool event (theory notes, B.9)."""

MOMENT_MS = 5_000
"""Losses this close together are one moment of loss, for the fast sums."""

MIN_LIFE_MS = 1_000
"""A VM lost in the second it was born counts as having lived this long."""

LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class Rules:
    """How evidence fades and is weighed; the same for all pools of one model."""

    curve: AgeCurve = field(default_factory=AgeCurve)
    half_life_h: float = 24.0
    """Time after which a loss or an hour without one counts half."""
    rank_fade: float = 0.15
    """Weight of a launch try relative to the one after it: the newest rules."""


@dataclass(slots=True)
class Spells:
    """Ended spells of one kind (windows or droughts), the older ones fading: count and hours.

    `weighted_h` counts the hours with the age curve, for a rate of ending that falls with age.
    """

    ended: float = 0.0
    hours: float = 0.0
    weighted_h: float = 0.0

    def copied(self) -> Spells:
        """Return a copy."""
        return Spells(self.ended, self.hours, self.weighted_h)

    def add(self, length_h: float, curve: AgeCurve) -> None:
        """Count one more ended spell."""
        self.ended = self.ended * 0.8 + 1.0
        self.hours = self.hours * 0.8 + length_h
        self.weighted_h = self.weighted_h * 0.8 + curve.integral(0.0, length_h)


@dataclass(slots=True)
class Flow:
    """What happened since the sums were last rolled: moments of loss, and hours."""

    from_ms: int = -1
    moments: float = 0.0
    shares: float = 0.0
    held_h: float = 0.0
    up_h: float = 0.0
    known_h: float = 0.0

    def row(self) -> tuple[float, float, float, float, float]:
        """Return the five amounts."""
        return self.moments, self.shares, self.held_h, self.up_h, self.known_h


@dataclass(slots=True)
class Evidence:
    """One pool's digest, advanced by facts; times in epoch ms, exposure in VM-hours."""

    at_ms: int = -1
    """Up to when time has been let pass; -1 before the first fact."""
    losses: float = 0.0
    exposure_h: float = 0.0
    """Decayed VM-hours, each weighted with the age curve."""
    events: float = 0.0
    held_h: float = 0.0
    """Decayed hours during which at least one VM was held."""
    shares: float = 0.0
    """Decayed sum, over pool events, of the share of held VMs that was taken."""
    alive: dict[str, int] = field(default_factory=dict)
    """Birth of each VM that is held."""
    burst_ms: int | None = None
    burst_held: int = 0
    burst_lost: int = 0
    moment_held: int = 1
    last_loss_ms: int | None = None
    oldest_ms: int = 0
    """Greatest age at which a VM's life ended."""
    observed_losses: int = 0
    observed_h: float = 0.0
    tries: float = 0.0
    """Try weight, faded by rank: about 1 / (1 - rank_fade) once there are several."""
    grants: float = 0.0
    last_try_ms: int | None = None
    last_granted: int = 0
    last_asked: int = 0
    last_whole: bool = False
    """Whether the last try asked for all that the pool may hold, what is held included."""
    all_tries: float = 0.0
    all_grants: float = 0.0
    spell_ms: int | None = None
    """When the present run of granted (or refused) tries began."""
    windows: Spells = field(default_factory=Spells)
    droughts: Spells = field(default_factory=Spells)
    most_held: int = 0
    share: float = 0.0
    """Newest knowledge of how much of the usual supply is there, 0 to 1."""
    up_ms: int | None = None
    """Since when some supply is known to be there; None when there is none."""
    flow: Flow = field(default_factory=Flow)
    cursor: tuple[int, int] = (0, 0)
    """How many entries of `changed` and `launches` are taken in."""
    signals: tuple[Signal, ...] = ()
    """The newest of each kind of hint."""
    seen_signals: int = 0

    def copied(self) -> Evidence:
        """Return a copy that can be advanced without touching this one."""
        twin = Evidence(*_all_of(self))
        twin.alive = dict(self.alive)
        twin.windows, twin.droughts = self.windows.copied(), self.droughts.copied()
        twin.flow = Flow(self.flow.from_ms, *self.flow.row())
        return twin

    def behind(self, record: PoolHistory) -> bool:
        """Whether the record holds facts that are not taken in yet."""
        changes, tries = self.cursor
        return (
            changes != len(record.changed)
            or tries != len(record.launches)
            or self.seen_signals != len(record.signals)
        )

    def take(self, record: PoolHistory, rules: Rules, until_ms: int | None = None) -> None:
        """Take in what the record gained up to an instant, tries and lives merged by time."""
        changed, launches = record.changed, record.launches
        i, j = self.cursor
        many, tries = len(changed), len(launches)
        while i < many or j < tries:
            if j < tries and (i >= many or launches[j].at_ms <= changed[i][0]):
                at_ms = launches[j].at_ms
                if until_ms is not None and at_ms > until_ms:
                    break
                one = launches[j]
                self._try(at_ms, one.asked, one.granted, rules)
                self.last_whole = one.whole
                j += 1
            else:
                at_ms, key = changed[i]
                if until_ms is not None and at_ms > until_ms:
                    break
                self._change(record.lives[key], at_ms, rules)
                i += 1
        self.cursor = (i, j)
        if self.seen_signals != len(record.signals):
            newest = {s.kind: s for s in (*self.signals, *record.signals[self.seen_signals :])}
            self.signals, self.seen_signals = tuple(newest.values()), len(record.signals)

    def advance(self, to_ms: int, rules: Rules) -> None:
        """Let time pass: everything fades, and the held VMs add exposure."""
        if self.at_ms < 0:
            self.at_ms = to_ms
        self.stream(to_ms)
        gap_ms = to_ms - self.at_ms
        if gap_ms <= 0:
            return
        gap_h = gap_ms / MS_PER_HOUR
        fade = 2.0 ** (-gap_h / rules.half_life_h)
        fresh = (1.0 - fade) / (LN2 * gap_h / rules.half_life_h)
        exposure = 0.0
        for born_ms in self.alive.values():
            age_h = (self.at_ms - born_ms) / MS_PER_HOUR
            exposure += rules.curve.integral(age_h, age_h + gap_h)
        self.losses *= fade
        self.events *= fade
        self.shares *= fade
        self.exposure_h = self.exposure_h * fade + exposure * fresh
        self.held_h = self.held_h * fade + (gap_h * fresh if self.alive else 0.0)
        self.observed_h += gap_h * len(self.alive)
        self.at_ms = to_ms

    def stream(self, to_ms: int) -> None:
        """Let time pass for the fast sums only."""
        flow = self.flow
        if flow.from_ms < 0:
            flow.from_ms = to_ms
        gap_ms = to_ms - flow.from_ms
        if gap_ms <= 0:
            return
        gap_h = gap_ms / MS_PER_HOUR
        flow.known_h += gap_h
        flow.up_h += gap_h * self.level
        if self.alive:
            flow.held_h += gap_h
        flow.from_ms = to_ms

    @property
    def level(self) -> float:
        """How much of the usual supply is there, 0 to 1: held VMs, or the newest tries."""
        held = len(self.alive)
        return max(self.share, held / self.most_held) if held else self.share

    def ages_h(self, now_ms: int) -> list[float]:
        """Return the ages of the held VMs, in hours."""
        return [max(0, now_ms - born) / MS_PER_HOUR for born in self.alive.values()]

    def seen_to_h(self, now_ms: int) -> float:
        """Return the greatest age that a VM of the pool is known to have reached, in hours."""
        oldest_ms = self.oldest_ms
        if self.alive:
            oldest_ms = max(oldest_ms, now_ms - min(self.alive.values()))
        return oldest_ms / MS_PER_HOUR

    def to_dict(self) -> dict[str, Any]:
        """Return the digest as JSON-able values."""
        body = {name: getattr(self, name) for name in SLOTS}
        for name, kind in NESTED.items():
            body[name] = [getattr(body[name], n) for n in kind.__slots__]
        body["signals"] = [[s.at_ms, s.kind, s.value] for s in self.signals]
        body["cursor"] = list(self.cursor)
        return {**body, "alive": dict(self.alive)}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Evidence:
        """Read what `to_dict` wrote. Raises TypeError for unknown keys."""
        fields = dict(body)
        for name, kind in NESTED.items():
            fields[name] = kind(*fields[name])
        fields["signals"] = tuple(Signal(*s) for s in fields["signals"])
        fields["cursor"] = tuple(fields["cursor"])
        return cls(**{**fields, "alive": dict(fields["alive"])})

    def _change(self, life: Life, at_ms: int, rules: Rules) -> None:
        if life.key in self.alive:
            self.advance(at_ms, rules)
            self._end(life, rules)
        elif life.end_ms is None or life.end_ms >= life.born_ms:
            # An adopted VM was not watched before it was first seen: no exposure for that.
            self.advance(max(at_ms, life.first_seen_ms or at_ms), rules)
            self._begin(life, rules)

    def _begin(self, life: Life, rules: Rules) -> None:
        watched_ms = max(life.born_ms, life.first_seen_ms or life.born_ms)
        self._mend(life, watched_ms, self.at_ms, rules)
        self.alive[life.key] = life.born_ms
        self.most_held = max(self.most_held, len(self.alive))
        self._rose(life.born_ms)

    def _mend(self, life: Life, from_ms: int, to_ms: int, rules: Rules) -> None:
        """Correct for a fact that came late: count (or, backwards, take off) the time between."""
        if from_ms == to_ms:
            return
        begin_h, end_h = ((at - life.born_ms) / MS_PER_HOUR for at in (from_ms, to_ms))
        self.exposure_h = max(0.0, self.exposure_h + rules.curve.integral(begin_h, end_h))
        self.observed_h = max(0.0, self.observed_h + end_h - begin_h)

    def _end(self, life: Life, rules: Rules) -> None:
        held = len(self.alive)
        end_ms = life.end_ms if life.end_ms is not None else self.at_ms
        self._mend(life, self.at_ms, max(end_ms, life.born_ms + MIN_LIFE_MS), rules)
        del self.alive[life.key]
        self.oldest_ms = max(self.oldest_ms, end_ms - life.born_ms)
        if life.end is LifeEnd.PREEMPTED:
            self._lost(end_ms, held)

    def _lost(self, at_ms: int, held: int) -> None:
        self.losses += 1.0
        self.observed_losses += 1
        if self.last_loss_ms is None or abs(at_ms - self.last_loss_ms) > MOMENT_MS:
            self.flow.moments += 1.0
            self.moment_held = held
        self.flow.shares += 1.0 / max(self.moment_held, held)
        self.last_loss_ms = max(at_ms, self.last_loss_ms or at_ms)
        self.share = len(self.alive) / self.most_held
        if not self.alive:
            self.up_ms = None
        if self.burst_ms is None or at_ms - self.burst_ms > MERGE_MS:
            self.burst_ms, self.burst_held, self.burst_lost = at_ms, held, 0
            self.events += 1.0
        else:
            self.shares -= min(1.0, self.burst_lost / max(self.burst_held, 1))
        self.burst_lost += 1
        self.shares += min(1.0, self.burst_lost / max(self.burst_held, 1))

    def _rose(self, at_ms: int) -> None:
        if self.up_ms is None:
            self.up_ms = at_ms

    def _try(self, at_ms: int, asked: int, granted: int, rules: Rules) -> None:
        asked, granted = max(asked, 1), max(0, min(granted, asked))
        self.stream(at_ms)
        share = granted / asked
        self._spell(at_ms, granted > 0, rules)
        self.tries = self.tries * rules.rank_fade + 1.0
        self.grants = self.grants * rules.rank_fade + share
        self.all_tries = self.all_tries * 0.98 + 1.0
        self.all_grants = self.all_grants * 0.98 + share
        self.last_try_ms, self.last_asked, self.last_granted = at_ms, asked, granted
        self.share = share
        if granted:
            self._rose(at_ms)
        elif not self.alive:
            self.up_ms = None

    def _spell(self, at_ms: int, is_open: bool, rules: Rules) -> None:
        if self.spell_ms is None or self.last_try_ms is None:
            self.spell_ms = at_ms
            return
        if is_open == (self.last_granted > 0):
            return
        # The change fell somewhere between the two tries: count the middle.
        middle = (self.last_try_ms + at_ms) // 2
        spells = self.droughts if is_open else self.windows
        spells.add(max(0, middle - self.spell_ms) / MS_PER_HOUR, rules.curve)
        self.spell_ms = middle


SLOTS: tuple[str, ...] = tuple(Evidence.__slots__)
_all_of = attrgetter(*SLOTS)
NESTED: dict[str, Any] = {"windows": Spells, "droughts": Spells, "flow": Flow}
