"""Opening the record's database: an SQLite file on this machine, or a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from surefoot.errors import ConfigError

FORM = "postgresql+psycopg://USER@HOST/DATABASE"

SESSION = {
    # A controller that stands still within a transaction keeps the lease's row locked: the
    # server ends such a session before its lease runs out, so that a successor need not wait.
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "10s",
    "statement_timeout": "30s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "3",
}
"""What each session tells a PostgreSQL server of its limits."""

CONNECT: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "surefoot",
}
"""What the client gives up on: a server that does not answer must not hold a controller."""

SCHEMA_LOCK = 0x5F00701
"""Key of the advisory lock under which tables are made."""


def place_of(where: str | Path) -> URL:
    """Return the address of a path to an SQLite file, or of a URL of SQLite or PostgreSQL.

    Raises ConfigError, which never shows the text, for another database or an unreadable URL.
    """
    text = str(where)
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).absolute()))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise ConfigError("the journal's URL cannot be read", hint=f"its form: {FORM}") from error
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise ConfigError(
            f"a journal cannot be kept in {url.drivername}",
            hint=f"name a file, or {FORM}",
        )
    return url


def may_be_there(where: str | Path) -> bool:
    """Return whether a record may be found at a place without making one: False for no file."""
    return "://" in str(where) or Path(where).exists()


def shown(url: URL) -> str:
    """Return an address fit to be shown: the file, or the URL without password and options."""
    if url.drivername == "sqlite":
        return url.database or "memory"
    return url.set(query={}).render_as_string(hide_password=True)


def open_engine(url: URL) -> Engine:
    """Return an engine for the address; connects to nothing yet.

    Raises ConfigError where the driver for PostgreSQL is not installed.
    """
    if url.drivername == "sqlite":
        engine = create_engine(url)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        # Read committed: a statement that waited for the lease's row sees what it has become.
        # No pool: who only reads now and then, perhaps hundreds of runs, holds no connection.
        engine = create_engine(
            url, isolation_level="READ COMMITTED", poolclass=NullPool, connect_args=CONNECT
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            "a journal in PostgreSQL needs psycopg", hint="pip install 'surefoot[postgres]'"
        ) from error
    event.listen(engine, "connect", _prepare_postgres)
    return engine


def is_lost(error: DBAPIError) -> bool:
    """Return whether the database server went away, so that the same may succeed shortly.

    Always False for SQLite: a file that cannot be written stays so.
    """
    if error.connection_invalidated:
        return True
    if not isinstance(error, OperationalError) or error.orig is None:
        return False
    if not type(error.orig).__module__.startswith("psycopg"):
        return False
    state = getattr(error.orig, "sqlstate", None)
    return state is None or state[:2] == "08" or state[:3] == "57P"


def refused(url: URL, error: OperationalError) -> ConfigError:
    """Return what to tell of a server that cannot be reached or lets nobody in."""
    lines = str(error.orig).strip().splitlines()
    why = lines[0] if lines else type(error.orig).__name__
    if url.password:
        why = why.replace(str(url.password), "***")
    return ConfigError(
        f"cannot open the journal at {shown(url)}: {why}",
        hint="is the server up, and does the user have a password and the right to make tables?",
    )


def guard_schema(link: Connection) -> None:
    """Let one process at a time make the tables, until the transaction's end."""
    if link.dialect.name == "postgresql":
        link.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")


def _prepare_sqlite(link: Any, _record: Any) -> None:
    """Write-ahead log, every commit on the disk, and transactions left to `_begin_sqlite`."""
    link.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000"):
        link.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(link: Connection) -> None:
    """Writers lock at once, so that a fence that was checked cannot move before the commit."""
    reading = link.get_execution_options().get("reading", False)
    link.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _prepare_postgres(link: Any, _record: Any) -> None:
    former, link.autocommit = link.autocommit, True
    for name, value in SESSION.items():
        link.execute(f"SET {name} = '{value}'")
    # A commit that the server has not put on its disk would be no record.
    if link.execute("SHOW synchronous_commit").fetchone()[0] == "off":
        link.execute("SET synchronous_commit = 'on'")
    link.autocommit = former
