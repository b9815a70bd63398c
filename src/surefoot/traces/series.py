"""The public JSON form of a series of counts, and CSV tables of counts and prices."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surefoot.core.market import Pool
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.core.units import micro_usd
from surefoot.errors import TraceError
from surefoot.traces.rows import Row, Stamps, end_ms_of, number, steps_of

POOL_COLUMNS = ("provider", "region", "zone", "instance_type")


def read_json(path: Path) -> Trace:
    """Read `{"metadata": {"gap_seconds": n}, "data": [...]}`: counts on a grid, null is a gap.

    Metadata may also name `pool`, `semantics` (probe, vm, pool, supply), `spot_usd_h`,
    `on_demand_usd_h`, `start` (ISO 8601) and `inverted` (true where 1 means preempted).
    Raises TraceError naming the file and the key or row.
    """
    body = _load(path)
    meta = body["metadata"]
    gap_ms = round(_meta_number(path, meta, "gap_seconds") * 1000)
    if gap_ms <= 0:
        raise TraceError(f"{path.name}: metadata.gap_seconds must be above 0")
    start_ms = Stamps(path.name).read(str(meta["start"]), row=0) if "start" in meta else 0
    inverted = bool(meta.get("inverted", False))
    rows: list[Row] = [
        (start_ms + i * gap_ms, _count(path, i, value, inverted=inverted), i)
        for i, value in enumerate(body["data"])
    ]
    pool = _pool(path, str(meta["pool"]), 0) if "pool" in meta else _unnamed(path)
    record = PoolTrace(
        pool,
        steps_of(rows, where=path.name),
        _flat(path, meta, "spot_usd_h", start_ms),
        _flat(path, meta, "on_demand_usd_h", start_ms),
    )
    end_ms = start_ms + len(rows) * gap_ms
    return Trace(path.stem, _semantics(path, meta), start_ms, end_ms, {pool: record})


def _load(path: Path) -> Mapping[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path.name}: not valid JSON: {error}") from None
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        raise TraceError(f"{path.name}: expected keys 'metadata' and 'data'")
    if not isinstance(body.get("data"), list) or not body["data"]:
        raise TraceError(f"{path.name}: data: expected a list with at least one count")
    return body


def _meta_number(path: Path, meta: Mapping[str, Any], key: str) -> float:
    if key not in meta:
        raise TraceError(f"{path.name}: metadata.{key} is missing")
    return number(str(meta[key]), where=path.name, row=0, column=f"metadata.{key}")


def _count(path: Path, index: int, value: object, *, inverted: bool) -> int | None:
    if value is None:
        return None
    count = number(str(value), where=path.name, row=index, column="data")
    if count < 0 or count != int(count):
        raise TraceError(f"{path.name}: data[{index}]: a count is whole and not negative: {value}")
    if inverted and count > 1:
        raise TraceError(f"{path.name}: data[{index}]: an inverted series holds 0 and 1 only")
    return 1 - int(count) if inverted else int(count)


def _flat(path: Path, meta: Mapping[str, Any], key: str, start_ms: int) -> tuple[Step, ...]:
    if key not in meta:
        return ()
    return (Step(start_ms, micro_usd(_meta_number(path, meta, key))),)


def _semantics(path: Path, meta: Mapping[str, Any]) -> Semantics:
    text = str(meta.get("semantics", "supply"))
    try:
        return Semantics(text)
    except ValueError:
        known = ", ".join(s.value for s in Semantics)
        raise TraceError(f"{path.name}: metadata.semantics: {text!r} is none of {known}") from None


def _unnamed(path: Path) -> Pool:
    return Pool("file", "any", path.stem.replace("/", "-") or "any", "any")


def _pool(path: Path, text: str, row: int) -> Pool:
    try:
        return Pool.parse(text)
    except ValueError as error:
        raise TraceError(f"{path.name}: row {row}: {error}") from None


def read_csv(path: Path) -> Trace:
    """Read a table with a header: `t_s` (seconds) or `time` (ISO 8601), `count`, and who.

    Who is `pool` (provider/region/zone/type) or the four columns of it; without either it is one
    unnamed pool. `spot_usd_h` and `on_demand_usd_h` are optional. Rows may come in any order.
    Raises TraceError naming the file and the row (the header is row 1).
    """
    with path.open(newline="", encoding="utf-8-sig") as handle:
        reader = csv.DictReader(handle)
        columns = tuple(reader.fieldnames or ())
        rows = list(reader)
    clock = "t_s" if "t_s" in columns else "time"
    for needed in (clock, "count"):
        if needed not in columns:
            raise TraceError(f"{path.name}: row 1: no column {needed!r}; it has {columns}")
    if not rows:
        raise TraceError(f"{path.name}: the table has a header and no rows")
    return _table(path, columns, clock, rows)


def _table(path: Path, columns: tuple[str, ...], clock: str, rows: list[dict[str, str]]) -> Trace:
    stamps = Stamps(path.name)
    series: dict[tuple[Pool, str], list[Row]] = defaultdict(list)
    instants = []
    for index, row in enumerate(rows, start=2):
        pool = _who(path, columns, row, index)
        text = (row[clock] or "").strip()
        if clock == "t_s":
            at_ms = round(number(text, where=path.name, row=index, column=clock) * 1000)
        else:
            at_ms = stamps.read(text, row=index)
        instants.append(at_ms)
        series[pool, "count"].append((at_ms, _cell_count(path, row["count"], index), index))
        for column in ("spot_usd_h", "on_demand_usd_h"):
            if row.get(column):
                price = number(row[column], where=path.name, row=index, column=column)
                if price < 0:
                    raise TraceError(f"{path.name}: row {index}: {column}: below 0: {price}")
                series[pool, column].append((at_ms, micro_usd(price), index))
    pools = {pool: _record(path, pool, series) for pool, what in series if what == "count"}
    return Trace(path.stem, Semantics.SUPPLY, min(instants), end_ms_of(instants), pools)


def _record(path: Path, pool: Pool, series: Mapping[tuple[Pool, str], list[Row]]) -> PoolTrace:
    return PoolTrace(
        pool,
        steps_of(series[pool, "count"], where=path.name, gaps=True),
        steps_of(series.get((pool, "spot_usd_h"), ()), where=path.name),
        steps_of(series.get((pool, "on_demand_usd_h"), ()), where=path.name),
    )


def _who(path: Path, columns: tuple[str, ...], row: Mapping[str, str], index: int) -> Pool:
    if "pool" in columns:
        return _pool(path, row["pool"] or "", index)
    if all(c in columns for c in POOL_COLUMNS):
        return _pool(path, "/".join(row[c] or "" for c in POOL_COLUMNS), index)
    return _unnamed(path)


def _cell_count(path: Path, text: str | None, index: int) -> int | None:
    if text is None or text.strip() == "":
        return None
    value = number(text, where=path.name, row=index, column="count")
    if value < 0 or value != int(value):
        raise TraceError(
            f"{path.name}: row {index}: count: must be whole and not negative, got {text!r}"
        )
    return int(value)
