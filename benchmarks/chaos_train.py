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
    folder = Path(tempfile.mkdtemp(prefix="surefoot-chaos-"))
    kind = "process" if why_not() else "namespace"
    told: list[str] = []
    try:
        with park(folder, nodes=3, vms=kind, ELASTIC_SAVE_MS="700", ELASTIC_MB="2") as made:
            for _ in range(FAULTS):
                told.append(_fault(made, random))
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


def _fault(made: Park, random: np.random.Generator) -> str:
    """Wait a random while, then do some harm; returns its name."""
    time.sleep(float(random.uniform(0.3, 2.0)))
    name = str(random.choice(KINDS))
    here = sorted({row["vm"] for row in made.rows.read() if row["t"] > time.monotonic() - 1.0})
    chosen = [str(vm) for vm in random.permutation(here)] or [""]
    verb = str(random.choice(["kill", "poweroff"]))
    if name in ("kill", "poweroff", "cut"):
        made.do(name, chosen[0])
        if name == "cut" and random.random() < 0.5:
            time.sleep(float(random.uniform(0.2, 2.5)))
            made.do("uncut", chosen[0])
    elif name in ("pair", "row"):
        made.do(verb, chosen[0])
        time.sleep(0.0 if name == "pair" else float(random.uniform(0.05, 1.0)))
        made.do(verb, chosen[1 % len(chosen)])
    elif name == "notice":
        made.do("notice", chosen[0], str(int(random.integers(500, 6000))))
    elif name == "save":
        made.do("save")
        time.sleep(float(random.uniform(0.0, 0.1)))
        made.do(verb, chosen[0])
    else:
        made.process.kill()
        made.process.wait()
        time.sleep(float(random.uniform(0.1, 3.0)))
        made.start()
    return name


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
