"""`surefoot plan`: what a job would do, take and cost; what cannot be met is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.cli import main as cli
from surefoot.core.forecast import get_forecaster
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.replay import Replay
from surefoot.core.trace import History
from surefoot.report.futures import Drawn, Resampled
from surefoot.report.prospect import quantile
from surefoot.traces import read_trace

POOL = Pool("local", "east", "east-a", "p3.2xlarge")
MARKET = f"""\
duration: 1200s
pools:
  - pool: {POOL}
    supply: {{0s: 2, 300s: 0, 540s: 2}}
    spot: {{0s: 1.00, 600s: 1.10}}
    on_demand: 3.00
    boot: 10s
    notice: 5s
    reclaims: [{{at: 700s, count: 1}}]
"""
JOB = """\
name: gpt
num_nodes: 2
resources: {infra: local}
run: python train.py
steps: 600
step_time: 1s
forecaster: gamma_poisson
local: {trace: market.yaml}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "market.yaml").write_text(MARKET)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> Any:
    assert (
        cli.main(["plan", "job.yaml", "--json", "--futures", "6", "--workers", "1", *more]) == code
    )
    return json.loads(capsys.readouterr().out)


def test_a_plan_tells_pools_first_actions_time_and_cost(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = planned(capsys)
    (pool,) = body["pools"]
    assert (pool["spot_usd_h"], pool["on_demand_usd_h"]) == (1.0, 3.0)
    assert 0 < pool["loss_within_1h"] < 1
    assert body["first"]["actions"] == [f"launch 2 spot in {POOL}"]
    assert "$1.000" in body["first"]["reason"]
    assert 600 < body["finish_s"]["p50"] <= body["finish_s"]["p90"] < 900
    assert body["cost_usd"]["p50"] < body["on_demand_usd"] == pytest.approx(1.0)
    assert body["odds_done"] == 1.0
    assert not (folder / "surefoot-out").exists()
    assert planned(capsys) == body, "the same job gives the same plan"


def test_history_gives_forecasts_that_have_seen_losses(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(capsys)["pools"][0]["observed_losses"] == 0
    seen = planned(capsys, "--history", "market.yaml")["pools"][0]
    assert seen["observed_losses"] >= 2
    assert seen["spot_usd_h"] == 1.1, "the newest price of the record"


@pytest.mark.parametrize(
    ("terms", "wanted", "possible"),
    [
        ("deadline: 9m\n", "deadline cannot be met", "ceiling of 3"),
        ("budget: {total: 0.30}\n", "budget cannot be met: the work costs $0.3333", "540 steps"),
        ("budget: {max_price: 0.50}\n", "nothing can be bought", "max_price"),
    ],
)
def test_terms_that_nothing_can_meet_are_refused_with_what_could(
    folder: Path, terms: str, wanted: str, possible: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.yaml").write_text(JOB + terms)
    error = planned(capsys, code=3)["error"]
    assert error["kind"] == "LimitError"
    assert wanted in error["message"]
    assert possible in error["hint"]


def test_a_deadline_that_every_future_misses_is_refused_after_the_plan_was_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.yaml").write_text(JOB + "deadline: 601s\n")  # no room for a single boot
    assert cli.main(["plan", "job.yaml", "--futures", "4", "--workers", "1"]) == 3
    said = capsys.readouterr()
    assert "deadline binds" in said.out
    assert "missed in all 4 futures" in said.err
    body = planned(capsys, code=3)
    assert body["odds_late"] == 1.0 and body["error"]["kind"] == "LimitError"


def test_resampled_futures_are_made_of_the_record_and_repeat_by_seed(folder: Path) -> None:
    record = read_trace(folder / "market.yaml")
    source = Resampled(record)
    market = source.market(3, start_ms=5_000, length_ms=3_600_000)
    assert market == source.market(3, start_ms=5_000, length_ms=3_600_000)
    assert market != source.market(4, start_ms=5_000, length_ms=3_600_000)
    assert (market.start_ms, market.end_ms) == (5_000, 3_605_000)
    replay = Replay(market)
    moments = range(5_000, 3_605_000, 7_000)
    assert {replay.supply(POOL, t) for t in moments} == {0, 2}
    assert {replay.price(POOL, Capacity.SPOT, t) for t in moments} <= {1_000_000, 1_100_000}


def test_drawn_futures_lose_vms_as_often_as_the_forecast_says() -> None:
    offer = Offering(POOL, Capacity.SPOT, 1_000_000)
    beliefs = get_forecaster("gamma_poisson").fit(History(), now_ms=0)
    forecast = beliefs.predict(POOL, now_ms=0)
    source = Drawn((offer,), {POOL: forecast}, most=4)
    hours = 2_000
    record = source.market(1, start_ms=0, length_ms=hours * 3_600_000).pools[POOL]
    expected = forecast.events_per_h * hours
    assert len(record.reclaims) == pytest.approx(expected, abs=5 * expected**0.5)
    assert {step.value for step in record.supply} == {0, 4}


def test_quantiles_count_runs_that_never_end() -> None:
    values = [3.0, 1.0, 2.0, float("inf")]
    assert [quantile(values, q) for q in (0.25, 0.5, 0.75, 0.9)] == [1.0, 2.0, 3.0, None]
