"""The journal of runs in SQL: events appended under a fenced lease, read back in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from surefoot.controller.store import engine as database
from surefoot.controller.store import queries
from surefoot.controller.store.codec import decode_event, encode_event
from surefoot.controller.store.schema import VERSION, metadata, versions
from surefoot.core.event import Event
from surefoot.errors import ConfigError, FencedError

LEASE_MS = 10_000
"""A controller that has not renewed its lease for this long may be replaced."""

AGAIN_S = (0.1, 0.4, 1.5)
"""Pauses before a write is tried again after a database server went away; in all much less than
a lease. A server that stays away longer ends the controller, and its journal is whole."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in the store: its name, first and last instant, number of its newest event."""

    run: str
    first_ms: int
    last_ms: int
    seq: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An event that this version cannot read; it is left where it is."""

    run: str
    seq: int
    why: str


class Store:
    """All runs' records in one database: a path to an SQLite file, or a URL of PostgreSQL.

    Reading is free for all; writing a run's journal needs `acquire`. Raises ConfigError for a
    database made by a newer version, and for a server that cannot be reached.
    """

    def __init__(self, where: str | Path) -> None:
        url = database.place_of(where)
        self.place = database.shown(url)
        """Where the record is, without a password."""
        self._engine = database.open_engine(url)
        try:
            with self._engine.begin() as link:
                database.guard_schema(link)
                metadata.create_all(link)
                _check_version(link, self.place)
        except OperationalError as error:
            if url.drivername == "sqlite":
                raise
            raise database.refused(url, error) from None
        self.unreadable: list[Unreadable] = []
        """Events set aside by `events` because this version cannot read them."""

    def runs(self) -> list[RunRow]:
        """Return every run that has events, oldest first."""
        with self._reading() as link:
            return [RunRow(*row) for row in link.execute(queries.all_runs())]

    def events(self, run: str, *, after: int = 0) -> list[tuple[int, Event]]:
        """Return (seq, event) of a run with a number above `after`, in order.

        A record that cannot be read is put into `unreadable` and left out: one bad row must not
        stop a run.
        """
        with self._reading() as link:
            rows = link.execute(queries.events_after(run, after)).all()
        found: list[tuple[int, Event]] = []
        for seq, kind, body in rows:
            try:
                found.append((seq, decode_event(kind, body)))
            except ValueError as error:
                self.unreadable.append(Unreadable(run, seq, str(error)))
        return found

    def acquire(
        self,
        run: str,
        owner: str,
        *,
        now_ms: int,
        lease_ms: int = LEASE_MS,
        is_dead: Callable[[str], bool] = lambda owner: False,
    ) -> Journal:
        """Take charge of a run and return its journal.

        Raises FencedError while another owner holds a lease that is neither expired nor, by
        `is_dead(owner)`, known to be left behind.
        """
        expires = now_ms + lease_ms
        try:
            with self._engine.begin() as link:
                row = link.execute(queries.lease_of(run)).one_or_none()
                if row is None:
                    fence = 1
                    link.execute(queries.first_lease(run, owner, expires_ms=expires))
                else:
                    _refuse_while_held(row, run, owner, now_ms=now_ms, is_dead=is_dead)
                    fence = row.fence + 1
                    take = queries.take_lease(run, owner, fence=row.fence, expires_ms=expires)
                    if link.execute(take).rowcount != 1:
                        raise FencedError(f"run {run} was just taken by another controller")
                seq = int(link.execute(queries.last_seq(run)).scalar_one())
        except IntegrityError as error:
            raise FencedError(f"run {run} was just taken by another controller") from error
        journal = Journal(self, run, fence=fence, seq=seq, lease_ms=lease_ms)
        journal.expires_ms = expires
        journal.generation = 0 if row is None else int(row.generation)
        return journal

    def _reading(self) -> Connection:
        return self._engine.connect().execution_options(reading=True)

    def close(self) -> None:
        """Let go of the database's connections."""
        self._engine.dispose()

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine, for `Journal` and for reports."""
        return self._engine


class Journal:
    """One run's journal, held by one controller: every write proves that it still is in charge."""

    def __init__(self, store: Store, run: str, *, fence: int, seq: int, lease_ms: int) -> None:
        self.store = store
        self.run = run
        self.fence = fence
        self.seq = seq
        """Number of the newest event."""
        self.lease_ms = lease_ms
        self.generation = 0
        """Highest number given to a training group so far."""
        self.expires_ms = 0
        """Until when the lease is held."""
        self._link = store.engine.connect()

    def append(self, fact: Event, *, now_ms: int | None = None) -> int:
        """Write one event durably and return its number. See `extend`."""
        return self.extend([fact], now_ms=now_ms)

    def extend(self, facts: Iterable[Event], *, now_ms: int | None = None) -> int:
        """Write events durably in one transaction and return the number of the last.

        Renews the lease on the way. Raises FencedError, with nothing written, when a newer
        controller is in charge.
        """
        rows: list[Any] = []
        for number, fact in enumerate(facts, self.seq + 1):
            kind, body = encode_event(fact)
            row = {"run": self.run, "seq": number, "at_ms": fact.at_ms, "kind": kind, "body": body}
            rows.append(row)
        if not rows:
            return self.seq
        at_ms = rows[-1]["at_ms"] if now_ms is None else now_ms

        def write(again: bool) -> None:
            self._hold(at_ms)
            # Whether the former try was committed is unknown, but nobody else can have written.
            if not (again and self._newest() == rows[-1]["seq"]):
                self._link.execute(queries.ADD_EVENTS, rows)

        try:
            self._write(write)
        except IntegrityError as error:
            raise FencedError(
                f"run {self.run}: somebody else wrote event {self.seq + 1}"
            ) from error
        self.seq = rows[-1]["seq"]
        return self.seq

    def renew(self, now_ms: int) -> None:
        """Keep the lease without an event. Raises FencedError when it is another's."""
        self._write(lambda again: self._hold(now_ms))

    def next_generation(self, *, above: int = 0) -> int:
        """Return a number for a training group, higher than any given before for this run.

        And higher than `above`: the number under which the checkpoint path was last claimed, so
        that a run with a new journal may go on where an older one saved.
        """
        raising = queries.raise_generation(self.run, fence=self.fence, above=above)

        def write(again: bool) -> int:  # tried again, it may skip a number
            self._check(self._link.execute(raising).rowcount)
            return int(self._link.execute(queries.lease_of(self.run)).one().generation)

        self.generation = self._write(write)
        return self.generation

    def events(self, *, after: int = 0) -> list[tuple[int, Event]]:
        """Return this run's (seq, event) with a number above `after`."""
        return self.store.events(self.run, after=after)

    def release(self) -> None:
        """Give the lease back, so that a successor need not wait; fenced ones are left alone.

        Nothing can be written afterwards; releasing again is no error. Where the database server
        is away the lease runs out by itself.
        """
        if self._link.closed:
            return
        given = queries.held(self.run, fence=self.fence, expires_ms=0)
        try:
            self._write(lambda again: self._link.execute(queries.HOLD_LEASE, given))
        except DBAPIError as error:
            if not database.is_lost(error):
                raise
        finally:
            self._link.close()

    def abandon(self) -> None:
        """Let go of the connection and leave the lease as it is, as a crash would."""
        self._link.close()

    def _write(self, do: Callable[[bool], T]) -> T:
        """Do something in one transaction; again, with True, when the server went away."""
        for count, pause_s in enumerate((*AGAIN_S, None)):
            try:
                with self._link.begin():
                    return do(count > 0)
            except DBAPIError as error:
                if pause_s is None or not database.is_lost(error):
                    raise
                time.sleep(pause_s)
        raise AssertionError("not reached")

    def _newest(self) -> int:
        return int(self._link.execute(queries.last_seq(self.run)).scalar_one())

    def _hold(self, now_ms: int) -> None:
        # A fact may be older than the newest renewal, which it must not shorten.
        self.expires_ms = expires = max(self.expires_ms, now_ms + self.lease_ms)
        given = queries.held(self.run, fence=self.fence, expires_ms=expires)
        self._check(self._link.execute(queries.HOLD_LEASE, given).rowcount)

    def _check(self, rows: int) -> None:
        if rows != 1:
            raise FencedError(f"run {self.run}: a newer controller is in charge")


def _refuse_while_held(
    row: Any, run: str, owner: str, *, now_ms: int, is_dead: Callable[[str], bool]
) -> None:
    if row.owner == owner or row.expires_ms <= now_ms or is_dead(row.owner):
        return
    raise FencedError(
        f"run {run} is led by {row.owner}",
        hint=f"stop it, or wait {(row.expires_ms - now_ms) // 1000 + 1} s",
    )


def _check_version(link: Connection, where: str) -> None:
    found = link.execute(select(versions.c.version)).scalar()
    if found is None:
        link.execute(insert(versions).values(version=VERSION))
    elif found > VERSION:
        raise ConfigError(
            f"{where} was written by a newer Surefoot (schema {found}, this one knows {VERSION})",
            hint="update Surefoot, or name another place",
        )
