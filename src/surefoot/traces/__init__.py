"""Records of markets on disk: read in many forms, written in our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from surefoot.core.trace import Trace
from surefoot.errors import TraceError
from surefoot.traces.columnar import read_parquet, write_parquet
from surefoot.traces.market import read_market
from surefoot.traces.series import read_csv, read_json

__all__ = ["read_trace", "write_trace"]

READERS: Mapping[str, Callable[[Path], Trace]] = {
    ".yaml": read_market,
    ".yml": read_market,
    ".json": read_json,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def read_trace(path: str | Path) -> Trace:
    """Read a trace file, by extension and content.

    `.yaml`: our market file. `.json`: the public form with `metadata.gap_seconds` and `data`.
    `.csv`: columns time, pool, count and optionally prices. `.parquet`: what `write_trace` writes.
    Raises TraceError naming the file and, where there is one, the line, key or row.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(READERS)
        raise TraceError(f"{path.name}: unknown kind of trace file", hint=f"known: {known}")
    if not path.is_file():
        raise TraceError(f"{path}: there is no such trace file", hint="check the path")
    return reader(path)


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace losslessly as Parquet. Raises TraceError for another extension."""
    path = Path(path)
    if path.suffix.lower() != ".parquet":
        raise TraceError(f"{path.name}: traces are written as .parquet")
    write_parquet(trace, path)
