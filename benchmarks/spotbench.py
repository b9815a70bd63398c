"""SpotBench: fleet policies on every public trace, against the offline optimum.

Single-gang deadline jobs are replayed tick by tick through the Policy port; elastic jobs run in
the product's simulator. Forecasters learn only from what lies before each decision. Nothing is
tuned on the scored part: every parameter comes from the theory notes or from measured costs.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import numpy as np

from _common import Bars, options, shared_data, table
from _spotbench_data import PoolRecord, load, measured_curve, priced, trace_sets
from _spotbench_elastic import ElasticCase, ElasticRow, optimum, run_case
from _spotbench_gang import Cell, CellRow, run_cell
from _spotbench_speed import decision_ms, gang_table_ms

GANG = ("hybrid", "uniform-progress", "greedy")
ELASTIC = ("hybrid", "greedy", "skyserve", "liveput", "on-demand", "spot-only")
HEADLINE = "pool-16"
PAPER = (2.04, 0.5141)
"""Throughput and cost reduction of the abstract that started this: to be beaten together."""


def gang_cells(data: dict[str, list[PoolRecord]], *, quick: bool) -> list[CellRow]:
    rows = []
    slacks, switches = ((1.1, 1.5), (5, 20)) if quick else ((1.1, 1.25, 1.5), (1, 5, 20))
    for traces in trace_sets(data):
        for switch in switches:
            for slack in slacks:
                row = run_cell(
                    traces,
                    Cell(slack, switch),
                    starts=1 if quick else 4,
                    policies=GANG,
                    most=2 if quick else 99,
                )
                if row is not None:
                    rows.append(row)
                    print(_cell_line(row), flush=True)
    return rows


def _cell_line(row: CellRow) -> str:
    means = "  ".join(f"{p} {row.mean[p]:.3f} (worst {row.worst[p]:.2f})" for p in GANG)
    return (
        f"  {row.traces:14} slack {row.slack:<4} switch {row.switch_min:>2} min  "
        f"{row.runs:3} runs  optimum {row.optimum_over_on_demand:.3f} of on-demand  {means}"
    )


def elastic_cases(data: dict[str, list[PoolRecord]], folder: Path) -> list[ElasticCase]:
    """Return the multi-VM jobs. Floor to ceiling is 6 : 16 everywhere, as in the headline,
    scaled to what the trace's pools hold; the last three are other jobs."""
    pool16 = tuple(priced(r) for r in data["sky-pool16-2023-08"])
    h100 = tuple(priced(r) for r in data["skynomad-h100-2025"])
    pool4 = tuple(priced(r) for r in data["sky-pool4-2023-08"])
    cases = [
        ElasticCase(HEADLINE, pool16, 6, 16),
        ElasticCase("h100-13-zones", h100, 6, 16),
        ElasticCase("pool-4", pool4, 2, 4),
    ]
    for source, rows in sorted(data.items()):
        if source.startswith("bamboo"):
            for index, row in enumerate(rows):
                most = max(2, int(row.counts.max()))
                name = f"{source}-{index}"
                cases.append(ElasticCase(name, (priced(row),), max(1, most * 6 // 16), most))
    return [
        *cases,
        ElasticCase("pool-16, floor 8", pool16, 8, 16),
        ElasticCase("pool-16, bert curve", pool16, 6, 16, scaling=measured_curve(folder, "bert")),
        ElasticCase(
            "pool-16, gpt curve", pool16, 6, 16, scaling=measured_curve(folder, "gpt-1.5b")
        ),
        ElasticCase("h100, floor 32, spanning", h100, 32, 64, one_region=False),
    ]


def elastic_rows(cases: list[ElasticCase], *, quick: bool) -> list[ElasticRow]:
    rows = []
    for case in cases:
        if quick and case.name not in (HEADLINE, "pool-4"):
            continue
        best = optimum(case, quick=False)
        print(
            f"  {case.name}: floor {case.floor}, ceiling {case.ceiling}; offline optimum "
            f"{best[0]:.3f}x at {best[1]:.3f} USD a VM-hour's work"
        )
        for policy in ELASTIC:
            model = "mixture" if policy == "hybrid" else "gamma_poisson"
            rows.append(run_case(case, policy, model, quick=False))
    return rows


def show_elastic(rows: list[ElasticRow]) -> None:
    head = (
        "case",
        "policy",
        "speed x",
        "USD/h",
        "USD/work",
        "same work",
        "same hours",
        "h below",
        "violations",
        "regroups",
        "moves",
        "over opt.",
    )
    table(head, [tuple(asdict(r).values()) for r in rows])


def gang_bars(bars: Bars, cells: list[CellRow]) -> None:
    means = {p: fmean(c.mean[p] for c in cells) for p in GANG}
    worst = max(cells, key=lambda c: c.mean["hybrid"])
    print("\nmean over cells of cost over the offline optimum:", means)
    print("pooled (sum of costs over sum of optima):")
    print("  ", {p: fmean(c.pooled[p] for c in cells) for p in GANG})
    print(
        f"worst cell: {worst.traces}, slack {worst.slack}, switch {worst.switch_min} min:",
        dict(worst.mean),
        "pooled",
        dict(worst.pooled),
    )
    bars.at_most("gang: mean cost over the offline optimum", means["hybrid"], 1.07)
    bars.at_most("gang: worst cell", worst.mean["hybrid"], 1.18)
    bars.at_most("gang: deadlines missed", sum(c.late["hybrid"] for c in cells), 0)
    for other in ("greedy", "uniform-progress"):
        ratios = [
            h / o for c in cells for h, o in zip(c.cost["hybrid"], c.cost[other], strict=True)
        ]
        bars.at_least(f"gang: cheaper than {other}, mean over runs", 1 - fmean(ratios), 0.04)


def show_bound(data: dict[str, list[PoolRecord]], cells: list[CellRow], *, quick: bool) -> None:
    """Print, for the cells over the bar, what known rates would reach."""
    over = [c for c in cells if c.mean["hybrid"] > 1.18]
    sets = {t.name: t for t in trace_sets(data)}
    for cell in over:
        row = run_cell(
            sets[cell.traces],
            Cell(cell.slack, cell.switch_min),
            starts=1 if quick else 4,
            policies=("hybrid",),
            bound=True,
            most=2 if quick else 99,
        )
        if row is not None:
            print(
                f"  {cell.traces}, slack {cell.slack}, switch {cell.switch_min} min: "
                f"{cell.mean['hybrid']:.3f}; with the true rates of the scored part, and no "
                f"other knowledge of it, {row.mean['hybrid']:.3f}"
            )


def show_price_bound(cases: list[ElasticCase]) -> None:
    """Print what 'same hours' could at most save: an asked fleet all on spot, never lost."""
    bound = {c.name: 1 - min(r.spot_usd / r.on_demand_usd for r in c.records) for c in cases}
    print("bound of 'same hours' by price alone:", {k: round(v, 3) for k, v in bound.items()})


def elastic_bars(bars: Bars, rows: list[ElasticRow]) -> None:
    ours = {r.case: r for r in rows if r.policy == "hybrid"}
    head = ours[HEADLINE]
    bars.at_least("headline: throughput over the on-demand fleet", head.throughput, 2.1)
    bars.at_least("headline: cheaper for the same work", head.same_work, 0.55)
    bars.at_most("headline: floor broken longer than a boot", head.violations, 0)
    bars.at_most(
        "elastic: floor broken longer than a boot, all cases",
        sum(r.violations for r in ours.values()),
        0,
    )
    for other in ("greedy", "skyserve"):
        theirs = {r.case: r for r in rows if r.policy == other}
        ratio = fmean(ours[c].usd_per_work / theirs[c].usd_per_work for c in ours)
        bars.at_least(f"elastic: cheaper than {other} at equal work", 1 - ratio, 0.04)
    same = [r for r in ours.values() if "," not in r.case]
    print(
        f"\nmean over the {len(same)} multi-VM traces: {fmean(r.throughput for r in same):.3f}x, "
        f"same work {fmean(r.same_work for r in same):.1%} cheaper, same hours "
        f"{fmean(r.same_hours for r in same):.1%} cheaper"
    )
    print(f"the paper's abstract: {PAPER[0]}x and {PAPER[1]:.2%} cheaper")


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--only", choices=("gang", "elastic"), help="run one half")
    args = parser.parse_args()
    folder = shared_data()
    bars, began = Bars("spotbench"), time.perf_counter()
    data = load(folder)
    if args.only != "elastic":
        print("single gang with a deadline: cost over the offline optimum")
        cells = gang_cells(data, quick=args.quick)
        gang_bars(bars, cells)
        show_bound(data, cells, quick=args.quick)
        bars.rows["cells"] = [asdict(c) for c in cells]
    if args.only != "gang":
        print("\nelastic jobs with a floor")
        cases = elastic_cases(data, folder)
        rows = elastic_rows(cases, quick=args.quick)
        show_elastic(rows)
        show_price_bound(cases)
        elastic_bars(bars, rows)
        bars.rows["elastic"] = [asdict(r) for r in rows]
    cold, warm = decision_ms(24), gang_table_ms()
    print(
        f"\na decision with 24 pools {cold:.2f} ms; a day's gang table from nothing {warm:.1f} ms"
    )
    bars.at_most("speed: decision with 24 pools, 24 h, ms", cold, 20.0)
    bars.at_most("speed: a day's gang table, cold, ms", warm, 20.0)
    print(f"{time.perf_counter() - began:.0f} s; {np.__name__} {np.__version__}")
    return bars.finish(args.json)


if __name__ == "__main__":
    sys.exit(main())
