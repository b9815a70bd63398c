"""Traps of trace replays that others fell into, whole: from the file to the outcome (CASES.md)."""

from __future__ import annotations

import itertools
import json
import random
import warnings
from pathlib import Path

import pytest

from surefoot.core.job import Job, Throughput, Work
from surefoot.core.market import Pool
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.sim import simulate
from surefoot.traces import read_trace
from surefoot.traces.rows import TraceError

POOL = Pool("local", "here", "a", "small")
HEAD = "t_s,pool,count,spot_usd_h\n"


def job(trace: Trace, nodes: int = 1) -> Job:
    return Job(
        "case",
        nodes,
        tuple(trace.pools),
        Throughput(0, nodes),
        work=Work(step_ms=1_000),
        policy="spot-only",
        forecaster="gamma_poisson",
    )


def read(path: Path, text: str) -> Trace:
    path.write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_trace(path)


def test_case_31_uneven_gaps_are_weighed_by_time_and_told_as_unknown(tmp_path: Path) -> None:
    """CASES.md 31: gaps of 600 to 90,000 s, in any order of the rows."""
    gaps = [600, 600, 610, 600, 3_900, 600, 600, 90_000, 600, 600]
    rows = [f"{t},{POOL},2,0.3" for t in itertools.accumulate(gaps, initial=0)]
    straight = read(tmp_path / "a.csv", HEAD + "\n".join(rows) + "\n")
    random.Random(5).shuffle(rows)
    mixed = read(tmp_path / "b.csv", HEAD + "\n".join(rows) + "\n")
    outcomes = [simulate(job(t), t).as_dict() for t in (straight, mixed)]
    assert [o.pop("trace") for o in outcomes] == ["a", "b"]
    assert outcomes[0] == outcomes[1]
    span = straight.end_ms - straight.start_ms
    assert outcomes[0]["unknown_share"] == pytest.approx(
        (90_000 + 3_900 - 2 * 600) * 1000 / span, abs=0.02
    )
    twice = HEAD + f"0,{POOL},2,0.3\n0,{POOL},1,0.3\n600,{POOL},2,0.3\n"
    with pytest.raises(TraceError, match="rows 2 and 3"):
        read(tmp_path / "c.csv", twice)


@pytest.mark.parametrize("bad", ["", "inf", "nan"])
def test_case_33_a_bad_stamp_in_mid_trace_fails_before_the_replay(tmp_path: Path, bad: str) -> None:
    """CASES.md 33: row 2,500 of 5,000 is blank or not finite; the row is named."""
    rows = [f"{600 * i},{POOL},2,0.3" for i in range(5_000)]
    rows[2_498] = f"{bad},{POOL},2,0.3"
    with pytest.raises(TraceError, match=r"2,?500"):
        read(tmp_path / "a.csv", HEAD + "\n".join(rows) + "\n")


def test_case_40_a_thousand_nodes_are_replayed() -> None:
    """CASES.md 40: 12 pools that change every few minutes, a fleet of 1,000 VMs."""
    pools = {}
    for k in range(12):
        pool = Pool("aws", "us-east-1", f"z{k}", "p4d.24xlarge")
        supply = tuple(Step(i * 600_000, 90 + (7 * i + 5 * k) % 11) for i in range(12))
        losses = tuple(Reclaim(i * 3_600_000 + k, 3) for i in range(1, 2))
        prices = ((Step(0, 1_000_000),), (Step(0, 3_000_000),))
        pools[pool] = PoolTrace(pool, supply, *prices, losses)
    trace = Trace("many", Semantics.SUPPLY, 0, 2 * 3_600_000, pools)
    outcome = simulate(job(trace, 1_000), trace)
    body = json.loads(json.dumps(outcome.as_dict(), allow_nan=False))
    assert body["steps"] > 3_000
    assert body["preemptions"]["notice"] > 30
    assert outcome.events_seen > 2_000
