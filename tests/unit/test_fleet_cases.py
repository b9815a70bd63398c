"""Cases of the catalogue about big fleets, quotas and clocks: numbers 103 and 127 to 129."""

from __future__ import annotations

from controller_world import MINUTE, POOL, START, Plain, World, job_of, pool_trace, trace_of

from surefoot.controller import Settings
from surefoot.core.event import GroupFormed, InstanceGone, InstanceLaunched, LaunchFailed
from surefoot.core.fleet import Ending
from surefoot.core.job import Throughput
from surefoot.core.market import Pool
from surefoot.core.trace import Reclaim
from surefoot.errors import QuotaError
from surefoot.testing import Fault, Pace

HOUR = 60 * MINUTE


def fleet(count: int, reclaims: tuple[Reclaim, ...] = ()) -> World:
    """Return a world that holds `count` VMs once a boot time has passed."""
    trace = trace_of(pool_trace(supply=((0, count),), reclaims=reclaims))
    job = job_of(num_nodes=count, throughput=Throughput(0, count))
    pace = Pace(step_ms=60_000, num_nodes=count)
    return World(trace, job=job, policy=Plain(count), pace=pace, settings=Settings())


def test_case_103_two_hundred_nodes_for_an_hour_stay_within_the_request_quota() -> None:
    world = fleet(200)
    world.run_for(HOUR)
    assert len(world.provider.running()) == 200
    held, at_ms = 50.0, START
    for when_ms, call, _ in world.provider.calls:
        if call == "launch":
            continue  # launches have a quota of their own; see the next test
        held = min(50.0, held + (when_ms - at_ms) * 10 / 1_000)
        at_ms = when_ms
        held -= 1
        assert held >= 0, f"{call} at {when_ms - START} ms is over the quota"
    looks = [call for _, call, _ in world.provider.calls if call == "list"]
    assert len(looks) <= 2 * HOUR // world.settings.poll_ms


def test_case_127_places_without_quota_are_learned_once_and_told() -> None:
    pools = tuple(Pool("fake", f"r{n}", "a", "gpu") for n in range(6))
    world = World(trace_of(*map(pool_trace, pools)), job=job_of(pools=pools), policy=Plain(1))
    world.provider.fail(*[Fault("launch", QuotaError(f"quota 0 in r{n}")) for n in range(5)])
    world.run_for(3 * MINUTE)
    failed = world.of(LaunchFailed)
    assert [e.message for e in failed] == [f"quota 0 in r{n}" for n in range(5)]
    assert failed[-1].at_ms - START <= MINUTE, "no minutes are spent in each place"
    assert [vm.pool for vm in world.provider.running()] == [pools[5]]
    world.run_for(30 * MINUTE)
    assert len(world.of(LaunchFailed)) == 5, "remembered, not tried again"


def test_case_128_a_thousand_nodes_lose_fifty_in_a_minute_and_each_is_handled_at_once() -> None:
    reclaims = tuple(Reclaim(START + (2 * 60 + i) * 1_000, 1, 0) for i in range(50))
    world = fleet(1_000, reclaims)
    world.run_for(110_000)
    assert len(world.controller.state.fleet) == 1_000
    world.run_for(90_000)
    gone = world.of(InstanceGone)
    assert len(gone) == 50
    ended = {m.vm.token: m.vm.ended_ms for m in world.provider.machines.values() if m.vm.ended_ms}
    late = [e.at_ms - (ended[e.token] or 0) for e in gone]
    assert max(late) <= 2 * world.settings.poll_ms, "within two turns"
    assert not {e.token for e in gone} & {vm.token for vm in world.controller.state.fleet}


def test_case_129_a_hopeless_launch_backs_off_says_quota_and_can_be_called_off() -> None:
    world = World(trace_of(pool_trace()), policy=Plain(1), settings=Settings())
    world.provider.fail(*[Fault("launch", QuotaError("32 asked, quota is 4"))] * 50)
    world.run_for(30 * MINUTE)
    tries = [at for at, call, _ in world.provider.calls if call == "launch"]
    assert len(tries) <= 3
    assert any("blocked by quota" in why for why in world.controller.view().refusals)
    world.controller.request_stop()
    world.run_for(2 * MINUTE)
    assert world.controller.finished
    assert [at for at, call, _ in world.provider.calls if call == "launch"] == tries


def test_case_129_start_stop_rounds_end_after_the_set_number_with_a_reason() -> None:
    settings = Settings(boot_limit_ms=MINUTE, backoff_ms=15_000, max_boot_rounds=4)
    world = World(trace_of(pool_trace()), policy=Plain(1), settings=settings)
    world.agents.never_ready |= {f"i-{n:05d}" for n in range(1, 100)}
    world.run_for(3 * HOUR)
    assert len(world.of(InstanceLaunched)) == 4
    assert {e.ending for e in world.of(InstanceGone)} == {Ending.BOOT_FAILED}
    assert world.controller.state.outcome == "failed" and world.controller.finished
    assert world.provider.running() == []


def test_case_129_a_vm_that_came_up_once_ends_the_count_of_rounds() -> None:
    settings = Settings(boot_limit_ms=MINUTE, backoff_ms=15_000, max_boot_rounds=4)
    world = World(trace_of(pool_trace()), policy=Plain(1), settings=settings)
    world.agents.never_ready |= {f"i-{n:05d}" for n in range(1, 4)}
    world.run_for(HOUR)
    assert world.controller.state.outcome is None and world.of(GroupFormed)
    assert world.provider.running()[0].pool == POOL
    assert len(world.provider.running()) == 1
