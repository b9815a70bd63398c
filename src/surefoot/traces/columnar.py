"""Our own columnar form of a trace: one Parquet file that loses nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from surefoot.core.market import Pool
from surefoot.core.trace import (
    LaunchTry,
    Life,
    LifeEnd,
    PoolTrace,
    Reclaim,
    Semantics,
    Signal,
    Step,
    Trace,
)
from surefoot.errors import TraceError

META_KEY = b"surefoot.trace"
VERSION = 1
SCHEMA = pa.schema(
    [
        ("pool", pa.string()),
        ("kind", pa.string()),
        ("at_ms", pa.int64()),
        ("value", pa.int64()),
        ("notice_ms", pa.int64()),
    ]
)
"""kind: supply, spot, on_demand (value null is a gap) or reclaim (value is the count)."""


def write_parquet(trace: Trace, path: Path) -> None:
    """Write the trace; reading it back gives an equal one."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    pools: dict[str, dict[str, Any]] = {}
    for pool, record in trace.pools.items():
        name = str(pool)
        pools[name] = {
            "notice_ms": record.notice_ms,
            "boot_ms": record.boot_ms,
            "speed": record.speed,
            "minimum_billing_ms": record.minimum_billing_ms,
            "lives": [
                [x.key, x.born_ms, x.end_ms, x.end.value, x.first_seen_ms] for x in record.lives
            ],
            "tries": [[t.at_ms, t.asked, t.granted, t.whole] for t in record.tries],
            "signals": [[x.at_ms, x.kind, x.value] for x in record.signals],
        }
        for kind in ("supply", "spot", "on_demand"):
            for step in getattr(record, kind):
                _add(columns, name, kind, step.at_ms, step.value, None)
        for one in record.reclaims:
            _add(columns, name, "reclaim", one.at_ms, one.count, one.notice_ms)
    meta = {
        "version": VERSION,
        "name": trace.name,
        "semantics": trace.semantics.value,
        "start_ms": trace.start_ms,
        "end_ms": trace.end_ms,
        "pools": pools,
    }
    table = pa.table(columns, schema=SCHEMA).replace_schema_metadata(
        {META_KEY: json.dumps(meta).encode()}
    )
    pq.write_table(table, path, compression="zstd")


def _add(
    columns: dict[str, list[Any]],
    pool: str,
    kind: str,
    at_ms: int,
    value: int | None,
    notice_ms: int | None,
) -> None:
    row = (pool, kind, at_ms, value, notice_ms)
    for name, cell in zip(SCHEMA.names, row, strict=True):
        columns[name].append(cell)


def read_parquet(path: Path) -> Trace:
    """Read what `write_parquet` wrote. Raises TraceError for any other Parquet file."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceError(f"{path.name}: not a readable Parquet file: {error}") from None
    raw = (table.schema.metadata or {}).get(META_KEY)
    if raw is None or table.schema.names != SCHEMA.names:
        raise TraceError(
            f"{path.name}: a Parquet file, but not one of our traces",
            hint="surefoot traces import FILE converts the kinds that it knows",
        )
    meta = json.loads(raw)
    if meta["version"] != VERSION:
        raise TraceError(f"{path.name}: written by a newer Surefoot (form {meta['version']})")
    series: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for pool, kind, at_ms, value, notice_ms in zip(
        *(table.column(n).to_pylist() for n in SCHEMA.names), strict=True
    ):
        one = Reclaim(at_ms, value, notice_ms) if kind == "reclaim" else Step(at_ms, value)
        series[pool, kind].append(one)
    pools = {
        Pool.parse(name): PoolTrace(
            pool=Pool.parse(name),
            supply=tuple(series[name, "supply"]),
            spot=tuple(series[name, "spot"]),
            on_demand=tuple(series[name, "on_demand"]),
            reclaims=tuple(series[name, "reclaim"]),
            **_fields(fields),
        )
        for name, fields in meta["pools"].items()
    }
    return Trace(
        meta["name"], Semantics(meta["semantics"]), meta["start_ms"], meta["end_ms"], pools
    )


def _fields(body: dict[str, Any]) -> dict[str, Any]:
    """Return a pool's other fields; files written before there were lives hold none."""
    lives = (Life(k, b, e, LifeEnd(how), seen) for k, b, e, how, seen in body.get("lives", ()))
    return {
        **body,
        "lives": tuple(lives),
        "tries": tuple(LaunchTry(*one) for one in body.get("tries", ())),
        "signals": tuple(Signal(*one) for one in body.get("signals", ())),
    }
