"""A PostgreSQL server of one's own, for tests and benchmarks: started, used, stopped."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

INSTALLED = Path("/usr/lib/postgresql")
LIMIT_S = 120
QUICK = (
    "listen_addresses=''",
    "fsync=off",
    "autovacuum=off",
    "shared_buffers=16MB",
    "max_connections=60",
)
"""No network, and nothing that only matters when the machine itself fails."""


def absent() -> str | None:
    """Return why no server can be started here, None where one can."""
    if _programs() is None:
        return "PostgreSQL is not installed"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "PostgreSQL refuses root, and there is no runuser"
    return None


@contextmanager
def server() -> Iterator[str]:
    """Start a server on a socket of its own; yield the URL of its first, empty, database.

    It and its folder are gone afterwards. Raises RuntimeError where none can be started.
    """
    programs = _programs()
    if programs is None:
        raise RuntimeError(absent())
    folder = Path(tempfile.mkdtemp(prefix="sfpg"))
    data = folder / "data"
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        _do([programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N"], folder)
        with (data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{line}\n" for line in (f"unix_socket_directories='{folder}'", *QUICK))
        control: list[str | Path] = [programs / "pg_ctl", "-D", data, "-w", "-t", str(LIMIT_S)]
        _do([*control, "-l", folder / "log", "start"], folder)
        try:
            yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
        finally:
            _do([*control, "-m", "immediate", "stop"], folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(url: str, name: str) -> str:
    """Make an empty database on a server and return its URL."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as link:
            link.execute(text(f'CREATE DATABASE "{name}"'))
    finally:
        engine.dispose()
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def _programs() -> Path | None:
    """Return the folder of the newest version's programs."""
    found = [p for p in INSTALLED.glob("*/bin") if (p / "initdb").exists()]
    return max(found, key=lambda p: int(p.parent.name), default=None)


def _do(command: list[str | Path], folder: Path) -> None:
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    with (folder / "told").open("w+") as told:
        done = subprocess.run(
            [*as_user, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
            cwd=folder,
            timeout=LIMIT_S,
            check=False,
        )
        told.seek(0)
        if done.returncode != 0:
            log = folder / "log"
            more = log.read_text()[-2000:] if log.exists() else ""
            raise RuntimeError(f"{Path(command[0]).name} failed: {told.read()[-2000:]}{more}")
