"""Shows the statistics of the made-up markets beside those of the public traces."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from _common import Bars, options, table
from _forecast import load
from surefoot.core.trace import Trace, value_at
from surefoot.traces.facts import facts_of
from surefoot.traces.synthetic import NAMED, synthesise

HOUR = 3_600_000
REAL = ("sky-pool16-2023-08", "skynomad-h100-2025", "sky-probe-2023-02", "sky-pool4-2023-08")
HEAD = "market|share up|losses/VM-h|<30 min|4-8 h|whole pool|same region|other region"


def statistics(trace: Trace) -> dict[str, float]:
    """Return what PREDICTABILITY.md tells of a source: supply, hazards, bulk, correlation."""
    facts = facts_of(trace)
    born = {f.key: f.at_ms for f in facts if f.kind == "born"}
    ended = {f.key: f for f in facts if f.kind in ("lost", "censored")}
    ends = {k: ended[k].at_ms if k in ended else trace.end_ms for k in born}
    ages = np.array([(ends[k] - born[k]) / HOUR for k in born])
    lost = np.array([k in ended and ended[k].kind == "lost" for k in born])
    whole = []
    for record in trace.pools.values():
        counts = [s.value for s in record.supply if s.value is not None]
        whole += [b == 0 for a, b in pairwise(counts) if b < a and a > 1]
    grid = range(trace.start_ms, trace.end_ms, HOUR)
    up, regions = [], []
    for pool, record in trace.pools.items():
        most = max((s.value or 0 for s in record.supply), default=1) or 1
        up.append([(value_at(record.supply, at) or 0) / most for at in grid])
        regions.append(pool.region)
    same, other = _correlation(np.array(up), regions)
    return {
        "up": float(np.mean(up)),
        "rate": float(lost.sum() / ages.sum()),
        "young": _hazard(ages, lost, 0.0, 0.5),
        "old": _hazard(ages, lost, 4.0, 8.0),
        "whole": float(np.mean(whole)) if whole else float("nan"),
        "same": same,
        "other": other,
    }


def _hazard(ages: np.ndarray, lost: np.ndarray, begin: float, end: float) -> float:
    spent = np.clip(np.minimum(ages, end) - begin, 0.0, None).sum()
    return float((lost & (ages >= begin) & (ages < end)).sum() / max(spent, 1e-9))


def _correlation(up: np.ndarray, regions: list[str]) -> tuple[float, float]:
    """Return the mean correlation of hourly supply between zones of one region, and of two."""
    with np.errstate(invalid="ignore", divide="ignore"):
        matrix = np.corrcoef(up)
    groups: dict[bool, list[float]] = {True: [], False: []}
    for i in range(len(regions)):
        for j in range(i):
            if np.isfinite(matrix[i, j]):
                groups[regions[i] == regions[j]].append(float(matrix[i, j]))
    same, other = (float(np.mean(groups[k])) if groups[k] else float("nan") for k in (True, False))
    return same, other


def main() -> int:
    asked = options(__doc__ or "").parse_args()
    bars, rows = Bars("synthetic"), []
    seeds = range(1, 3 if asked.quick else 7)
    for name in NAMED:
        some = [statistics(synthesise(name, seed)) for seed in seeds]
        mean = {key: float(np.nanmean([s[key] for s in some])) for key in some[0]}
        rows.append([f"made up: {name}", *mean.values()])
        bars.at_least(
            f"{name}: hazard under 30 min over that at 4-8 h", mean["young"] / mean["old"], 3
        )
        bars.at_least(
            f"{name}: zones of a region go together more", mean["same"] - mean["other"], 0.05
        )
    usual = dict(zip(("up", "rate", "young", "old", "whole"), rows[0][1:6], strict=True))
    # The public traces with many VMs: share up 0.47-0.64, rate 0.2-0.6, whole 0.23-0.72.
    for key, low, high in (("up", 0.4, 0.7), ("rate", 0.15, 0.6), ("whole", 0.2, 0.75)):
        bars.at_least(f"v100-mixed: {key}", float(usual[key]), low)
        bars.at_most(f"v100-mixed: {key}", float(usual[key]), high)
    root = Path(os.environ.get("SUREFOOT_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if (root / "data" / "availability.parquet").exists():
        for name in REAL[:1] if asked.quick else REAL:
            trace = load(root / "data", name).trace
            assert trace is not None
            rows.append([name, *statistics(trace).values()])
    table(HEAD.split("|"), rows)
    bars.rows["statistics"] = rows
    return bars.finish(asked.json)


if __name__ == "__main__":
    sys.exit(main())
