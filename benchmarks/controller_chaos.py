"""How many storms the real controller survives, and how soon planted faults are caught."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _common import Bars, options, table
from surefoot.testing.chaos import shrink, storm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "crash"))

import pytest
from chaos_mutants import PLANTED

CHUNK = 50
LIMIT = 2_000


def storms(first: int) -> tuple[list[int], int, float]:
    """Return (seeds that failed, operations, CPU seconds) of a chunk of seeds."""
    began, failed, operations = time.process_time(), [], 0
    for seed in range(first, first + CHUNK):
        verdict = storm(seed)
        operations += verdict.operations
        if verdict.wrong:
            failed.append(seed)
    return failed, operations, time.process_time() - began


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
    given = parser.parse_args()
    count = 300 if given.quick else 10_000
    began = time.perf_counter()
    with ProcessPoolExecutor(given.workers) as pool:
        done = list(pool.map(storms, range(0, count, CHUNK)))
        wall_s = time.perf_counter() - began
        found = dict(zip(PLANTED, pool.map(caught, PLANTED), strict=True))
    failed = [seed for seeds, _, _ in done for seed in seeds]
    cpu_s = sum(s for _, _, s in done)
    for seed in failed[:3]:
        print(shrink(storm(seed)).tell())
    print(f"{count} storms: {len(failed)} failed, {sum(o for _, o, _ in done)} operations")
    print(f"{cpu_s / count * 1000:.0f} ms of CPU a storm, {wall_s:.0f} s on the wall")
    table(("planted fault", "caught after seeds"), list(found.items()))
    bars = Bars("controller_chaos")
    bars.rows = {"failed": failed, "planted": found, "wall_s": wall_s, "cpu_s": cpu_s}
    bars.at_most("storms with a violation", len(failed), 0)
    bars.at_most("CPU minutes of 10,000 storms on 2 cores", cpu_s / count * 10_000 / 120, 15)
    bars.at_most("seeds until the last planted fault is caught", max(found.values()), LIMIT)
    return bars.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
