"""How long ready VMs wait for those that were launched with them, before a group is made."""

from __future__ import annotations

from collections.abc import Iterable

from surefoot.core.fleet import Fleet, InstanceState

WAVE_LIMIT_MS = 4_000
"""Nobody waits longer than this for the others of a launch."""


def wave_ms(fleet: Fleet, joiners: Iterable[str], *, members: int) -> int:
    """Return how long the oldest of `joiners` waits for VMs that still boot, milliseconds.

    A fifth of its own boot, while others of the same wave boot, if all of them together would
    at least double a group of `members`: training alone at first and re-forming costs more
    than the wait. 0 when nobody is to be waited for.
    """
    ready = [vm for t in joiners if (vm := fleet.get(t)) is not None]
    first = min(ready, key=lambda vm: vm.ready_ms or 0, default=None)
    if first is None or first.ready_ms is None or first.launched_ms is None:
        return 0
    wait_ms = min((first.ready_ms - first.launched_ms) // 5, WAVE_LIMIT_MS)
    last_ms = max(vm.launched_ms or 0 for vm in ready) + wait_ms
    starting = fleet.select(InstanceState.STARTING)
    coming = sum(vm.launched_ms is not None and vm.launched_ms <= last_ms for vm in starting)
    return wait_ms if coming and len(ready) + coming >= members else 0
