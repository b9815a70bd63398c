"""What can go wrong around a controller, drawn from a seed as a list that can be shortened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STORM_MS = 12 * 60_000
"""Faults befall the run within this time; afterwards things are to become quiet."""

AT_TIMES = (
    "supply",
    "price",
    "notice",
    "late_notice",
    "early_notice",
    "broken_notice",
    "false_notice",
    "double_notice",
    "moved_notice",
    "silent_loss",
    "unseen_loss",
    "mute",
    "worker_crash",
    "jump_back",
    "jump_forward",
    "kill",
    "rival",
    "stall",
)
"""Faults at an instant; `at` is milliseconds after the start."""

AT_CALLS = ("throttle", "refuse", "lost", "late", "unheard", "auth", "twice")
"""Faults of the n-th launch or terminate; `at` is the number of the call."""

AT_LOOKS = ("look_throttled", "look_fails", "hides", "stale")
"""Faults of the n-th list or offerings."""

AT_OPERATIONS = ("crash_before", "crash_after", "store_fails", "commit_unknown", "stall_inside")
"""Faults at the n-th operation: a journal write or a call of the provider."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One misfortune. `pick` chooses the VM or pool, `span_ms` says how long or how late."""

    kind: str
    at: int
    pick: int = 0
    span_ms: int = 0


def draw(seed: int) -> tuple[Fault, ...]:
    """Return the faults of a seed."""
    rng = np.random.default_rng([seed, 5])
    found = [_one(rng) for _ in range(int(rng.integers(2, 24)))]
    return tuple(sorted(found, key=lambda f: (f.kind, f.at, f.pick, f.span_ms)))


def _one(rng: np.random.Generator) -> Fault:
    group = int(rng.choice(4, p=[0.4, 0.25, 0.1, 0.25]))
    kinds = (AT_TIMES, AT_CALLS, AT_LOOKS, AT_OPERATIONS)[group]
    kind = str(rng.choice(kinds))
    last = (STORM_MS, 10, 60, 250)[group]
    at = int(rng.integers(0, last) if group == 0 else np.exp(rng.uniform(0, np.log(last))))
    span = int(np.exp(rng.uniform(np.log(200), np.log(40_000))))
    return Fault(kind, at, int(rng.integers(0, 64)), span)
