"""Records of markets on disk: read in many forms, written in our own."""

from __future__ import annotations

from pathlib import Path

from surefoot.core.trace import Trace
from surefoot.errors import TraceError
from surefoot.traces.columnar import write_parquet
from surefoot.traces.forms import form_of, read_any

__all__ = ["READERS", "form_of", "read_any", "read_trace", "write_trace"]

READERS = (".yaml", ".yml", ".json", ".csv", ".parquet")
"""Endings of files that may hold a trace."""


def read_trace(path: str | Path) -> Trace:
    """Read a trace file, by ending and content.

    `.yaml`: our market file. `.json`: the public form with `metadata.gap_seconds` and `data`,
    AWS price history or Spot Advisor. `.csv`: columns time, pool, count and optionally prices;
    lifetimes; a SkyPilot catalogue. `.parquet`: what `write_trace` writes. Raises TraceError
    naming the file and, where there is one, the line, key or row.
    """
    path = Path(path)
    if path.suffix.lower() not in READERS:
        form_of(path)
    return read_any([path])


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace losslessly as Parquet. Raises TraceError for another extension."""
    path = Path(path)
    if path.suffix.lower() != ".parquet":
        raise TraceError(f"{path.name}: traces are written as .parquet")
    write_parquet(trace, path)
