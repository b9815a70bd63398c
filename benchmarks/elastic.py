"""Losing VMs: time from fault to next step, pauses and lost work, ours beside torchrun and torchft.

Four namespace VMs of this machine (root), each system in turn; without root ours alone on process
VMs. Times are from the fault to the first step that counts in the new group, as the workers'
own logs have it. Peers: torchrun with defaults and with the quickest settings that were not seen
to split, restarting from a file every 20 steps; torchft averaging by hand (its DDP wrapper fails
with torch 2.13). A peer that is not installed is skipped and its bar with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _elastic_ours as ours
import _elastic_peers as peers
from _common import Bars, options, table
from surefoot.providers.local.namespaces import why_not

NODES = 4


def main() -> int:
    """Run what the options ask for; returns the exit status."""
    chosen = options(__doc__ or "")
    chosen.add_argument("--only", choices=["ours", "peers", "overhead"], help="one part")
    args = chosen.parse_args()
    bars = Bars("elastic")
    found: dict[str, dict[str, dict[str, float]]] = {}
    if args.only in (None, "ours"):
        found["surefoot"] = _ours(bars, down_s=8.0 if args.quick else 30.0)
    if args.only in (None, "peers"):
        found |= _peers(quick=args.quick)
    _show(bars, found)
    if args.only in (None, "overhead"):
        _overhead(bars, pairs=20 if args.quick else 60)
        _determinism(bars, steps=4 if args.quick else 10)
    return bars.finish(args.json)


def _ours(bars: Bars, *, down_s: float) -> dict[str, dict[str, float]]:
    kind = "process" if why_not() else "namespace"
    print(f"surefoot on {NODES} {kind} VMs")
    with _folder() as folder:
        with ours.park(folder, nodes=NODES, vms=kind) as made:
            found = ours.play(made, down_s=down_s)
        repeated, skipped = made.miscounted()
    losses = {k: v for k, v in found.items() if k != "controller down"}
    bars.at_most("kill to first step, s", found["kill"]["first_step_s"], 1.5)
    bars.at_most("rank 0 killed to first step, s", found["rank 0 killed"]["first_step_s"], 1.5)
    silent = max(found[k]["first_step_s"] for k in ("poweroff", "cut"))
    bars.at_most("silent loss to first step, s", silent, 3.0)
    bars.at_most("two at once, to first step, s", found["two at once"]["first_step_s"], 3.0)
    again = found["lost while re-forming"]["first_step_s"]
    bars.at_most("lost while re-forming, to first step, s", again, 3.0)
    pauses = [v["pause_s"] for v in losses.values() if "pause_s" in v]
    bars.at_most("median pause on an addition, s", statistics.median(pauses), 0.8)
    bars.at_most("most steps lost by one fault", max(v["lost_steps"] for v in found.values()), 1)
    bars.at_most("samples repeated or skipped", repeated + skipped, 0)
    bars.at_most("steps of a VM that was cut off", found["cut"]["steps_while_cut"], 0)
    bars.at_least("a cut of 0.4 s leaves the group as it is", found["cut for 0.4 s"]["same"], 1)
    rejoin_s = found["cut"]["rejoin_s"]
    print(f"a VM cut off for good is replaced: {rejoin_s:.1f} s from its return to full strength")
    bars.at_least(
        "steps a second without controller", found["controller down"]["steps"] / down_s, 5
    )
    bars.at_most("longest gap without controller, s", found["controller down"]["longest_gap_s"], 1)
    bars.at_least("same workers after it came back", found["controller down"]["same"], 1)
    return found


def _peers(*, quick: bool) -> dict[str, dict[str, dict[str, float]]]:
    if why_not():
        print(f"peers skipped: {why_not()}")
        return {}
    plan = {"torchrun tuned": ["kill"] if quick else ["kill", "poweroff"]}
    if not quick:
        plan["torchrun default"] = ["kill"]
    if importlib.util.find_spec("torchft") is None:
        print("torchft skipped: not installed (pip install torchft)")
    else:
        plan["torchft"] = ["kill", "poweroff"]
    found = {}
    for kind, faults in plan.items():
        print(f"{kind} on {NODES} namespace VMs")
        with _folder() as folder:
            (folder / "vms").mkdir()
            found[kind] = peers.play(folder, kind, faults, nodes=NODES, limit_s=90)
    return found


def _show(bars: Bars, found: dict[str, dict[str, dict[str, float]]]) -> None:
    rows = [
        [system, fault, *(cost.get(name, "") for name in ("first_step_s", "lost_steps", "pause_s"))]
        for system, faults in found.items()
        for fault, cost in faults.items()
    ]
    print()
    table(["system", "fault", "to first step, s", "steps lost", "pause on addition, s"], rows)
    bars.rows = dict(found)
    mine, theirs = found.get("surefoot"), found.get("torchrun tuned")
    if mine and theirs:
        slow = theirs.get("kill", theirs.get("start", {})).get("first_step_s", float("nan"))
        ratio = slow / mine["kill"]["first_step_s"]
        bars.at_least("kill: times faster than tuned torchrun", ratio, 5)


def _overhead(bars: Bars, *, pairs: int) -> None:
    """Time steps of the example GPT with and without a Session, in turn on one model."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "gpt"))
    import torch
    import train as example

    from surefoot.train import Session

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = example.Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = example.Text(held_out=False)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)

    def work(x: Any, y: Any) -> None:
        example.loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    bare, with_session = [], []
    plain = iter(loader)
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(model=model, optimizer=optimizer, dataloader=loader, checkpoint=folder) as session,
    ):
        steps = iter(session.steps(total=pairs + 4))
        work(*next(steps)[1])
        for _ in range(pairs + 2):
            session._gradients._group = None  # the hooks of a bare step do nothing
            began = time.perf_counter()
            work(*next(plain))
            bare.append(time.perf_counter() - began)
            began = time.perf_counter()
            work(*next(steps)[1])
            with_session.append(time.perf_counter() - began)
    extra = statistics.median(b - a for a, b in zip(bare[2:], with_session[2:], strict=True))
    usual = statistics.median(bare[2:])
    print(f"\nexample GPT: bare step {usual * 1000:.1f} ms, Session adds {extra * 1000:.2f} ms")
    bars.rows["overhead"] = {"bare_s": usual, "extra_s": extra}
    bars.at_most("steady-state overhead of Session, %", 100 * extra / usual, 1.0)


def _determinism(bars: Bars, *, steps: int) -> None:
    """Print what deterministic=True costs a lone worker: eight small shards for one batch."""
    import torch
    import train as example

    from surefoot.train import Session

    took: dict[bool, float] = {}
    for deterministic in (False, True):
        torch.manual_seed(0)
        model = example.Gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        loader = torch.utils.data.DataLoader(example.Text(held_out=False), batch_size=16)
        with (
            tempfile.TemporaryDirectory() as folder,
            Session(
                model=model,
                optimizer=optimizer,
                dataloader=loader,
                checkpoint=folder,
                deterministic=deterministic,
            ) as session,
        ):
            times = [time.perf_counter()]
            for _, (x, y) in session.steps(total=steps + 1):
                example.loss_of(model, x, y).backward()
                stepped = session.stepped
                optimizer.step()
                optimizer.zero_grad()
                times += [time.perf_counter()] if stepped else []
        took[deterministic] = statistics.median(b - a for a, b in itertools.pairwise(times[1:]))
    cost = 100 * (took[True] / took[False] - 1)
    print(f"deterministic=True: {1000 * took[True]:.0f} ms a step instead of", end=" ")
    print(f"{1000 * took[False]:.0f} ms ({cost:+.0f} %), one worker, 8 shards of 2 samples")
    bars.rows["determinism"] = {"cost_percent": cost}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="surefoot-elastic-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
