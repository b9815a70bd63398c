"""The simulator: what it must do with odd traces, odd models, and ordinary storms."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from surefoot.core.account import summary
from surefoot.core.decide import Observation
from surefoot.core.event import (
    CheckpointCommitted,
    Event,
    GroupFormed,
    InstanceGone,
    InstanceRequested,
    NoticeReceived,
    RestoreDone,
    RunEnded,
    State,
    apply,
)
from surefoot.core.fleet import Ending
from surefoot.core.job import IntervalRule, Job, Limits, Throughput, Work
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Launch, Plan
from surefoot.core.replay import Replay
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.sim import CostModel, Outcome, simulate
from surefoot.sim.world import World

POOL = Pool("local", "here", "a", "small")
H = 3_600_000
EXACT = CostModel(jitter=0.0, boot_ms=60_000, reform_ms=2_000, stall_ms=100, persist_ms=1_000)


def market(
    *supply: tuple[int, int | None],
    end: int = 12 * H,
    start: int = 0,
    reclaims: tuple[Reclaim, ...] = (),
    notice: int = 120_000,
    on_demand: int | None = 3_000_000,
    minimum: int = 0,
) -> Trace:
    sold = () if on_demand is None else (Step(start, on_demand),)
    steps = tuple(Step(t, v) for t, v in supply)
    record = PoolTrace(
        POOL,
        steps,
        (Step(start, 1_000_000),),
        sold,
        reclaims,
        notice,
        minimum_billing_ms=minimum,
    )
    return Trace("t", Semantics.SUPPLY, start, end, {POOL: record})


def job(nodes: int = 4, *, floor: float | None = None, **terms: Any) -> Job:
    terms.setdefault("work", Work(step_ms=1_000))
    terms.setdefault("forecaster", "gamma_poisson")
    throughput = Throughput(nodes if floor is None else floor, nodes)
    return Job("j", nodes, (POOL,), throughput, policy="greedy", **terms)


def run(trace: Trace, a_job: Job | None = None, **terms: Any) -> Outcome:
    terms.setdefault("model", EXACT)
    return simulate(a_job or job(), trace, keep_events=True, **terms)


def of(outcome: Outcome, kind: type[Event]) -> list[Any]:
    return [e for e in outcome.events if isinstance(e, kind)]


def test_calm_market_trains_at_full_speed_and_bills_what_was_held() -> None:
    outcome = run(market((0, 8), end=H))
    # 60 s boot, 0.3 s batch, 2 s re-forming; then a step a second, less 0.1 s a save.
    assert outcome.summary["steps"] == pytest.approx(3600 - 62, abs=12)
    assert outcome.bill.spot == 4 * 1_000_000
    assert outcome.goodput.share == pytest.approx(1 - 63.3 / 3600, abs=0.01)


def test_summary_follows_from_the_events_alone() -> None:
    outcome = run(market((0, 8), (2 * H, 0), (4 * H, 8)))
    assert summary(job(), outcome.events) == outcome.summary


def test_events_are_a_legal_history_and_end_with_no_vm_held() -> None:
    outcome = run(market((0, 8), (2 * H, 1), (4 * H, 8), reclaims=(Reclaim(H, 2, 0),)))
    state = State()
    for event in outcome.events:
        state = apply(state, event)
    assert len(state.fleet) == 0
    assert state.outcome == "stopped"
    assert state.progress.steps_done == outcome.summary["steps"]


def test_notice_long_enough_loses_no_step() -> None:
    outcome = run(market((0, 8), reclaims=(Reclaim(H, 1),)))
    assert (outcome.counts.notice, outcome.counts.silent, outcome.counts.lost_steps) == (1, 0, 0)
    saved = [e for e in of(outcome, CheckpointCommitted) if e.emergency]
    assert len(saved) == 1
    assert saved[0].margin_ms > 100_000


def test_silent_loss_of_a_replica_costs_a_pause_and_not_a_roll_back() -> None:
    outcome = run(market((0, 8), reclaims=(Reclaim(H, 1, 0),)))
    assert (outcome.counts.silent, outcome.counts.lost_steps) == (1, 0)
    assert outcome.summary["recovery_s"] == [pytest.approx(3.3, abs=0.4)]


def test_silent_loss_of_a_shard_goes_back_to_the_last_checkpoint() -> None:
    sharded = replace(EXACT, replicated=False)
    outcome = run(market((0, 8), reclaims=(Reclaim(H, 1, 0),)), model=sharded)
    interval = max(b.begun_ms - a.begun_ms for a, b in _pairs(of(outcome, CheckpointCommitted)))
    assert 0 < outcome.counts.lost_steps <= interval / 1000 + 3
    assert len(of(outcome, RestoreDone)) == 1


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    return list(pairwise(items))


def test_loss_of_everything_restores_and_loses_no_more_than_an_interval() -> None:
    trace = market((0, 8), (H, 0), (H + 600_000, 8), notice=0, on_demand=None)
    rule = IntervalRule(fixed_ms=120_000)
    outcome = run(trace, job(floor=0, interval=rule))
    assert outcome.counts.silent == 4
    assert 0 < outcome.counts.lost_steps <= 124
    assert outcome.goodput.badput.waiting > 600_000
    assert outcome.goodput.badput.restore == 5_000


def test_notice_too_short_for_a_save_loses_work_though_it_was_given() -> None:
    slow = replace(EXACT, persist_ms=60_000)
    rule = IntervalRule(fixed_ms=1_800_000)
    trace = market((0, 8), (H, 0), (2 * H, 8), notice=30_000, on_demand=None)
    lost = run(trace, job(floor=0, interval=rule), model=slow)
    kept = run(trace, job(floor=0, interval=rule))
    assert lost.counts.lost_steps > 1_000
    assert kept.counts.lost_steps < 40


def test_drought_brings_on_demand_and_its_end_a_return() -> None:
    outcome = run(market((0, 8), (2 * H, 0), (4 * H, 8)))
    counts = outcome.counts
    assert (counts.on_demand_fallbacks, counts.returns_to_spot) == (1, 1)
    assert outcome.bill.on_demand > 0
    assert outcome.goodput.share is not None
    assert outcome.goodput.share > 0.98


def test_work_that_is_done_ends_the_run_with_a_final_checkpoint_and_no_save_before_it() -> None:
    limited = job(work=Work(total_steps=101, step_ms=1_000))
    outcome = run(market((0, 8)), limited)
    saves = of(outcome, CheckpointCommitted)
    assert outcome.result == "done"
    assert outcome.summary["steps"] == 101
    assert saves[-1].step == 101
    assert saves[0].step > 0
    assert [e.outcome for e in of(outcome, RunEnded)] == ["done"]
    assert outcome.end_ms < 200_000


def test_same_seed_gives_the_same_events_and_another_seed_others() -> None:
    """CASES.md 38."""
    trace = market((0, 8), (2 * H, 2), (4 * H, 8), reclaims=(Reclaim(H, 2, 0),))
    model = CostModel(jitter=0.2, lost_notices=0.5, hardware_per_vm_h=0.05)
    first, again, other = (run(trace, model=model, seed=s) for s in (7, 7, 8))
    assert repr(first.events) == repr(again.events)
    assert json.dumps(first.as_dict()) == json.dumps(again.as_dict())
    assert repr(first.events) != repr(other.events)
    assert first.as_dict()["seed"] == 7


def test_leaving_out_the_events_of_quiet_saves_changes_no_figure() -> None:
    trace = market((0, 8), (2 * H, 2), (4 * H, 8), reclaims=(Reclaim(H, 2, 0),))
    told = run(trace, seed=3)
    quiet = simulate(job(), trace, model=EXACT, seed=3)
    assert quiet.events == ()
    assert quiet.events_seen < told.events_seen
    assert quiet.summary == told.summary


def test_gap_is_unknown_and_not_available() -> None:
    """CASES.md 31."""
    trace = market((0, 8), (H, None), (3 * H, 8), end=4 * H, on_demand=None)
    outcome = run(trace, job(floor=0))
    assert outcome.unknown_share == pytest.approx(0.5)
    assert outcome.counts.silent == outcome.counts.notice == 0  # held VMs are not known to be lost
    late = run(trace, job(floor=0), start_ms=H + 1)
    assert not [e for e in of(late, GroupFormed) if e.at_ms < 3 * H]


def test_trace_may_begin_at_any_instant_and_the_job_before_its_first_sample() -> None:
    """CASES.md 32."""
    begin = 1_700_000_000_000
    late = market((begin + 50_000, 8), start=begin, end=begin + H)
    outcome = run(late)
    assert outcome.summary["steps"] > 3000
    assert min(e.at_ms for e in outcome.events) == begin


def test_trace_of_one_row_runs_and_an_empty_one_is_refused() -> None:
    """CASES.md 32."""
    assert run(market((0, 8), end=H)).summary["steps"] > 0
    with pytest.raises(ValueError, match="ends before it starts"):
        market((0, 8), end=0)


def test_start_outside_of_the_trace_and_negative_horizon_are_refused() -> None:
    """CASES.md 36."""
    with pytest.raises(ValueError, match="not within trace"):
        run(market((0, 8)), start_ms=-1)
    with pytest.raises(ValueError, match="horizon must be 0 or more"):
        run(market((0, 8)), horizon_ms=-1)


def test_horizon_of_zero_is_an_empty_report_with_null_ratios() -> None:
    """CASES.md 36."""
    outcome = run(market((0, 8)), horizon_ms=0)
    body = json.dumps(outcome.as_dict(), allow_nan=False)
    assert json.loads(body)["goodput"] is None
    assert (outcome.bill.total, outcome.summary["steps"]) == (0, 0)


def test_horizon_shorter_than_a_step_does_no_step() -> None:
    """CASES.md 36."""
    assert run(market((0, 8)), horizon_ms=400).summary["steps"] == 0


def test_job_of_no_steps_is_done_at_once() -> None:
    """CASES.md 36."""
    outcome = run(market((0, 8)), job(work=Work(total_steps=0)))
    assert (outcome.result, outcome.bill.total) == ("done", 0)


def test_job_of_no_nodes_does_nothing_and_ends() -> None:
    """CASES.md 36."""
    outcome = run(market((0, 8), end=H), job(0))
    assert (outcome.result, outcome.summary["steps"], outcome.bill.total) == ("stopped", 0, 0)


def test_preemption_at_the_first_instant_is_survived() -> None:
    trace = market((0, 8), (1, 0), (H, 8), end=2 * H, notice=0, on_demand=None)
    outcome = run(trace, job(floor=0))
    assert outcome.counts.silent == 4
    assert outcome.summary["steps"] > 3_000


def test_two_hundred_preemptions_on_one_stamp_with_free_restarts_end() -> None:
    """CASES.md 35."""
    free = CostModel(0, 0, 0, 0, 0, restore_ms=0, jitter=0.0, batch_ms=0)
    reclaims = tuple(Reclaim(1_000_000, 1, 0) for _ in range(200))
    outcome = run(market((0, 400), reclaims=reclaims, end=1_100_000), job(300), model=free)
    assert outcome.counts.silent == 200
    assert outcome.summary["steps"] > 1_000


def test_vms_that_never_live_for_a_step_end_with_no_progress_possible() -> None:
    """CASES.md 35."""
    steps = [(t, 8 * (t % 2000 == 0)) for t in range(0, 40_000_000, 1_000)]
    trace = market(*steps, notice=0, on_demand=None, end=40_000_000)
    eager = CostModel(boot_ms=60_000, jitter=0.0, backoff_ms=0, backoff_limit_ms=0)
    outcome = simulate(job(floor=0), trace, policy=Eager(), model=eager)
    assert outcome.result == "failed"
    assert "no progress possible" in outcome.message


class Eager:
    """Asks for eight spot VMs whenever it holds none, every second."""

    name = "eager"

    def decide(self, job: Job, seen: Observation, forecast: object) -> Plan:
        wish = () if len(seen.state.fleet) else (Launch(POOL, Capacity.SPOT, 8),)
        return Plan(wish, "eager", revisit_at_ms=seen.now_ms + 1_000)


@pytest.mark.parametrize("name", ["reform_ms", "persist_ms", "hardware_per_vm_h", "lost_notices"])
@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_negative_and_nan_figures_of_the_model_are_refused_by_name(name: str, bad: float) -> None:
    """CASES.md 39: refused by name before anything is drawn, whatever the seed."""
    with pytest.raises(ValueError, match=name):
        CostModel(**{name: bad})


def test_hardware_failures_come_at_the_rate_of_the_model_and_are_no_preemptions() -> None:
    failing = replace(EXACT, hardware_per_vm_h=0.5)
    outcome = run(market((0, 8), end=100 * H), model=failing)
    gone = Counter(e.ending for e in of(outcome, InstanceGone))
    assert 120 < gone[Ending.HARDWARE] < 280
    assert outcome.counts.silent == 0


def test_budget_ends_the_run_before_it_is_overspent() -> None:
    limited = job(limits=Limits(budget_micro_usd=5_000_000))
    outcome = run(market((0, 8)), limited)
    assert outcome.result in ("refused", "stopped")
    assert outcome.bill.total <= 5_000_000


def test_price_cap_under_the_market_buys_nothing() -> None:
    capped = job(limits=Limits(max_price_micro_usd_h=10_000))
    outcome = run(market((0, 8), end=H), capped)
    assert outcome.bill.total == 0
    assert not of(outcome, InstanceRequested)


def test_minimum_billing_is_paid_for_short_lives() -> None:
    trace = market((0, 1), end=60_000, minimum=H)
    assert run(trace, job(1)).bill.spot == 1_000_000


def test_doubling_the_fleet_halves_the_time_with_a_linear_curve() -> None:
    times = []
    for nodes in (4, 8):
        work = Work(total_steps=1_000, step_ms=8_000 // nodes)
        outcome = run(market((0, 8)), job(nodes, work=work))
        times.append(outcome.end_ms - 62_300)
    assert times[0] == pytest.approx(2 * times[1], rel=0.01)


def test_nobody_is_told_before_being_launched_and_told_vms_leave_in_time() -> None:
    trace = market((0, 8), *((t * H // 2, 8 - 7 * (t % 2)) for t in range(1, 20)))
    outcome = run(trace)
    launched = {e.token: e.at_ms for e in of(outcome, InstanceRequested)}
    told = of(outcome, NoticeReceived)
    assert told
    assert all(e.at_ms >= launched[e.token] for e in told)
    assert outcome.counts.lost_steps == 0


def test_a_told_vm_that_leaves_early_is_not_replaced_as_the_reclaims_victim() -> None:
    trace = market((0, 4), reclaims=(Reclaim(H, 1),))
    world = World(Replay(trace), trace.end_ms)
    for i in range(3):
        assert world.launch(f"vm-{i}", POOL, Capacity.SPOT, i)
    told, _ = world.due(H - 60_000)
    assert [d.token for _, d in told] == ["vm-0"]
    world.tell(told[0][1])
    world.drop("vm-0", POOL)
    assert world.due(H) == ([], [])
    assert world.next_ms(H) is None


def test_months_of_simulated_time_accumulate_no_drift() -> None:
    steady = job(work=Work(step_ms=333), interval=IntervalRule(fixed_ms=H))
    outcome = simulate(steady, market((0, 8), end=30 * 24 * H), model=EXACT)
    saves = outcome.counts.checkpoints
    expected = (30 * 24 * H - 62_300 - 100 * saves) / 333
    assert outcome.summary["steps"] == pytest.approx(expected, abs=20)
    assert outcome.bill.spot == 4 * 30 * 24 * 1_000_000
