"""Recorded live runs (`record.py`): the core decides them the same, the simulator foretells them.

The VMs were network namespaces on one machine. What boots, saves and re-forming cost is taken
from each run's own journal: the simulator is judged, not the machine that the run was made on.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from surefoot.cli import local
from surefoot.config import load_job
from surefoot.controller.store.codec import decode_event
from surefoot.core.account import Account
from surefoot.core.attention import Mind
from surefoot.core.backoff import Backoff
from surefoot.core.decide import Observation
from surefoot.core.event import Decided, Event, State, apply
from surefoot.core.forecast import get_forecaster
from surefoot.core.history import observe
from surefoot.core.job import Job
from surefoot.core.plan import Decision
from surefoot.core.policy import get_policy
from surefoot.core.trace import History, Trace
from surefoot.sim import simulate
from surefoot.sim.model import measured

LIVE = Path(__file__).parent / "live"
SEEDS = sorted(int(path.name.split(".")[0]) for path in LIVE.glob("*.jsonl.gz"))


def recorded(seed: int) -> tuple[Job, Trace, list[Event]]:
    """Return a run's job, market and journal."""
    lines = gzip.decompress((LIVE / f"{seed}.jsonl.gz").read_bytes()).decode().splitlines()
    events = [decode_event(kind, body) for kind, body in map(json.loads, lines)]
    job_file = load_job(LIVE / f"{seed}.job.yaml")
    market = local.read_market(job_file)
    return job_file.terms(market.pools, start_ms=market.start_ms), market, events


def again(job: Job, events: list[Event]) -> list[tuple[Decision, Decision]]:
    """Return (decision in the journal, what the core decides from the facts before it)."""
    mind = Mind(job, get_policy(job.policy), get_forecaster(job.forecaster))
    history, account, state = History(), Account(job), State()
    backoff = Backoff(local.SETTINGS.backoff_ms, local.SETTINGS.backoff_limit_ms)
    found = []
    for event in events:
        if isinstance(event, Decided):
            seen = Observation(
                now_ms=event.at_ms,
                state=state,
                spent_micro_usd=account.bill_at(event.at_ms).total,
                launch_failures=backoff.spot(event.at_ms),
            )
            found.append((event.decision, mind.decide(seen, history)))
        observe(history, event, state)
        backoff.observe(event, state)
        account.add(event)
        state = apply(state, event)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_core_decides_a_recorded_run_the_same_again(seed: int) -> None:
    job, _, events = recorded(seed)
    pairs = again(job, events)
    assert len(pairs) > 10
    for lived, now in pairs:
        assert now.plan.actions == lived.plan.actions, now.plan.reason
        assert now.plan.target == lived.plan.target
        assert now.interval.interval_ms == pytest.approx(lived.interval.interval_ms, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_simulator_foretells_a_recorded_run(seed: int) -> None:
    """Goodput within 5 points and the bill within 10 %, the mean of ten seeds of the dice."""
    job, market, events = recorded(seed)
    account = Account(job)
    for event in events:
        account.add(event)
    live, model = account.summary(), measured(events, otherwise=local.COSTS)
    told = [simulate(job, market, model=model, known=State(), seed=i).summary for i in range(10)]
    goodput = sum(one["goodput"] for one in told) / len(told)
    bill = sum(one["bill_usd"] for one in told) / len(told)
    assert goodput == pytest.approx(live["goodput"], abs=0.05)
    assert bill == pytest.approx(live["bill_usd"], rel=0.10)
