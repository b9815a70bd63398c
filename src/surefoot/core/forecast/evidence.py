"""What one pool's history amounts to: decayed losses, exposure, pool events and launch tries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from surefoot.core.forecast.ages import AgeCurve
from surefoot.core.trace import Life, LifeEnd, PoolHistory
from surefoot.core.units import MS_PER_HOUR

MERGE_MS = 180_000
"""Losses this soon after the first of a burst are one pool event (theory notes, B.9)."""

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
    observed_losses: int = 0
    observed_h: float = 0.0
    tries: float = 0.0
    """Try weight, faded by rank: about 1 / (1 - rank_fade) once there are several."""
    grants: float = 0.0
    last_try_ms: int | None = None
    last_granted: int = 0
    last_asked: int = 0
    spell_ms: int | None = None
    """When the present run of granted (or refused) tries began."""
    ended_spells: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Number of ended [droughts, windows], decayed by the spell."""
    spell_h: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Total hours of ended [droughts, windows], decayed alike."""
    all_tries: float = 0.0
    all_grants: float = 0.0
    most_held: int = 0
    cursor: tuple[int, int] = (0, 0)
    """How many entries of `changed` and `launches` are taken in."""

    def copied(self) -> Evidence:
        """Return a copy that can be advanced without touching this one."""
        twin = Evidence(**{name: getattr(self, name) for name in self.__slots__})
        twin.alive = dict(self.alive)
        twin.ended_spells = list(self.ended_spells)
        twin.spell_h = list(self.spell_h)
        return twin

    def behind(self, record: PoolHistory) -> bool:
        """Whether the record holds facts that are not taken in yet."""
        return self.cursor != (len(record.changed), len(record.launches))

    def take(self, record: PoolHistory, rules: Rules) -> None:
        """Take in what the record gained, in order of time of learning."""
        changes, tries = self.cursor
        for at_ms, key in record.changed[changes:]:
            life = record.lives[key]
            if key in self.alive:
                self.advance(at_ms, rules)
                self._end(life, rules)
            else:
                # An adopted VM was not watched before it was first seen: no exposure for that.
                self.advance(max(at_ms, life.first_seen_ms or at_ms), rules)
                self._begin(life, rules)
        for one in record.launches[tries:]:
            self._try(one.at_ms, one.asked, one.granted, rules)
        self.cursor = (len(record.changed), len(record.launches))

    def advance(self, to_ms: int, rules: Rules) -> None:
        """Let time pass: everything fades, and the held VMs add exposure."""
        if self.at_ms < 0:
            self.at_ms = to_ms
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

    def ages_h(self, now_ms: int) -> Sequence[float]:
        """Return the ages of the held VMs, in hours."""
        return [max(0, now_ms - born) / MS_PER_HOUR for born in self.alive.values()]

    def to_dict(self) -> Mapping[str, object]:
        """Return the digest as JSON-able values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, body: Mapping[str, object]) -> Evidence:
        """Read what `to_dict` wrote. Raises TypeError for unknown keys."""
        one = cls(**body)  # type: ignore[arg-type]
        first, second = one.cursor
        one.cursor = (first, second)
        return one.copied()

    def _begin(self, life: Life, rules: Rules) -> None:
        watched_ms = max(life.born_ms, life.first_seen_ms or life.born_ms)
        self._mend(life, watched_ms, self.at_ms, rules)
        self.alive[life.key] = life.born_ms
        self.most_held = max(self.most_held, len(self.alive))

    def _mend(self, life: Life, from_ms: int, to_ms: int, rules: Rules) -> None:
        """Correct for a fact that came late: count (or, backwards, take off) the time between."""
        if from_ms == to_ms:
            return
        begin_h, end_h = ((at - life.born_ms) / MS_PER_HOUR for at in (from_ms, to_ms))
        self.exposure_h = max(0.0, self.exposure_h + rules.curve.integral(begin_h, end_h))
        self.observed_h = max(0.0, self.observed_h + end_h - begin_h)

    def _end(self, life: Life, rules: Rules) -> None:
        held = len(self.alive)
        self._mend(life, self.at_ms, life.end_ms or self.at_ms, rules)
        del self.alive[life.key]
        if life.end is not LifeEnd.PREEMPTED:
            return
        self.losses += 1.0
        self.observed_losses += 1
        at_ms = self.at_ms
        if self.burst_ms is None or at_ms - self.burst_ms > MERGE_MS:
            self.burst_ms, self.burst_held, self.burst_lost = at_ms, held, 0
            self.events += 1.0
        else:
            self.shares -= min(1.0, self.burst_lost / max(self.burst_held, 1))
        self.burst_lost += 1
        self.shares += min(1.0, self.burst_lost / max(self.burst_held, 1))

    def _try(self, at_ms: int, asked: int, granted: int, rules: Rules) -> None:
        asked, granted = max(asked, 1), max(0, min(granted, asked))
        share = granted / asked
        self._spell(at_ms, granted > 0)
        self.tries = self.tries * rules.rank_fade + 1.0
        self.grants = self.grants * rules.rank_fade + share
        self.all_tries = self.all_tries * 0.98 + 1.0
        self.all_grants = self.all_grants * 0.98 + share
        self.last_try_ms, self.last_asked, self.last_granted = at_ms, asked, granted

    def _spell(self, at_ms: int, is_open: bool) -> None:
        if self.spell_ms is None or self.last_try_ms is None:
            self.spell_ms = at_ms
            return
        if is_open == (self.last_granted > 0):
            return
        # The change fell somewhere between the two tries: count the middle.
        middle = (self.last_try_ms + at_ms) // 2
        index = int(not is_open)
        self.ended_spells[index] = self.ended_spells[index] * 0.8 + 1.0
        length_h = max(0, middle - self.spell_ms) / MS_PER_HOUR
        self.spell_h[index] = self.spell_h[index] * 0.8 + length_h
        self.spell_ms = middle
