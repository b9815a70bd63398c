"""Which committed checkpoints may go: by policies, never the newest good one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from surefoot.checkpoint.commit import Live
from surefoot.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Latest:
    """Keep the newest `n`."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise CheckpointError(f"keep must be at least 1, not {self.n}")


@dataclass(frozen=True, slots=True)
class EveryNHours:
    """Keep the first one committed in each span of `hours`, forever (by the commit's clock)."""

    hours: float

    def __post_init__(self) -> None:
        if not (self.hours > 0 and math.isfinite(self.hours)):
            raise CheckpointError(f"EveryNHours needs hours above 0, not {self.hours}")


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the `n` with the highest score (`highest=False`: the lowest); no score, no claim."""

    n: int = 1
    highest: bool = True

    def __post_init__(self) -> None:
        if self.n < 1:
            raise CheckpointError(f"Best must keep at least 1, not {self.n}")


Rule = Latest | EveryNHours | Best
Keep = int | Rule | Sequence[Rule]
"""A number (the newest so many), one rule, or several: what any of them keeps stays."""


def rules_of(keep: Keep) -> tuple[Rule, ...]:
    """Return `keep` as rules; raises CheckpointError for none and for what is no rule."""
    if isinstance(keep, int):
        return (Latest(keep),)
    rules = (keep,) if isinstance(keep, Latest | EveryNHours | Best) else tuple(keep)
    if not rules or not all(isinstance(rule, Latest | EveryNHours | Best) for rule in rules):
        raise CheckpointError(
            f"keep is {keep!r}",
            hint="give a number, Latest(n), EveryNHours(h), Best(n), or a list of these",
        )
    return rules


def at_least(keep: Keep) -> int:
    """Return how many checkpoints stay at least, once there are so many (for the space needed)."""
    return max([1, *(rule.n for rule in rules_of(keep) if isinstance(rule, Latest | Best))])


def spelled(keep: Keep) -> list[list[Any]]:
    """Return `keep` as JSON values, for the writer process."""
    return [[type(rule).__name__, *astuple(rule)] for rule in rules_of(keep)]


def unspelled(body: Sequence[Sequence[Any]]) -> tuple[Rule, ...]:
    """Return the rules that `spelled` spelled."""
    kinds: dict[str, type[Rule]] = {"Latest": Latest, "EveryNHours": EveryNHours, "Best": Best}
    return tuple(kinds[name](*values) for name, *values in body)


def to_drop(
    live: Iterable[Live],
    keep: Keep,
    *,
    corrupt: Collection[str] = (),
    protect: Collection[str] = (),
) -> list[str]:
    """Return the folders that no rule keeps; the newest good one always stays.

    `corrupt` folders do not count as kept and go once they are older than a good one that stays;
    `protect` folders never go. Emergency saves count like any other.
    """
    ordered = sorted(live, key=lambda item: item.step, reverse=True)
    good = [item for item in ordered if item.folder not in corrupt]
    if not good:
        return []
    kept = {good[0].folder}
    for rule in rules_of(keep):
        kept.update(item.folder for item in _kept(rule, good))
    gone = [item for item in good if item.folder not in kept]
    gone += [item for item in ordered if item.folder in corrupt and item.step <= good[0].step]
    return [item.folder for item in gone if item.folder not in protect]


def _kept(rule: Rule, good: Sequence[Live]) -> Iterable[Live]:
    """Return what one rule keeps of `good`, which is newest first."""
    match rule:
        case Latest(n):
            return good[:n]
        case Best(n, highest):
            scored = [item for item in good if item.score is not None]
            sign = -1.0 if highest else 1.0
            return sorted(scored, key=lambda item: (sign * (item.score or 0.0), -item.step))[:n]
        case EveryNHours(hours):
            firsts: dict[int, Live] = {}
            for item in good:
                if item.unix_ms is None:
                    return good  # of a log before times were written: nothing is known to be extra
                firsts[int(item.unix_ms / (hours * 3_600_000))] = item
            return firsts.values()
