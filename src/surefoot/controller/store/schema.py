"""The tables of the record, in SQL that SQLite and PostgreSQL share."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text

VERSION = 1

metadata = MetaData()

versions = Table("surefoot_schema", metadata, Column("version", Integer, primary_key=True))

events = Table(
    "events",
    metadata,
    Column("run", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
)
"""The journal: facts of each run in order. The key (run, seq) is a second fence."""

leases = Table(
    "leases",
    metadata,
    Column("run", Text, primary_key=True),
    Column("fence", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
)
"""Who may write to a run's journal, and the highest number given to a training group."""
