"""The public traces as facts and as scored rows: sources, labels, blocks, climatology."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from surefoot.core.market import Pool
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.traces.facts import Fact, facts_of

HORIZONS_S = {"15m": 900, "1h": 3600}
LEAD_S = 40.0
"""What an emergency save takes: 1.45 s were measured for 0.6 GB (docs/explain/checkpoint.md), so
this is 16 GB. A loss sooner than this after the forecast comes too soon to be saved from."""
STRIDE = {
    "sky-probe-2023-02": 5,
    "sky-pool16-2023-08": 3,
    "sky-pool4-2023-08": 3,
    "sky-vm-v100-2023-04": 10,
    "sky-vm-r5-2023-04": 10,
}
"""Ticks between scored rows, as in PREDICTABILITY.md (recovered from its row counts)."""

COUNTED = (
    "sky-vm-v100-2023-04",
    "sky-vm-r5-2023-04",
    "sky-pool4-2023-08",
    "sky-probe-2022",
    "sky-probe-2023-02",
    "skynomad-h100-2025",
    "sky-pool16-2023-08",
)
LIVES = ("goog-preempt-2019", "goog-lt22h")
SOURCES = (*COUNTED[:3], *LIVES, *COUNTED[3:])
CLOCKED = ("sky-probe-2022",)
"""Sources whose segments are put on one time axis by their clock."""

BEST_SINGLE = {
    "sky-vm-v100-2023-04": (0.074, 0.076),
    "sky-vm-r5-2023-04": (0.087, 0.067),
    "sky-pool4-2023-08": (0.109, 0.094),
    "goog-preempt-2019": (0.406, 0.504),
    "goog-lt22h": (0.114, 0.102),
    "sky-probe-2022": (0.144, 0.145),
    "sky-probe-2023-02": (0.171, 0.172),
    "skynomad-h100-2025": (0.187, 0.171),
    "sky-pool16-2023-08": (0.296, 0.379),
}
"""Best single baseline's log loss skill in PREDICTABILITY.md, (15 min, 1 h)."""
BEST_MEAN = 0.1388
"""Mean over sources and horizons of its best single model (gradient boosting)."""


@dataclass
class Rows:
    """Scored rows in order of time: arrays of equal length, and who they are about."""

    pool: np.ndarray
    t_s: np.ndarray
    vms: np.ndarray
    lost: np.ndarray
    end_s: np.ndarray
    early: np.ndarray
    """Share lost within LEAD_S; losses are taken to fall evenly between two ticks."""
    span_s: float
    key: list[str] = field(default_factory=list)
    """For rows of single lives: the life."""

    def block(self, first: int, last: int) -> np.ndarray:
        """Row numbers of the tenths first..last-1 of the record."""
        n = len(self.t_s)
        return np.arange(n * first // 10, n * last // 10)


@dataclass
class Source:
    name: str
    pools: list[Pool]
    facts: list[Fact]
    rows: dict[str, Rows]
    trace: Trace | None = None
    """The whole record, for sources that count launches or VMs on a grid."""


def load(data: Path, name: str) -> Source:
    """Read one source."""
    return _lives(data, name) if name in LIVES else _counts(data, name)


def _counts(data: Path, name: str) -> Source:
    series = _series(data, name)
    records: dict[Pool, list[Step]] = defaultdict(list)
    ends: dict[Pool, int] = {}
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    spans: dict[str, float] = {}
    pools: list[Pool] = []
    for pool, t, count in series:
        if pool not in pools:
            pools.append(pool)
        gap = float(np.median(np.diff(t)))
        _append_steps(records[pool], t, count, gap, ends.get(pool))
        ends[pool] = round((t[-1] + gap) * 1000)
        for horizon, span in HORIZONS_S.items():
            ahead = int(span / gap + 0.5)
            spans[horizon] = ahead * gap
            part = _count_rows(t, count, ahead, STRIDE.get(name, 1), gap)
            parts[horizon].append(np.column_stack([np.full(len(part), pools.index(pool)), part]))
    traces = {p: PoolTrace(p, tuple(s), (), ()) for p, s in records.items()}
    kind = Semantics.PROBE if "probe" in name or "h100" in name or "pool16" in name else None
    semantics = kind or (Semantics.VM if "-vm-" in name else Semantics.POOL)
    start = min(s[0].at_ms for s in records.values())
    trace = Trace(name, semantics, start, max(ends.values()), traces)
    rows = {}
    for horizon, tables in parts.items():
        table = np.concatenate(tables)
        table = table[np.argsort(table[:, 1], kind="stable")]
        columns = (table[:, 0].astype(int), *table[:, 1:].T)
        rows[horizon] = Rows(*columns, spans[horizon])
    return Source(name, pools, facts_of(trace), rows, trace)


def _series(data: Path, name: str) -> list[tuple[Pool, np.ndarray, np.ndarray]]:
    table = pq.read_table(data / "availability.parquet").to_pydict()
    found: dict[tuple[str, Pool], list[tuple[float, int]]] = defaultdict(list)
    for i, source in enumerate(table["source"]):
        if source.split("_")[0] != name:
            continue
        pool = Pool(
            table["cloud"][i].lower() or "cloud",
            table["region"][i],
            table["zone"][i],
            table["instance_type"][i],
        )
        clock = table["time_utc"][i]
        t = clock.timestamp() if name in CLOCKED else float(table["t_s"][i])
        found[source, pool].append((t, table["count"][i]))
    return [
        (pool, np.array([r[0] for r in rows]), np.array([r[1] for r in rows], dtype=int))
        for (_, pool), rows in found.items()
    ]


def _append_steps(
    steps: list[Step], t: np.ndarray, count: np.ndarray, gap: float, ended_ms: int | None
) -> None:
    if ended_ms is not None:
        steps.append(Step(ended_ms, None))
    for i in range(len(t)):
        if i and t[i] - t[i - 1] > 3 * gap:
            steps.append(Step(round((t[i - 1] + gap) * 1000), None))
        if not steps or steps[-1].value != count[i]:
            steps.append(Step(round(t[i] * 1000), int(count[i])))


def _count_rows(
    t: np.ndarray, count: np.ndarray, ahead: int, stride: int, gap: float
) -> np.ndarray:
    """Return columns (t, VMs, share lost, end of window) of every stride-th tick with VMs."""
    n = len(count)
    index = np.arange(0, n - ahead, stride)
    least = np.min([count[j : n - ahead + j] for j in range(1, ahead + 1)], axis=0)
    whole = t[index + ahead] - t[index] < ahead * gap * 1.5 + 1
    index = index[(count[index] > 0) & whole]
    lost = np.maximum(count[index] - least[index], 0) / count[index]
    early = _lost_by(count, index, LEAD_S / gap)
    return np.column_stack([t[index], count[index], lost, t[index] + ahead * gap, early])


def _lost_by(count: np.ndarray, index: np.ndarray, ticks: float) -> np.ndarray:
    """Return the share lost within a number of ticks that need not be whole."""
    whole = int(ticks)
    shares = [np.zeros(len(index))]
    least = count[index]
    for k in range(1, whole + 2):
        least = np.minimum(least, count[np.minimum(index + k, len(count) - 1)])
        shares.append((count[index] - least) / count[index])
    return shares[whole] + (ticks - whole) * (shares[whole + 1] - shares[whole])


def _lives(data: Path, name: str) -> Source:
    table = [
        r
        for r in pq.read_table(data / "lifetimes.parquet").to_pylist()
        if r["source"] == "goog-preempt-2019"
    ]
    pools: list[Pool] = []
    facts: list[Fact] = []
    found: dict[str, list[tuple[float, ...]]] = {h: [] for h in HORIZONS_S}
    keys: dict[str, list[str]] = {h: [] for h in HORIZONS_S}
    longest = 22 * 3600 if name == "goog-lt22h" else float("inf")
    for number, r in enumerate(table):
        pool = Pool("gcp", r["zone"].rsplit("-", 1)[0], r["zone"], r["instance_type"])
        if pool not in pools:
            pools.append(pool)
        born, key = r["launch_utc"].timestamp(), f"v{number}"
        end = born + r["lifetime_s"]
        facts.append(Fact(round(born * 1000), pool, 2 * number, "born", key))
        kind = "censored" if r["censored"] else "lost"
        facts.append(Fact(round(end * 1000), pool, 2 * number + 1, kind, key))
        for horizon, span in HORIZONS_S.items():
            for age in np.arange(0, min(r["lifetime_s"], longest), 900):
                until = born + age + span
                if r["censored"] and end <= until:
                    break
                lost = float(end <= until and not r["censored"])
                early = float(end <= born + age + LEAD_S and not r["censored"])
                row = (pools.index(pool), born + age, 1.0, lost, until, early)
                found[horizon].append(row)
                keys[horizon].append(key)
    rows = {}
    for horizon, span in HORIZONS_S.items():
        body = np.array(found[horizon])
        order = np.argsort(body[:, 1], kind="stable")
        body = body[order]
        who = [keys[horizon][i] for i in order]
        rows[horizon] = Rows(body[:, 0].astype(int), *body[:, 1:].T, float(span), who)
    return Source(name, pools, sorted(facts), rows)


def clipped(p: np.ndarray) -> np.ndarray:
    return np.clip(p, 0.003, 0.997)


def log_loss(lost: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return each row's log loss."""
    p = clipped(p)
    return -(lost * np.log(p) + (1 - lost) * np.log(1 - p))


def climatology(rows: Rows) -> np.ndarray:
    """Return the per-pool mean of what was known before each block, shrunk by 20 rows."""
    p = np.full(len(rows.t_s), np.nan)
    many = int(rows.pool.max()) + 1
    for tenth in range(1, 10):
        scored = rows.block(tenth, tenth + 1)
        known = np.arange(len(p)) < scored[0]
        weight = rows.vms * (known & (rows.end_s <= rows.t_s[scored[0]]))
        lost = np.bincount(rows.pool, weight * rows.lost, many)
        seen = np.bincount(rows.pool, weight, many)
        mean, unit = lost.sum() / seen.sum(), weight.sum() / np.count_nonzero(weight)
        p[scored] = ((lost + 20 * mean * unit) / (seen + 20 * unit))[rows.pool[scored]]
    return p
