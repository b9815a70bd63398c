"""Made-up markets, the clouds' own forms, facts from traces, and the verbs that show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.core.market import Pool
from surefoot.core.trace import History, PoolTrace, Semantics, Step, Trace
from surefoot.errors import TraceError
from surefoot.traces import read_trace
from surefoot.traces.facts import facts_of, history_of
from surefoot.traces.prices import (
    read_catalogue,
    read_gcp_history,
    read_spot_advisor,
    tell_bands,
)
from surefoot.traces.synthetic import NAMED, Habits, synthesise

POOL = Pool("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
HOUR = 3_600_000


def trace(values: list[int | None], semantics: Semantics) -> Trace:
    steps = tuple(Step(i * HOUR, v) for i, v in enumerate(values))
    return Trace("t", semantics, 0, len(values) * HOUR, {POOL: PoolTrace(POOL, steps, (), ())})


def test_the_same_seed_gives_the_same_market_and_another_seed_another() -> None:
    habits = Habits(days=3)
    assert synthesise("x", 5, habits) == synthesise("x", 5, habits)
    assert synthesise("x", 5, habits) != synthesise("x", 6, habits)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_made_up_markets_have_the_habits_of_real_ones(name: str) -> None:
    market = synthesise(name, 1)
    for record in market.pools.values():
        counts = [s.value for s in record.supply]
        assert min(c for c in counts if c is not None) == 0, "there are droughts"
        assert all(c is not None and 0 <= c <= NAMED[name].most for c in counts)
        dear = record.on_demand[0].value
        shares = [s.value / dear for s in record.spot]  # type: ignore[operator]
        assert 0.1 < min(shares) <= max(shares) < 1.0


def test_hazard_in_made_up_markets_falls_with_age() -> None:
    facts = facts_of(synthesise("v100-mixed", 2))
    born = {f.key: f.at_ms for f in facts if f.kind == "born"}
    lives = [(f.at_ms - born[f.key]) / HOUR for f in facts if f.kind == "lost"]

    def hazard(begin: float, end: float) -> float:
        inside = sum(min(x, end) - begin for x in lives if x > begin)
        return sum(begin < x <= end for x in lives) / inside

    assert hazard(0, 0.5) > 4 * hazard(4, 24)


def test_a_count_that_falls_loses_the_youngest_and_a_gap_loses_nobody() -> None:
    history = history_of(trace([2, 3, 1, None, 2], Semantics.POOL))
    ends = {k.split("#")[1]: (v.end_ms, v.end.value) for k, v in history.of(POOL).lives.items()}
    assert ends["3"] == (2 * HOUR, "preempted")
    assert ends["2"] == (2 * HOUR, "preempted")
    assert ends["1"] == (3 * HOUR, "censored")


def test_probes_become_tries_and_held_vms_only_refused_relaunches() -> None:
    probes = history_of(trace([1, 0, 1], Semantics.PROBE)).of(POOL).launches
    assert [(t.asked, t.granted) for t in probes] == [(1, 1), (1, 0), (1, 1)]
    held = history_of(trace([2, 1], Semantics.POOL)).of(POOL).launches
    assert [(t.asked, t.granted) for t in held] == [(2, 2), (1, 0)]


def test_reads_interruption_bands_and_tells_them_to_a_history(tmp_path: Path) -> None:
    path = tmp_path / "advisor.json"
    body = {"spot_advisor": {"us-east-1": {"Linux": {"p3.2xlarge": {"s": 70, "r": 3}}}}}
    path.write_text(json.dumps(body))
    history = History()
    tell_bands(history, read_spot_advisor(path), [POOL])
    assert history.of(POOL).signals[0].value == 3.0
    body["spot_advisor"]["us-east-1"]["Linux"]["p3.2xlarge"]["r"] = 9
    path.write_text(json.dumps(body))
    with pytest.raises(TraceError, match=r"0\.\.4"):
        read_spot_advisor(path)


def test_reads_gcp_prices_and_preemption_rates_per_vm_hour(tmp_path: Path) -> None:
    span = {"startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T10:00:00Z"}
    path = tmp_path / "gcp.json"
    path.write_text(
        json.dumps(
            {
                "priceHistory": [{"interval": span, "listPrice": {"units": "1", "nanos": 5e8}}],
                "preemptionHistory": [{"interval": span, "preemptionRate": 0.2}],
            }
        )
    )
    prices, signals = read_gcp_history(path, POOL)
    assert prices[0].value == 1_500_000
    assert signals[0].value == pytest.approx(0.02)


def test_reads_a_catalogue_and_names_the_row_of_a_bad_price(tmp_path: Path) -> None:
    path = tmp_path / "vms.csv"
    head = "InstanceType,Price,SpotPrice,Region,AvailabilityZone\n"
    path.write_text(head + "p3.2xlarge,3.06,0.92,us-east-1,us-east-1a\n")
    assert read_catalogue(path, "aws")[POOL] == (3_060_000, 920_000)
    path.write_text(head + 'p3.2xlarge,"3,06",0.92,us-east-1,us-east-1a\n')
    with pytest.raises(TraceError, match="row 2"):
        read_catalogue(path, "aws")


def test_the_verbs_make_show_convert_and_forecast_a_market(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "calm.parquet"
    assert main(["traces", "synth", "calm", "--out", str(file), "--seed", "3"]) == 0
    assert len(read_trace(file).pools) == 9
    capsys.readouterr()
    assert main(["traces", "show", str(file), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["pools"]) == 9
    figure = tmp_path / "f.png"
    words = ["forecast", "--history", str(file), "--model", "ewma", "--figure", str(figure)]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["pools"]
    costs = [row["useful_usd_h"] for row in rows]
    assert costs == sorted(costs)
    assert all(0 < row["loss_odds"] < 1 and row["why"] for row in rows)
    assert figure.stat().st_size > 1_000
    assert main(["traces", "list", "--json"]) == 0
    assert main(["traces", "fetch", "aws-prices"]) == 0
    assert main(["traces", "fetch", "nowhere"]) == 2
    assert main(["traces", "synth", "nowhere"]) == 2
    assert main(["forecast", "--horizon", "soon", "--history", str(file)]) == 2
    assert main(["forecast", "a/b", "--history", str(file)]) == 2


def test_score_backtests_a_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{i * 600},{0 if i % 7 == 0 else 2}" for i in range(400)]
    path = tmp_path / "h.csv"
    path.write_text("t_s,count\n" + "\n".join(rows))
    words = ["forecast", "score", "--history", str(path), "--model", "ewma", "--json"]
    assert main(words) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["guesses"] > 50
    assert len(body["days"]) >= 2
