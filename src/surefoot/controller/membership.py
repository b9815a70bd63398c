"""Who is in the training group: pure rules from what is seen of the VMs to the next generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from surefoot.controller.settings import Settings


@dataclass(frozen=True, slots=True)
class Group:
    """The newest announced generation. `number` 0 and no members before the first."""

    number: int = 0
    members: tuple[str, ...] = ()
    announced_ms: int = 0
    formed: bool = False
    form_by_ms: int = 0
    """Until then it may take to train its first step; later it is announced anew."""


@dataclass(frozen=True, slots=True)
class Seats:
    """Whom a group may be made of now.

    `ready`: VM token -> instant since when its worker is warm and heard. `leaving`: those that
    are to hand over (drained, or their notice runs out). `pressed`: the leaving ones whose time
    does not allow to wait. `kept_out`: ready VMs that a Resize left out. `holders`: members of
    the group that last trained, in whose memory the training is.
    """

    ready: Mapping[str, int]
    leaving: frozenset[str] = frozenset()
    pressed: frozenset[str] = frozenset()
    kept_out: frozenset[str] = frozenset()
    holders: frozenset[str] = frozenset()
    wave_ms: int = 0
    """How long the joiners wait for VMs that were launched with them."""


@dataclass(frozen=True, slots=True)
class Regroup:
    """A generation to announce. No members: the group is dissolved."""

    members: tuple[str, ...]
    lost: tuple[str, ...]
    left: tuple[str, ...]
    urgent: bool
    reason: str


def regroup(
    group: Group, seats: Seats, now_ms: int, settings: Settings, *, again: bool = False
) -> Regroup | None:
    """Return the next generation, or None while the present one is right.

    Survivors keep their order and joiners come behind them, so ranks are stable. A silent loss
    is urgent and takes waiting joiners along. Leavers go only when somebody who holds the live
    state stays: otherwise the joiners come in first, and the leavers go once those have it,
    however little time is left (or at once, where they hand over by a checkpoint).
    `again`: members asked for a new generation because the present one does not form.
    """
    lost = tuple(m for m in group.members if m not in seats.ready)
    going = tuple(m for m in group.members if m in seats.ready and m in seats.leaving)
    stay = tuple(m for m in group.members if m in seats.ready and m not in seats.leaving)
    join = _joiners(group, seats)
    settled = group.formed or now_ms >= group.form_by_ms
    held = settings.by_checkpoint or not seats.holders or not seats.holders.isdisjoint(stay)
    pressed = held and not seats.pressed.isdisjoint(going)
    if lost:
        members = (stay or going) + join
        left = going if stay else ()
        return Regroup(members, lost, left, True, "lost " + ", ".join(lost))
    if again:
        left = going if stay else ()
        return Regroup((stay or going) + join, (), left, True, "it did not form")
    if going and stay and (settled or pressed):
        return Regroup(stay + join, (), going, False, ", ".join(going) + " leaves")
    if not join or not _may_join(group, seats, join, now_ms, settings, settled=settled):
        return None
    if going and settings.by_checkpoint:
        return Regroup(join, (), going, False, ", ".join(going) + " leaves")
    return Regroup(stay + going + join, (), (), False, f"{len(join)} join")


def dissolve(group: Group, reason: str) -> Regroup:
    """Return the change that ends the group: nobody is left to hand over to."""
    return Regroup((), (), group.members, False, reason)


def last_ones(group: Group, seats: Seats) -> tuple[str, ...]:
    """Return the members if all of them are leaving and nobody can take over, else nothing."""
    if _joiners(group, seats):
        return ()
    here = tuple(m for m in group.members if m in seats.ready)
    return here if here and all(m in seats.leaving for m in here) else ()


def joinable_ms(group: Group, seats: Seats, now_ms: int, settings: Settings) -> int | None:
    """Return when the waiting joiners' batch closes; None when nobody waits."""
    join = _joiners(group, seats)
    if not join:
        return None
    batch = min(seats.ready[t] for t in join) + max(settings.batch_ms, seats.wave_ms)
    if group.members and not group.formed:
        return max(batch, group.form_by_ms)
    return batch


def _joiners(group: Group, seats: Seats) -> tuple[str, ...]:
    out = set(group.members) | seats.leaving | seats.kept_out
    return tuple(sorted((t for t in seats.ready if t not in out), key=lambda t: _by_age(seats, t)))


def _by_age(seats: Seats, token: str) -> tuple[int, int, str]:
    return (seats.ready[token], len(token), token)


def _may_join(
    group: Group,
    seats: Seats,
    join: tuple[str, ...],
    now_ms: int,
    settings: Settings,
    *,
    settled: bool,
) -> bool:
    """Wait for a short while, so that VMs that come up together make one interruption."""
    if group.members and not settled:
        return False
    waited_ms = now_ms - min(seats.ready[t] for t in join)
    return waited_ms >= max(settings.batch_ms, seats.wave_ms)
