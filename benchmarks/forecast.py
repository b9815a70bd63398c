"""Scores the forecasts on the public traces, out of sample, against PREDICTABILITY.md.

Rolling origin: each source's record is cut into 10 tenths by rows; tenths 4-10 are forecast, each
row from the facts up to its instant. Nothing is tuned on them: the logistic model's prior is
fitted on tenths 1-3 (_forecast_prior.py), features and mixture weights were chosen on tenths 2-3
with priors from the other sources, and everything else is learned online.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from _common import Bars, options, shared_data, table
from _forecast import BEST_MEAN, BEST_SINGLE, SOURCES, Rows, climatology, clipped, load, log_loss
from _forecast_walk import launch_scores, walk
from surefoot.core.forecast import DEFAULT, get_forecaster
from surefoot.core.trace import Semantics

QUICK = ("sky-vm-v100-2023-04", "sky-vm-r5-2023-04", "sky-pool4-2023-08", "sky-pool16-2023-08")
FIRST, LAST = 3, 10
ALARM = 0.3
"""Odds of loss from which an emergency save would be taken ahead of time."""


def weighted_auc(lost: np.ndarray, p: np.ndarray, weight: np.ndarray) -> float:
    """Odds that a lost VM had the higher forecast than a kept one; ties count half."""
    values, index = np.unique(p, return_inverse=True)
    bad = np.bincount(index, weight * lost, len(values))
    good = np.bincount(index, weight * (1 - lost), len(values))
    below = np.cumsum(good) - good
    return float(np.sum(bad * (below + good / 2)) / (bad.sum() * good.sum()))


def calibration(lost: np.ndarray, p: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Return (slope of a logistic recalibration, expected calibration error in 10 bins)."""
    z = np.log(p / (1 - p))
    x = np.column_stack([np.ones(len(z)), z])
    beta = np.array([0.0, 1.0])
    for _ in range(25):
        q = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
        curved = x.T @ ((weight * q * (1 - q))[:, None] * x) + 1e-9 * np.eye(2)
        beta = beta + np.linalg.solve(curved, x.T @ (weight * (lost - q)))
    order = np.argsort(p, kind="stable")
    tenth = np.minimum((np.cumsum(weight[order]) / weight.sum() * 10).astype(int), 9)
    total = np.bincount(tenth, weight[order], 10)
    gap = np.bincount(tenth, weight[order] * (lost - p)[order], 10)
    return float(beta[1]), float(np.abs(gap).sum() / total.sum())


def skill_interval(rows: Rows, ours: np.ndarray, base: np.ndarray, at: np.ndarray) -> list[float]:
    """Return the 95 % interval of the skill from 1,000 resamples of whole days."""
    day = ((rows.t_s[at] - rows.t_s[at[0]]) // 86_400).astype(int)
    weight = rows.vms[at]
    top = np.bincount(day, weight * ours)
    bottom = np.bincount(day, weight * base)
    pick = np.random.default_rng(7).integers(0, len(top), (1000, len(top)))
    skills = 1 - top[pick].sum(axis=1) / bottom[pick].sum(axis=1)
    return [float(q) for q in np.quantile(skills, (0.025, 0.975))]


def score(rows: Rows, odds: np.ndarray) -> dict[str, Any]:
    """Return every figure of one source and horizon."""
    at = rows.block(FIRST, LAST)
    lost, weight = rows.lost[at], rows.vms[at]
    p, usual = clipped(odds[at]), clipped(climatology(rows)[at])
    ours, base = log_loss(lost, p), log_loss(lost, usual)
    slope, ece = calibration(lost, p, weight)
    alarm = p >= ALARM
    caught = float(np.sum((weight * lost)[alarm]))
    in_time = float(np.sum((weight * np.maximum(lost - rows.early[at], 0.0))[alarm]))
    return {
        "rows": len(at),
        "losses": float(np.sum(weight * lost)),
        "logloss": float(np.average(ours, weights=weight)),
        "logloss_climatology": float(np.average(base, weights=weight)),
        "skill": 1 - float(np.sum(weight * ours) / np.sum(weight * base)),
        "interval": skill_interval(rows, ours, base, at),
        "brier": float(np.average((lost - p) ** 2, weights=weight)),
        "brier_climatology": float(np.average((lost - usual) ** 2, weights=weight)),
        "auc": weighted_auc(lost, p, weight),
        "slope": slope,
        "ece": ece,
        "recall": caught / max(float(np.sum(weight * lost)), 1e-9),
        "precision": caught / max(float(np.sum(weight[alarm])), 1e-9),
        "recall_at_lead": in_time / max(float(np.sum(weight * lost)), 1e-9),
        "precision_at_lead": in_time / max(float(np.sum(weight[alarm])), 1e-9),
    }


def add_bars(bars: Bars, found: dict[tuple[str, str], dict[str, Any]], *, whole: bool) -> None:
    for (name, horizon), one in found.items():
        best = BEST_SINGLE[name][0 if horizon == "15m" else 1]
        bars.at_least(f"skill {name} {horizon} (best single {best})", one["skill"], best - 0.01)
    bars.at_least("lowest skill over climatology", min(o["skill"] for o in found.values()), 0.0)
    if whole:
        mean = float(np.mean([o["skill"] for o in found.values()]))
        bars.at_least(f"mean skill (best single {BEST_MEAN})", mean, BEST_MEAN + 0.01)
    many = [o for o in found.values() if o["losses"] > 200]
    if many:
        bars.at_least("lowest calibration slope", min(o["slope"] for o in many), 0.8)
        bars.at_most("highest calibration slope", max(o["slope"] for o in many), 1.2)
        bars.at_most("highest expected calibration error", max(o["ece"] for o in many), 0.04)


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--models", default=DEFAULT, help="names, the first is held to the bars")
    asked = parser.parse_args()
    data = shared_data()
    bars = Bars("forecast")
    head = (
        "model source horizon rows losses skill 95%-interval brier/clim auc slope ece recall prec"
        " recall@lead prec@lead"
    )
    lines: list[list[object]] = []
    launches: list[list[object]] = []
    for place, model in enumerate(asked.models.split(",")):
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for name in QUICK if asked.quick else SOURCES:
            source, begun = load(data, name), time.perf_counter()
            odds = walk(source, get_forecaster(model), first=FIRST, last=LAST)
            for horizon, rows in source.rows.items():
                one = score(rows, odds[horizon])
                found[name, horizon] = one
                lines.append(_line(model, name, horizon, one))
            print(f"{model} {name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
            if (
                place == 0
                and source.trace is not None
                and source.trace.semantics is Semantics.PROBE
            ):
                launches.append([name, *launch_scores(source, first=FIRST / 10)])
        mean = float(np.mean([o["skill"] for o in found.values()]))
        worst = min(o["skill"] for o in found.values())
        lines.append([model, "mean / worst", "", "", "", f"{mean:+.3f} / {worst:+.3f}", *[""] * 9])
        bars.rows[model] = {f"{n} {h}": o for (n, h), o in found.items()}
        if place == 0:
            add_bars(bars, found, whole=not asked.quick)
    table(head.split(), lines)
    print("\nlaunch odds (share of launches granted): log loss skill")
    table(["source", "instants", "granted", "over climatology", "over persistence"], launches)
    bars.rows["launches"] = launches
    return bars.finish(asked.json)


def _line(model: str, name: str, horizon: str, one: dict[str, Any]) -> list[object]:
    low, high = one["interval"]
    return [
        model,
        name,
        horizon,
        one["rows"],
        round(one["losses"]),
        f"{one['skill']:+.3f}",
        f"{low:+.2f}..{high:+.2f}",
        f"{one['brier']:.4f}/{one['brier_climatology']:.4f}",
        f"{one['auc']:.2f}",
        f"{one['slope']:.2f}",
        f"{one['ece']:.3f}",
        f"{one['recall']:.2f}",
        f"{one['precision']:.2f}",
        f"{one['recall_at_lead']:.2f}",
        f"{one['precision_at_lead']:.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
