"""Which committed checkpoints may go: by step number, never the newest good one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from surefoot.checkpoint.commit import Live


def to_drop(
    live: Iterable[Live], keep: int, *, corrupt: Collection[str] = (), protect: Collection[str] = ()
) -> list[str]:
    """Return the folders beyond the newest `keep` good ones.

    `corrupt` folders do not count as kept and go once they are older than a good one that stays;
    `protect` folders never go. Emergency saves count like any other.
    """
    ordered = sorted(live, key=lambda item: item.step, reverse=True)
    good = [item for item in ordered if item.folder not in corrupt]
    kept = good[: max(1, keep)]
    if not kept:
        return []
    gone = [item for item in good[max(1, keep) :]]
    gone += [item for item in ordered if item.folder in corrupt and item.step <= kept[0].step]
    return [item.folder for item in gone if item.folder not in protect]
