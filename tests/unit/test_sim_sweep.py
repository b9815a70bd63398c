"""A sweep: the same rows for any number of workers, and none computed twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from surefoot.core.job import Job, Limits, Throughput, Work
from surefoot.core.market import Pool
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.errors import ConfigError
from surefoot.sim import sweep as module
from surefoot.sim.sweep import Point, grid, sweep

POOL = Pool("local", "here", "a", "small")
H = 3_600_000


def trace(name: str, drought_h: int) -> Trace:
    steps = (Step(0, 4), Step(H, 0), Step((1 + drought_h) * H, 4))
    record = PoolTrace(POOL, steps, (Step(0, 1_000_000),), (Step(0, 3_000_000),))
    return Trace(name, Semantics.SUPPLY, 0, 12 * H, {POOL: record})


TRACES = {"short": trace("short", 1), "long": trace("long", 4)}
JOB = Job("j", 2, (POOL,), Throughput(2, 2), forecaster="gamma_poisson", work=Work(step_ms=1000))


def points() -> list[Point]:
    return grid({"j": JOB}, TRACES, ["greedy", "on-demand"], starts=2, seeds=2, horizon_ms=3 * H)


def test_grid_is_the_whole_product() -> None:
    found = points()
    assert len(found) == 2 * 2 * 2 * 2
    assert len({p.key for p in found}) == len(found)
    assert {p.start_ms for p in found} == {0, int(4.5 * H)}


def test_rows_are_byte_identical_for_one_and_for_four_workers() -> None:
    """CASES.md 38: whatever the number of workers."""
    alone = json.dumps(sweep(points(), TRACES))
    assert json.dumps(sweep(points(), TRACES, workers=4)) == alone


def test_interrupted_sweep_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sweep(points()[:5], TRACES, out=tmp_path)
    ran: list[str] = []
    one = module._one
    monkeypatch.setattr(module, "_one", lambda p: (ran.append(p.key), one(p))[1])
    told: list[tuple[int, int]] = []
    rows = sweep(points(), TRACES, out=tmp_path, progress=lambda *at: told.append(at))
    assert len(ran) == len(points()) - 5
    assert rows[:5] == first
    assert (told[0], told[-1]) == ((5, 16), (16, 16))
    table = pq.read_table(tmp_path / "results.parquet").to_pylist()
    assert [r["key"] for r in table] == [p.key for p in points()]


def test_deadline_counts_from_each_start_and_misses_are_told() -> None:
    work = Work(total_steps=2_000, step_ms=1_000)
    limits = (Limits(deadline_ms=H), Limits(deadline_ms=10 * 60_000))
    jobs = [replace(JOB, limits=x, work=work) for x in limits]
    rows = sweep([Point(j, "short", "on-demand", 3 * H) for j in jobs], TRACES)
    assert [r["missed_deadline"] for r in rows] == [False, True]


def test_unknown_trace_and_engine_are_refused() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        sweep([Point(JOB, "nowhere", "greedy", 0)], TRACES)
    with pytest.raises(ConfigError, match="dask"):
        sweep([], TRACES, engine="dask")


def test_a_sweep_over_ray_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    some = points()[:4]
    alone = json.dumps(sweep(some, TRACES))
    assert json.dumps(sweep(some, TRACES, workers=1, engine="ray")) == alone


def test_rows_tell_the_time_below_the_floor() -> None:
    spot = Job("j", 2, (POOL,), Throughput(2, 2), policy="spot-only", work=Work(step_ms=1000))
    row = sweep([Point(spot, "long", "spot-only", 0, 8 * H)], TRACES)[0]
    assert 3.9 * 3600 < row["floor_broken_s"] < row["floor_short_s"] < 4.1 * 3600
