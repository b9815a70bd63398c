"""The statements on the record's tables, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Insert, Select, Update, bindparam, case, func, insert, select, update

from surefoot.controller.store.schema import events, leases


def all_runs() -> Select[Any]:
    """Return (run, first at_ms, last at_ms, last seq) of each run, oldest first."""
    first = func.min(events.c.at_ms)
    columns = (events.c.run, first, func.max(events.c.at_ms), func.max(events.c.seq))
    return select(*columns).group_by(events.c.run).order_by(first, events.c.run)


def events_after(run: str, seq: int) -> Select[Any]:
    """Return (seq, kind, body) of a run's events with a higher number, in order."""
    columns = (events.c.seq, events.c.kind, events.c.body)
    return select(*columns).where(events.c.run == run, events.c.seq > seq).order_by(events.c.seq)


def last_seq(run: str) -> Select[Any]:
    """Return the number of the run's newest event; 0 before the first."""
    return select(func.coalesce(func.max(events.c.seq), 0)).where(events.c.run == run)


ADD_EVENTS: Insert = insert(events)
"""Insert events: execute it with rows of run, seq, at_ms, kind and body."""


def lease_of(run: str, *, lock: bool = True) -> Select[Any]:
    """Return (fence, owner, expires_ms, generation) of a run, locked where the database can."""
    columns = (leases.c.fence, leases.c.owner, leases.c.expires_ms, leases.c.generation)
    found = select(*columns).where(leases.c.run == run)
    return found.with_for_update() if lock else found


def first_lease(run: str, owner: str, *, expires_ms: int) -> Insert:
    """Insert the lease of a run that never had one, with fence 1."""
    row = {"run": run, "fence": 1, "owner": owner, "expires_ms": expires_ms, "generation": 0}
    return insert(leases).values(row)


def take_lease(run: str, owner: str, *, fence: int, expires_ms: int) -> Update:
    """Raise the fence from `fence` by one and put `owner` in charge."""
    return (
        update(leases)
        .where(leases.c.run == run, leases.c.fence == fence)
        .values(fence=fence + 1, owner=owner, expires_ms=expires_ms)
    )


HOLD_LEASE: Update = (
    update(leases)
    .where(leases.c.run == bindparam("of_run"), leases.c.fence == bindparam("at_fence"))
    .values(expires_ms=bindparam("until_ms"))
)
"""Renew a lease; touches no row once the fence has moved on. Made once, as every write does it."""


def held(run: str, *, fence: int, expires_ms: int) -> Mapping[str, Any]:
    """Return the parameters of `HOLD_LEASE`."""
    return {"of_run": run, "at_fence": fence, "until_ms": expires_ms}


def raise_generation(run: str, *, fence: int, above: int) -> Update:
    """Count up the number for training groups, to more than `above`; touches no row once the
    fence has moved on."""
    old = leases.c.generation
    return (
        update(leases)
        .where(leases.c.run == run, leases.c.fence == fence)
        .values(generation=case((old < above, above), else_=old) + 1)
    )
