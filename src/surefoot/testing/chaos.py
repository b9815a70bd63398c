"""Storms round the real controller, by seed: run one, check it, shorten it, print how to repeat.

`python -m surefoot.testing.chaos --seeds 300` runs many, `--seed 17` one and tells its story.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from surefoot.core.event import (
    CheckpointCommitted,
    Event,
    GroupFormed,
    InstanceLaunched,
    InstanceRequested,
    State,
    apply,
)
from surefoot.testing.chaos_agents import LEASE_MS
from surefoot.testing.chaos_faults import STORM_MS, Fault, draw
from surefoot.testing.chaos_world import MEMORY, NODES, RUN, START, ChaosWorld

SETTLE_MS = 4 * 60_000
"""Bound for the floor to be restored once the storm is over."""

END_MS = 3 * 60_000
TIGHT_USD = 200_000
"""Budget of every third seed, micro-dollars: it runs out within the storm."""

COMMITTED_USD = 200_000
"""What may be spent beyond the budget: VMs that run when it is reached, or that nobody knew."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one storm showed; `wrong` is empty when all held."""

    seed: int
    faults: tuple[Fault, ...]
    wrong: tuple[str, ...]
    events: tuple[Event, ...] = ()
    operations: int = 0

    def tell(self) -> str:
        """Return the verdict with the command that repeats it."""
        lines = [f"seed {self.seed}: {len(self.faults)} faults, {'; '.join(self.wrong) or 'held'}"]
        lines += [f"  {f}" for f in self.faults]
        lines.append(f"repeat: python -m surefoot.testing.chaos --seed {self.seed}")
        return "\n".join(lines)


def storm(seed: int, faults: Sequence[Fault] | None = None, *, journal: str = MEMORY) -> Verdict:
    """Run the storm of a seed (or other faults in its place) to its end and check it.

    `journal`: the path or URL of an empty database.
    """
    chosen = draw(seed) if faults is None else tuple(faults)
    budget = TIGHT_USD if seed % 3 == 0 else None
    world = ChaosWorld(chosen, budget_micro_usd=budget, journal=journal)
    try:
        _live(world)
    except Exception:
        last = traceback.format_exc().strip().splitlines()
        world.wrong.append(" | ".join(last[-7:]))
    events = tuple(world.events())
    world.close()
    return Verdict(seed, chosen, tuple(world.wrong), events, world.operations)


def shrink(verdict: Verdict) -> Verdict:
    """Return a failing verdict with as few faults as still fail, one left out at a time."""
    best, tried = verdict, True
    while tried:
        tried = False
        for i in range(len(best.faults)):
            fewer = storm(best.seed, best.faults[:i] + best.faults[i + 1 :])
            if fewer.wrong:
                best, tried = fewer, True
                break
    return best


def _live(world: ChaosWorld) -> None:
    world.run_until(START + STORM_MS)
    world.calm()
    world.run_until(START + STORM_MS + SETTLE_MS)
    step = world.agents.step
    world.run_until(START + STORM_MS + SETTLE_MS + 20_000)
    _check_record(world)
    if not world.over and not world.wrong:
        _check_quiet(world, step)
        world.stopping = True
        if world.controller is not None:
            world.controller.request_stop()
        world.run_until(world.clock.now_ms() + END_MS)
        if not world.over:
            world.wrong.append("a stop did not end the run within its bound")
    if world.over and not world.wrong:
        _check_end(world)
        _check_record(world)


def _check_quiet(world: ChaosWorld, step: int) -> None:
    controller, wrong = world.controller, world.wrong
    if controller is None:
        wrong.append("no controller leads although nothing fails")
        return
    owned = {vm.token for vm in controller.state.fleet}
    stray = sorted({vm.token for vm in world.cloud.running()} - owned)
    if stray:
        wrong.append(f"nobody owns {stray}")
    state = State()
    for event in world.events():
        state = apply(state, event)
    if state != controller.state:
        wrong.append("the journal replays to another state")
    if controller.job.limits.budget_micro_usd is not None:
        return
    if len(world.agents.training()) < NODES or world.agents.step <= step:
        have, at = len(world.agents.training()), world.agents.step
        wrong.append(f"floor not restored: {have} of {NODES} train, step {step} -> {at}")


def _check_end(world: ChaosWorld) -> None:
    """Nothing runs; after a crash at the very end, the VMs' own leases saw to that."""
    crashed = bool(world.cloud.running())
    if crashed and world.number and world.line is None:
        world.clock.advance_to(world.clock.now_ms() + LEASE_MS)
        return
    if crashed:
        world.wrong.append(f"{len(world.cloud.running())} VMs run after the end")


def _check_record(world: ChaosWorld) -> None:
    """What the journal and the cloud say of money and work."""
    events, wrong = world.events(), world.wrong
    for kind in (InstanceRequested, InstanceLaunched):
        tokens = [e.token for e in events if isinstance(e, kind)]
        if len(set(tokens)) != len(tokens):
            wrong.append(f"a VM is billed twice: {kind.__name__}")
    safe = 0
    for event in events:
        if isinstance(event, CheckpointCommitted):
            safe = max(safe, event.step)
        elif isinstance(event, GroupFormed) and event.step < safe:
            wrong.append(f"generation {event.generation} began at {event.step}, {safe} is durable")
    budget = world.job.limits.budget_micro_usd
    if budget is not None and world.cloud.cost_micro_usd() > budget + COMMITTED_USD:
        wrong.append(f"spent {world.cloud.cost_micro_usd() / 1e6:.2f} of {budget / 1e6:.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; return 1, after showing the first failures shortened, if any does not hold."""
    parser = argparse.ArgumentParser(prog="python -m surefoot.testing.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one only, and tell its story")
    parser.add_argument("--seeds", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=0, help="processes (default: one a core)")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _one(given.seed)
    began = time.monotonic()
    seeds = range(given.start, given.start + given.seeds)
    failed: list[int] = []
    for chunk in storms(seeds, workers=given.workers):
        failed += chunk.failed
        for seed in chunk.failed:
            print(f"seed {seed} failed", flush=True)
    for seed in failed[:3]:
        print(shrink(storm(seed)).tell())
    print(f"{given.seeds} storms, {len(failed)} failed, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """What some storms in a row came to."""

    failed: tuple[int, ...]
    """Seeds with a violation."""
    operations: int
    cpu_s: float


CHUNK = 25


def storms(seeds: Sequence[int], *, workers: int = 0) -> Iterator[Chunk]:
    """Run the storms of many seeds over processes (0: one a core); yield as they end, in order."""
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    count = min(workers or os.cpu_count() or 1, len(chunks))
    if count <= 1:
        yield from map(_chunk, chunks)
        return
    with ProcessPoolExecutor(count) as pool:
        yield from pool.map(_chunk, chunks)


def _chunk(seeds: Sequence[int]) -> Chunk:
    began, failed, operations = time.process_time(), [], 0
    for seed in seeds:
        verdict = storm(seed)
        operations += verdict.operations
        if verdict.wrong:
            failed.append(seed)
    return Chunk(tuple(failed), operations, time.process_time() - began)


def crashes(seed: int, *, every: int = 1, first: int = 0) -> list[Verdict]:
    """Return the failing verdicts of a run that is killed before, and after, its n-th operation.

    For each n-th of `every` operations from `first` on, of a storm without any other fault; an
    operation is a journal write or a call of the provider.
    """
    calm = storm(seed, ())
    found = [calm] if calm.wrong else []
    for at in range(1 + first, calm.operations + 1, every):
        for kind in ("crash_before", "crash_after"):
            verdict = storm(seed, (Fault(kind, at),))
            if verdict.wrong:
                found.append(verdict)
    return found


def _one(seed: int) -> int:
    verdict = storm(seed)
    for event in verdict.events:
        print(f"{(event.at_ms - START) / 1000:9.1f} {event}")
    if verdict.wrong:
        verdict = shrink(verdict)
    print(verdict.tell())
    return 1 if verdict.wrong else 0


__all__ = ["RUN", "Verdict", "crashes", "main", "shrink", "storm", "storms"]

if __name__ == "__main__":
    sys.exit(main())
