"""Random faults on real training processes: no split brain, no sample twice, none left out.

One schedule is a run of the real controller, agents and workers through FAULTS faults drawn by
its seed: kill, poweroff, cut, two at once, one after the other, notice, a save, the controller
killed and started again. The weights themselves count each sample's visits, and every step's
parts must belong to one group. `make chaos-train SEED=7` repeats the schedules from seed 7 on.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from _common import Bars, options, table
from _elastic_ours import Park, park
from surefoot.providers.local.namespaces import why_not

FAULTS = 5
KINDS = ("kill", "poweroff", "cut", "pair", "row", "notice", "save", "controller")


def main() -> int:
    """Run schedules until the time or their number is over; returns the exit status."""
    parser = options(__doc__ or "")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED") or 1))
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin none after this long")
    args = parser.parse_args()
    count = 1 if args.quick else args.schedules
    bars, rows, end = Bars("chaos_train"), [], time.monotonic() + 60 * args.minutes
    for seed in range(args.seed, args.seed + count):
        if rows and time.monotonic() > end:
            break
        rows.append(_schedule(seed))
        print(f"seed {seed}: {rows[-1][1:]}", flush=True)
    print()
    table(["seed", "faults", "steps", "repeated", "skipped", "split steps", "trouble"], rows)
    bars.rows["schedules"] = {str(row[0]): row[1:] for row in rows}
    print(f"{len(rows)} schedules of {FAULTS} faults; repeat one with --seed N --schedules 1")
    bars.at_least("schedules run", len(rows), 1 if args.quick else min(200, count))
    bars.at_most("samples repeated or skipped", sum(r[3] + r[4] for r in rows), 0)
    bars.at_most("steps that two groups made", sum(r[5] for r in rows), 0)
    bars.at_most("schedules that came to a halt", sum(r[6] != "" for r in rows), 0)
    return bars.finish(args.json)


def _schedule(seed: int) -> tuple[int, str, int, int, int, int, str]:
    """Run one schedule; returns its row of the table."""
    random = np.random.default_rng(seed)
    faults = [Fault.draw(random) for _ in range(FAULTS)]
    folder = Path(tempfile.mkdtemp(prefix="surefoot-chaos-"))
    kind = "process" if why_not() else "namespace"
    told: list[str] = []
    try:
        with park(folder, nodes=3, vms=kind, ELASTIC_SAVE_MS="700", ELASTIC_MB="2") as made:
            for fault in faults:
                told.append(fault.name)
                _inflict(made, fault)
            made.settle(3)
        repeated, skipped = made.miscounted()
        split, steps = _split(made), max(r["step"] for r in made.rows.read()) + 1
    except TimeoutError as error:
        print(f"seed {seed}: its folder is kept: {folder}")
        return seed, " ".join(told), 0, 0, 0, 0, str(error)
    if repeated + skipped + split:
        print(f"seed {seed}: its folder is kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return seed, " ".join(told), steps, repeated, skipped, split, ""


@dataclass(frozen=True)
class Fault:
    """One fault as drawn, before anything is known of the run: equal seeds draw equal faults."""

    name: str
    verb: str
    wait_s: float
    whom: float
    gap_s: float
    comes_back: bool

    @staticmethod
    def draw(random: np.random.Generator) -> Fault:
        """Draw one."""
        name, verb = str(random.choice(KINDS)), str(random.choice(["kill", "poweroff"]))
        wait_s, whom, gap_s, back = random.uniform(size=4).tolist()
        return Fault(name, verb, 0.3 + 1.7 * wait_s, whom, gap_s, back < 0.5)


def _inflict(made: Park, fault: Fault) -> None:
    """Wait, then do the harm to one or two of those that train now."""
    time.sleep(fault.wait_s)
    now_s = time.monotonic()
    here = sorted({row["vm"] for row in made.rows.read() if row["t"] > now_s - 1.0}) or [""]
    first = int(fault.whom * len(here))
    chosen = [here[first], here[(first + 1) % len(here)]]
    if fault.name in ("kill", "poweroff", "cut"):
        made.do(fault.name, chosen[0])
        if fault.name == "cut" and fault.comes_back:
            time.sleep(0.2 + 2.3 * fault.gap_s)
            made.do("uncut", chosen[0])
    elif fault.name in ("pair", "row"):
        made.do(fault.verb, chosen[0])
        time.sleep(0.0 if fault.name == "pair" else fault.gap_s)
        made.do(fault.verb, chosen[1])
    elif fault.name == "notice":
        made.do("notice", chosen[0], str(round(500 + 5500 * fault.gap_s)))
    elif fault.name == "save":
        made.do("save")
        time.sleep(fault.gap_s / 10)
        made.do(fault.verb, chosen[0])
    else:
        made.process.kill()
        made.process.wait()
        time.sleep(0.1 + 2.9 * fault.gap_s)
        made.start()


def _split(made: Park) -> int:
    """Return how many steps were counted by two groups at once, as the step logs tell it.

    A step may be made again by a later group when its members lost it; then the groups' times
    do not overlap. Two groups of the same time with the same step are a split brain.
    """
    spans: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in made.rows.read():
        if row["stepped"]:
            spans[row["step"]][row["world"]].append(row["t"])
    split = 0
    for worlds in spans.values():
        times = sorted((min(t), max(t)) for t in worlds.values())
        split += any(a[1] > b[0] for a, b in itertools.pairwise(times))
    return split


if __name__ == "__main__":
    sys.exit(main())
