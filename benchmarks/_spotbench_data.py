"""The public traces as SpotBench uses them: counts on a grid, grouped into sets, with prices."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surefoot.core.market import Pool

TICK_S = 300
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class PoolRecord:
    """One pool: how many VMs could be held (or launched) at each tick of `TICK_S`."""

    pool: Pool
    counts: Counts
    most: int
    kind: str
    spot_usd: float
    on_demand_usd: float


@dataclass(frozen=True)
class TraceSet:
    """Like pools of one source; `gang` is how many VMs make the single gang of the cells."""

    name: str
    records: tuple[PoolRecord, ...]
    gang: int


PRICES = {
    "p3.2xlarge": (0.97, 3.06),
    "p3.16xlarge": (7.76, 24.48),
    "p2.xlarge": (0.27, 0.90),
    "p2.8xlarge": (2.16, 7.20),
    "a3-highgpu-1g": (2.25, 10.98),
    "r5.16xlarge": (1.27, 4.032),
    "n1+1xV100": (0.88, 2.67),
}
"""(spot, on-demand) USD per VM-hour where no record of the time joins: V100 as in the theory
notes, D.5; the others from the catalogue of the same period."""

SETS = (
    ("single-vm", ("sky-vm-v100", "sky-vm-r5"), None, 1),
    ("pool-4", ("sky-pool4",), None, 4),
    ("pool-16", ("sky-pool16",), None, 8),
    ("v100-9-zones", ("sky-probe-2023-02",), None, 1),
    ("v100-2022", ("sky-probe-2022",), "p3.2xlarge", 1),
    ("h100-13-zones", ("skynomad-h100",), None, 8),
)
"""Name, sources (prefixes), instance type, gang size. The Bamboo logs are shorter than a day
(10.8 to 27 h): they serve the elastic jobs only. c3 lost 3 VMs in 1.9 days: no cell."""


def load(data: Path) -> dict[str, list[PoolRecord]]:
    """Return every pool's record by source, resampled to `TICK_S` (the last value holds)."""
    table = pq.read_table(data / "availability.parquet")
    names = ("source", "kind", "cloud", "region", "zone", "instance_type", "requested")
    columns = [table[name].to_pylist() for name in names]
    times = table["t_s"].to_numpy().astype(float)
    counts = table["count"].to_numpy()
    label = np.array(["|".join(map(str, row)) for row in zip(*columns, strict=True)])
    starts = np.flatnonzero(np.r_[True, label[1:] != label[:-1]])
    records: dict[str, list[PoolRecord]] = {}
    for begin, end in zip(starts, np.r_[starts[1:], len(label)], strict=True):
        source, kind, cloud, region, zone, vm, most = (c[begin] for c in columns)
        order = np.argsort(times[begin:end], kind="stable")
        at = times[begin:end][order] - times[begin:end].min()
        grid = np.arange(int(at[-1] // TICK_S) + 1) * TICK_S
        series = counts[begin:end][order][np.searchsorted(at, grid, "right") - 1]
        spot, on_demand = PRICES.get(vm, (0.3, 1.0))
        pool = Pool(cloud, region or "somewhere", zone or "somewhere-a", vm.replace("/", "-"))
        record = PoolRecord(pool, series.astype(np.int64), int(most), kind, spot, on_demand)
        records.setdefault(source, []).append(record)
    return records


H100_SPOT = {
    "asia-south2": (9.3342, 13.2856),
    "asia-southeast1": (2.5905, 14.2848),
    "europe-west1": (2.1967, 12.1712),
    "europe-west3": (2.3716, 13.0539),
    "us-central1": (2.5457, 11.0613),
    "us-east4": (2.0123, 11.0695),
    "us-east5": (2.2582, 12.4479),
    "us-west1": (2.5457, 11.0613),
}
"""List prices (spot, on-demand) of a3-highgpu-1g in October 2025, from prices.parquet."""

V100_AUGUST_2023 = (0.918, 3.06)
"""p3.2xlarge in us-east-2 and us-west-2, all zones, the whole of August 2023 (prices.parquet)."""


def priced(record: PoolRecord) -> PoolRecord:
    """Return the record with the real price of its time and region, where one is known."""
    if record.pool.instance_type == "a3-highgpu-1g":
        spot, safe = H100_SPOT[record.pool.region]
    elif record.pool.instance_type == "p3.2xlarge":
        spot, safe = V100_AUGUST_2023
    else:
        return record
    return replace(record, spot_usd=spot, on_demand_usd=safe)


def measured_curve(data: Path, model: str) -> tuple[tuple[float, float], ...]:
    """Return (VMs, samples/s) of a model on p3.2xlarge from the measured tables: the best of the
    layouts at each size, made concave from above so that no size is worth less than a smaller."""
    with gzip.open(data / "throughput.csv.gz", "rt") as lines:
        rows = [
            (float(r["n_gpus"]), float(r["throughput"]))
            for r in csv.DictReader(lines)
            if r["source"] == "parcae" and r["model"] == model
        ]
    best: dict[float, float] = {}
    for size, speed in rows:
        best[size] = max(best.get(size, 0.0), speed)
    hull: list[tuple[float, float]] = [(0.0, 0.0)]
    for size in sorted(best):
        point = (size, max(best[size], hull[-1][1]))
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return tuple(hull[1:])


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _named(record: PoolRecord, source: str) -> PoolRecord:
    """Return the record under a pool of its own (2022: one pool, three segments of time), H100
    at the list price of its region, V100 at the prices of the theory notes, D.5."""
    if record.pool.instance_type == "a3-highgpu-1g":
        record = priced(record)
    return replace(record, pool=replace(record.pool, zone=f"{record.pool.zone}-{source[-10:]}"))


def trace_sets(records: dict[str, list[PoolRecord]]) -> list[TraceSet]:
    """Return the sets of the single-gang cells."""
    sets = []
    for name, prefixes, only, gang in SETS:
        chosen = [
            _named(r, source)
            for source, rows in sorted(records.items())
            for r in rows
            if source.startswith(prefixes) and (only is None or r.pool.instance_type == only)
        ]
        sets.append(TraceSet(name, tuple(chosen), gang))
    return sets
