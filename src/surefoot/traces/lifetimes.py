"""Tables of VM lifetimes: checked row by row, bad rows set aside with their reasons."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd
from surefoot.errors import TraceError

COLUMNS = ("start_s", "end_s", "event")


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that no model may see: its number in the file (the header is 1), and why."""

    row: int
    why: str


def read_lifetimes(path: Path) -> tuple[History, tuple[Dropped, ...]]:
    """Read `start_s, end_s, event` (1 preempted, 0 censored) and optionally `pool`, `seen_s`.

    An empty `end_s` with event 0 is a VM that still runs. `seen_s` is when an adopted VM was
    first watched. Rows that make no sense are dropped, named by row and reason; lives of zero
    length stay (they count as one second). Row order does not matter. Raises TraceError when a
    column is missing or no row is left.
    """
    with path.open(newline="", encoding="utf-8-sig") as handle:
        reader = csv.DictReader(handle)
        for key in COLUMNS:
            if key not in (reader.fieldnames or ()):
                raise TraceError(f"{path.name}: row 1: no column {key!r}")
        rows = list(enumerate(reader, start=2))
    dropped: list[Dropped] = []
    facts: list[tuple[int, int, Pool, str, int, bool]] = []
    for index, row in rows:
        try:
            begin, end, seen, preempted = _checked(row)
            pool = Pool.parse(row["pool"]) if row.get("pool") else Pool("file", "any", "any", "any")
        except ValueError as error:
            dropped.append(Dropped(index, str(error)))
            continue
        facts.append((begin, 0, pool, f"row{index}", seen, False))
        if end is not None:
            facts.append((end, 1, pool, f"row{index}", 0, preempted))
    if not facts:
        raise TraceError(
            f"{path.name}: no usable row; the first was row {dropped[0].row}: {dropped[0].why}"
            if dropped
            else f"{path.name}: no rows"
        )
    history = History()
    for at_ms, is_end, pool, key, seen, preempted in sorted(facts):
        if is_end:
            end_kind = LifeEnd.PREEMPTED if preempted else LifeEnd.CENSORED
            history.ended(pool, key, at_ms=at_ms, end=end_kind)
        else:
            first = seen if seen > at_ms else None
            history.born(pool, key, at_ms=at_ms, first_seen_ms=first)
    return history, tuple(dropped)


def _checked(row: Mapping[str, str]) -> tuple[int, int | None, int, bool]:
    event = (row["event"] or "").strip()
    if event not in ("0", "1"):
        raise ValueError(f"event is 0 or 1, got {event!r}")
    begin = _ms(row["start_s"], "start_s")
    text = (row["end_s"] or "").strip()
    if not text:
        if event == "1":
            raise ValueError("a preempted VM needs an end")
        return begin, None, begin, False
    end = _ms(text, "end_s")
    if end < begin:
        raise ValueError(f"ends {(begin - end) / 1000:g} s before it starts")
    seen = _ms(row["seen_s"], "seen_s") if (row.get("seen_s") or "").strip() else begin
    return begin, end, seen, event == "1"


def _ms(text: str, column: str) -> int:
    try:
        return round(float(text) * 1000)
    except (ValueError, OverflowError):
        raise ValueError(f"{column}: not a number: {text!r}") from None
