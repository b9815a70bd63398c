"""What a turn of the controller costs with 1,000 VMs, 50 of which are preempted within a minute."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from _common import Bars, options
from surefoot.controller import Controller, Settings, Store
from surefoot.core.event import InstanceGone
from surefoot.core.forecast import get_forecaster
from surefoot.core.job import Job, Throughput, Work
from surefoot.core.market import Pool
from surefoot.core.policy import get_policy
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.testing import FakeAgents, FakeClock, FakeProvider, Pace, drive

START, MINUTE = 1_800_000_000_000, 60_000
POOL = Pool("fake", "r1", "a", "gpu")


class Meter:
    """Adds up the CPU time spent inside the fakes, which is not the controller's."""

    def __init__(self) -> None:
        self.spent_s, self._inside = 0.0, False

    def wrap(self, owner: Any, *names: str) -> None:
        """Measure some methods of a fake."""
        for name in names:
            setattr(owner, name, self._metered(getattr(owner, name)))

    def _metered(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def metered(*args: Any, **terms: Any) -> Any:
            if self._inside:
                return call(*args, **terms)
            began, self._inside = time.process_time(), True
            try:
                return call(*args, **terms)
            finally:
                self._inside = False
                self.spent_s += time.process_time() - began

        return metered


def market(vms: int, minutes: int) -> Trace:
    """Return a pool of `vms` spot VMs of which 50 are taken without a word in one minute."""
    reclaims = tuple(Reclaim(START + (8 * 60 + i) * 1_000, 1, 0) for i in range(50))
    record = PoolTrace(
        pool=POOL,
        supply=(Step(START, vms),),
        spot=(Step(START, 1_000_000),),
        on_demand=(Step(START, 3_000_000),),
        reclaims=reclaims,
        boot_ms=60_000,
    )
    end_ms = START + minutes * MINUTE
    return Trace("many", Semantics.SUPPLY, START, end_ms, {POOL: record})


def restart(vms: int) -> tuple[float, int]:
    """Return (seconds from a controller's start to the end of its first turn, VMs it holds)."""
    clock, store = FakeClock(START), Store("sqlite://")
    provider = FakeProvider(market(vms, 11), clock)
    agents = FakeAgents(provider, clock, pace=Pace(step_ms=10_000, num_nodes=vms))
    first = lead(vms, provider, agents, clock, store, [])
    drive(first, clock, provider, agents, until_ms=START + 3 * MINUTE)
    first.close()
    agents.restarted()
    began = time.perf_counter()
    second = lead(vms, provider, agents, clock, store, [])
    second.turn()
    return time.perf_counter() - began, len(second.state.fleet)


def lead(
    vms: int,
    provider: FakeProvider,
    agents: FakeAgents,
    clock: FakeClock,
    store: Store,
    lost: list[InstanceGone],
) -> Controller:
    """Return a controller for the run; it adds each loss to `lost`."""
    terms = Throughput(vms // 2, vms)
    return Controller(
        Job("many", vms, (POOL,), terms, work=Work(step_ms=10_000), policy="greedy"),
        provider,
        agents=agents,
        store=store,
        clock=clock,
        policy=get_policy("greedy"),
        forecaster=get_forecaster("gamma_poisson"),
        run="many",
        settings=Settings(),
        on_event=[lambda e: lost.append(e) if isinstance(e, InstanceGone) else None],
    )


def turns(vms: int, minutes: int) -> tuple[list[float], int]:
    """Return (CPU seconds of each turn that follows the launch, losses that were journaled)."""
    clock, meter = FakeClock(START), Meter()
    trace = market(vms, minutes)
    provider = FakeProvider(trace, clock)
    agents = FakeAgents(provider, clock, pace=Pace(step_ms=10_000, num_nodes=vms))
    meter.wrap(provider, "list", "offerings", "launch", "terminate", "next_change_ms")
    meter.wrap(agents, "poll", "send", "connected", "address")
    lost: list[InstanceGone] = []
    controller = lead(vms, provider, agents, clock, Store("sqlite://"), lost)
    spent: list[float] = []
    while clock.now_ms() < trace.end_ms:
        began, other = time.process_time(), meter.spent_s
        wake_ms = controller.turn()
        own = time.process_time() - began - (meter.spent_s - other)
        if clock.now_ms() > START + 2 * MINUTE:  # all are launched and in the group
            spent.append(own)
        due = (wake_ms, provider.next_event_ms(), agents.next_event_ms())
        clock.advance_to(max(min(at for at in due if at is not None), clock.now_ms() + 1))
    return spent, len(lost)


def main() -> int:
    """Measure and check the bars."""
    given = options(__doc__ or "").parse_args()
    vms = 200 if given.quick else 1_000
    spent, lost = turns(vms, 11)
    spent.sort()
    middle, high, top = statistics.median(spent), spent[int(len(spent) * 0.99)], spent[-1]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{vms} VMs, {len(spent)} turns, {lost} losses")
    print(
        f"CPU of a turn: median {middle * 1e3:.1f} ms, p99 {high * 1e3:.1f}, most {top * 1e3:.1f}"
    )
    again_s, held = restart(200)
    print(f"restart with 200 VMs: {again_s:.2f} s, {held} adopted")
    bars = Bars("controller")
    bars.rows = {"median_s": middle, "p99_s": high, "most_s": top, "turns": len(spent)}
    bars.at_least("losses handled", lost, 50)
    bars.at_most("median CPU of a turn, ms", middle * 1e3, 100)
    bars.at_most("p99 CPU of a turn, ms", high * 1e3, 100)
    bars.at_most("peak memory, MB", memory, 300)
    bars.at_least("VMs adopted of 200", held, 200)
    bars.at_most("restart with 200 VMs, s", again_s, 2)
    return bars.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
