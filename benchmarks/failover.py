"""Whether one of two controllers on a PostgreSQL journal takes over well when the other fails."""

from __future__ import annotations

import statistics
import sys
import time

from _common import Bars, options, table
from surefoot.testing import postgres
from surefoot.testing.failover import LEASE_MS, controllers, new_journal, processes


def main() -> int:
    """Run the rounds; check the bars."""
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--only", choices=("processes", "controllers"))
    given = parser.parse_args()
    why = postgres.absent()
    if why is not None:
        print(f"skipped: {why}")
        return 0
    count = given.rounds or (10 if given.quick else 200)
    seeds = range(given.start, given.start + count)
    wrong: list[str] = []
    took: list[float] = []
    stopped = early = launched = 0
    began = time.perf_counter()
    with postgres.server() as url:
        journal = new_journal(url)
        for seed in () if given.only == "controllers" else seeds:
            found = processes(seed, journal)
            wrong += [f"processes, seed {seed}: {line}" for line in found.wrong]
            stopped += found.was_stopped
            launched += found.launched
            early += found.was_early
            if not found.was_early:
                took.append(found.takeover_ms)
        middle = time.perf_counter()
        for seed in () if given.only == "processes" else seeds:
            wrong += [f"controllers, seed {seed}: {x}" for x in controllers(seed, journal)]
    end = time.perf_counter()
    for line in wrong[:10]:
        print(line)
    median, worst = (statistics.median(took), max(took)) if took else (float("nan"),) * 2
    table(
        ("rounds", "of", "violations", "wall s"),
        [
            (
                count,
                "two processes, real time",
                sum("processes" in w for w in wrong),
                middle - began,
            ),
            (count, "two control loops", sum("controllers" in w for w in wrong), end - middle),
        ],
    )
    print(
        f"{stopped} leaders stopped, {count - stopped} killed, {launched} launches, {early} early"
    )
    print(f"takeover with a lease of {LEASE_MS} ms: median {median:.0f} ms, worst {worst:.0f} ms")
    bars = Bars("failover")
    bars.rows = {"wrong": wrong, "takeover_ms": took, "early": early}
    bars.at_most("violations: double launch, lost event, stale leader not fenced", len(wrong), 0)
    if given.only != "controllers":
        bars.at_most("takeover beyond the lease, median, ms", median - LEASE_MS, 500)
        bars.at_most("takeover beyond the lease, worst, ms", worst - LEASE_MS, 7_000)
    return bars.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
