"""How many storms the real controller survives, and how soon planted faults are caught."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _common import Bars, options, table
from surefoot.testing.chaos import crashes, shrink, storm, storms

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "crash"))

import pytest
from chaos_mutants import PLANTED

LIMIT = 2_000


def killed(seed: int) -> int:
    """Return how many kills a run did not survive: before and after each of its operations."""
    return len(crashes(seed))


def caught(name: str) -> int:
    """Return after how many seeds a planted fault is caught; 2,001 when it is not."""
    patch = pytest.MonkeyPatch()
    try:
        PLANTED[name](patch)
        return next((s + 1 for s in range(LIMIT) if storm(s).wrong), LIMIT + 1)
    finally:
        patch.undo()


def main() -> int:
    """Run the storms and the planted faults; check the bars."""
    parser = options(__doc__ or "")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    count = 300 if given.quick else 10_000
    began, done = time.perf_counter(), []
    for chunk in storms(range(given.start, given.start + count), workers=given.workers):
        done.append(chunk)
    wall_s = time.perf_counter() - began
    with ProcessPoolExecutor(given.workers) as pool:
        kills = 0 if given.quick else sum(pool.map(killed, (1, 2, 3, 4)))
        found = dict(zip(PLANTED, pool.map(caught, PLANTED), strict=True))
    failed = [seed for chunk in done for seed in chunk.failed]
    cpu_s = sum(chunk.cpu_s for chunk in done)
    for seed in failed[:3]:
        print(shrink(storm(seed)).tell())
    operations = sum(chunk.operations for chunk in done)
    print(f"{count} storms: {len(failed)} failed, {operations} operations")
    print(f"{cpu_s / count * 1000:.0f} ms of CPU a storm, {wall_s:.0f} s on the wall")
    table(("planted fault", "caught after seeds"), list(found.items()))
    bars = Bars("controller_chaos")
    bars.rows = {"failed": failed, "planted": found, "wall_s": wall_s, "cpu_s": cpu_s}
    bars.at_most("storms with a violation", len(failed), 0)
    bars.at_most("kills at a write or call that a run did not survive", kills, 0)
    bars.at_most("CPU minutes of 10,000 storms on 2 cores", cpu_s / count * 10_000 / 120, 15)
    bars.at_most("seeds until the last planted fault is caught", max(found.values()), LIMIT)
    return bars.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
