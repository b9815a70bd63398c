"""The pain cases of prediction (CASES.md, "predict" 1 to 11), each as a test of its whole kind."""

from __future__ import annotations

import json
import math
import random
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

from surefoot.core.forecast import DEFAULT, FORECASTERS, Forecast, get_forecaster
from surefoot.core.forecast.mixture import Mixture, MixtureBeliefs
from surefoot.core.forecast.port import Beliefs
from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd
from surefoot.errors import TraceError
from surefoot.traces.backtest import backtest, by_day
from surefoot.traces.facts import facts_from, grow
from surefoot.traces.lifetimes import read_lifetimes
from surefoot.traces.prices import read_aws_prices

POOL = Pool("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
HOUR = 3_600_000
MODELS = sorted(FORECASTERS)


def forecast(history: History, now_ms: int, name: str = DEFAULT) -> Forecast:
    return get_forecaster(name).fit(history, now_ms=now_ms).predict(POOL, now_ms=now_ms)


def sane(seen: Forecast) -> None:
    """Every number is finite, odds are odds, rates are above 0."""
    for age_h in (0.0, 0.3, 5.0, 24.0, 500.0):
        assert 0.0 < seen.hazard_at(round(age_h * HOUR)) < math.inf
        lasting = [seen.survival(round(age_h * HOUR), h * HOUR) for h in (0, 1, 6, 168)]
        assert lasting[0] == pytest.approx(1.0)
        assert all(1.0 >= a >= b >= 0.0 for a, b in pairwise(lasting))
    assert 0.0 < seen.hazard_low <= seen.hazard_high < math.inf
    assert 0.0 < seen.launch_odds < 1.0
    assert 0.0 < seen.window_h < math.inf
    assert 0.0 <= seen.holdable < math.inf
    assert 0.0 < seen.events_per_h < math.inf
    assert 0.0 < seen.event_share <= 1.0


def fleet(hours: list[float], lost: list[bool]) -> History:
    """VMs born at 0 that lived for these hours, one after another in order of their ends."""
    history = History()
    for i in range(len(hours)):
        history.born(POOL, f"v{i}", at_ms=0)
    for i in sorted(range(len(hours)), key=lambda i: hours[i]):
        end = LifeEnd.PREEMPTED if lost[i] else LifeEnd.CENSORED
        history.ended(POOL, f"v{i}", at_ms=round(hours[i] * HOUR), end=end)
    return history


@pytest.mark.parametrize("name", MODELS)
def test_case_1_a_pool_without_a_preemption_has_a_small_finite_rate(name: str) -> None:
    history = History()
    for i in range(40):
        history.born(POOL, f"v{i}", at_ms=i * HOUR // 2)
    seen = [forecast(history, round(20 * HOUR) + h * HOUR, name) for h in (0, 10, 40)]
    for one in seen:
        sane(one)
        assert one.survival(HOUR, 6 * HOUR) > 0.3
        assert "no events seen" in one.notes[0]
    assert seen[0].hazard_high >= seen[1].hazard_high >= seen[2].hazard_high


def test_case_1_beliefs_give_the_same_numbers_after_a_reload() -> None:
    history = fleet([1.0 + i / 2 for i in range(40)], [i % 3 == 0 for i in range(40)])
    now_ms = 30 * HOUR
    model = getattr(get_forecaster(DEFAULT), "base", get_forecaster(DEFAULT))
    assert isinstance(model, Mixture)
    beliefs = model.fit(history, now_ms=now_ms)
    body = json.loads(json.dumps(beliefs.to_dict()))
    again = MixtureBeliefs.from_dict(model, body)
    one, other = (b.predict(POOL, now_ms=now_ms + HOUR) for b in (beliefs, again))
    assert other.survival(HOUR, 6 * HOUR) == pytest.approx(one.survival(HOUR, 6 * HOUR))
    assert other.hazard_high == pytest.approx(one.hazard_high)
    assert other.launch_odds == pytest.approx(one.launch_odds)


def test_case_3_senseless_lifetimes_are_set_aside_with_row_and_reason(tmp_path: Path) -> None:
    rows = [f"{i * 100},{i * 100 + 5000},{i % 2}" for i in range(20)]
    rows[5] = "5000,4000,1"
    rows[7] = "700,,1"
    rows[10] = "nan,9000,0"
    rows[13] = "1300,9000,2"
    path = tmp_path / "lives.csv"
    path.write_text("start_s,end_s,event\n" + "\n".join(rows))
    history, dropped = read_lifetimes(path)
    assert [d.row for d in dropped] == [7, 9, 12, 15]
    assert "before it starts" in dropped[0].why
    assert "needs an end" in dropped[1].why
    assert sum(len(r.lives) for r in history.pools.values()) == 16


def test_case_3_a_table_without_a_usable_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lives.csv"
    path.write_text("start_s,end_s,event\n5,4,1\n")
    with pytest.raises(TraceError, match="no usable row"):
        read_lifetimes(path)


@pytest.mark.parametrize("name", MODELS)
def test_case_4_vms_lost_at_second_zero_raise_the_early_risk(name: str) -> None:
    rest = [1.0 + i / 4 for i in range(26)]
    with_zero = forecast(fleet([0.0] * 4 + rest, [True] * 4 + [False] * 26), 10 * HOUR, name)
    without = forecast(fleet(rest, [False] * 26), 10 * HOUR, name)
    sane(with_zero)
    assert with_zero.hazard_at(0) >= without.hazard_at(0)
    assert with_zero.observed_losses == 4


@pytest.mark.parametrize("name", MODELS)
def test_case_5_late_entry_and_ties_are_finite_and_order_does_not_matter(name: str) -> None:
    def adopted(order: list[int]) -> Forecast:
        history = History()
        for i in order:
            history.born(POOL, f"v{i}", at_ms=0, first_seen_ms=100_000)
        for i in order:
            if i < 2:
                history.ended(POOL, f"v{i}", at_ms=100_000, end=LifeEnd.PREEMPTED)
        for i in order:
            if 2 <= i < 5:
                history.ended(POOL, f"v{i}", at_ms=3 * HOUR, end=LifeEnd.PREEMPTED)
        return forecast(history, 4 * HOUR, name)

    one, other = adopted(list(range(10))), adopted(list(range(9, -1, -1)))
    sane(one)
    assert other.hazard_at(HOUR) == pytest.approx(one.hazard_at(HOUR))


@pytest.mark.parametrize("name", MODELS)
def test_case_6_survival_keeps_falling_past_the_last_observation(name: str) -> None:
    hours = [24.0 * (i + 1) / 1000 for i in range(1000)]
    seen = forecast(fleet(hours, [i % 100 == 0 for i in range(1000)]), 24 * HOUR, name)
    day, week = (seen.survival(0, h * HOUR) for h in (24, 168))
    assert week < day < 1.0
    assert week < 0.97
    assert not seen.extrapolates(0, 23 * HOUR)
    assert seen.extrapolates(0, 168 * HOUR)
    assert seen.seen_to_h == pytest.approx(24.0)
    logs = [[math.log(-math.log(s)) for s in seen.survival_band(0, h * HOUR)] for h in (24, 168)]
    assert logs[1][0] - logs[1][1] > 1.5 * (logs[0][0] - logs[0][1]), "surely less sure"
    low, high = seen.survival_band(0, 168 * HOUR)
    assert low < week < high


def price_page(rows: list[tuple[int, str]]) -> dict[str, object]:
    return {
        "SpotPriceHistory": [
            {
                "AvailabilityZone": "us-east-1a",
                "InstanceType": "p3.2xlarge",
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": price,
                "Timestamp": f"2026-01-{1 + h // 24:02}T{h % 24:02}:00:00Z",
            }
            for h, price in rows
        ]
    }


def test_case_7_a_price_list_gives_one_result_in_any_order_and_paging(tmp_path: Path) -> None:
    rows = [(h, f"0.{300 + h}") for h in range(50)]
    mixed = rows[:]
    random.Random(7).shuffle(mixed)
    layouts = [[rows], [rows[::-1]], [mixed], [rows[30:], rows[15:31], rows[:15]]]
    results = []
    for n, pages in enumerate(layouts):
        paths = []
        for k, page in enumerate(pages):
            paths.append(tmp_path / f"{n}-{k}.json")
            paths[-1].write_text(json.dumps(price_page(page)))
        results.append(read_aws_prices(paths))
    assert all(one == results[0] for one in results)
    steps = results[0][POOL]
    assert len(steps) == 50
    assert steps[-1].value == 349_000, "the newest price is the last"


@pytest.mark.parametrize("price", ["4,2", "nan", "-0.1", "cheap", "inf"])
def test_case_11_a_price_that_is_no_number_is_an_error_with_its_row(
    tmp_path: Path, price: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(price_page([(0, "0.42"), (1, price)])))
    with pytest.raises(TraceError, match="row 1"):
        read_aws_prices([path])


def test_case_9_stamps_with_and_without_a_zone_are_one_clear_error(tmp_path: Path) -> None:
    page = price_page([(0, "0.42"), (1, "0.43")])
    listed = page["SpotPriceHistory"]
    assert isinstance(listed, list)
    listed[1]["Timestamp"] = "2026-01-01T01:00:00"
    path = tmp_path / "p.json"
    path.write_text(json.dumps(page))
    with pytest.raises(TraceError, match="with and without a time zone"):
        read_aws_prices([path])


def stormy_history(seed: int = 10, quiet_days: int = 60) -> tuple[History, int]:
    """Days at 1 loss per 200 node-hours, then 3 days at 1 per 2, with 4 nodes kept."""
    rng = random.Random(seed)
    history, storm_ms = History(), quiet_days * 24 * HOUR
    held = {f"n{i}": 0 for i in range(4)}
    for key in held:
        history.born(POOL, key, at_ms=0)
    made = 4
    for minute in range(10, (quiet_days + 3) * 24 * 60, 10):
        at_ms = minute * 60_000
        rate = 1 / 200 if at_ms < storm_ms else 1 / 2
        for key in list(held):
            if rng.random() < rate / 6:
                history.ended(POOL, key, at_ms=at_ms, end=LifeEnd.PREEMPTED)
                del held[key]
                made += 1
                held[f"n{made}"] = at_ms
                history.born(POOL, f"n{made}", at_ms=at_ms + 1)
    history.now_ms = storm_ms + 3 * 24 * HOUR
    return history, storm_ms


def through_the_storm(history: History, storm_ms: int) -> dict[int, Forecast]:
    """Return the forecasts made at hours from the shift on, each from what was known by then."""
    known, model, seen = History(), get_forecaster(DEFAULT), {}
    facts, done = facts_from(history), 0
    beliefs: Beliefs | None = None
    for hour in (-24, 0, 4, 6, 8, 24, 71):
        now_ms = storm_ms + hour * HOUR
        upto = sum(f.at_ms <= now_ms for f in facts)
        grow(known, facts[done:upto])
        done, known.now_ms = upto, now_ms
        beliefs = (
            beliefs.update(known, now_ms=now_ms) if beliefs else model.fit(known, now_ms=now_ms)
        )
        seen[hour] = beliefs.predict(POOL, now_ms=now_ms)
    return seen


def test_case_10_the_rate_follows_a_storm_within_hours_and_says_so() -> None:
    """The rate goes from 1/200 to 1/2: within 6 h the forecast moves most of the way."""
    stories = [through_the_storm(*stormy_history())]
    stories += [through_the_storm(*stormy_history(seed, quiet_days=12)) for seed in (1, 2, 3)]
    rates = [{h: -math.log(f.survival(HOUR, HOUR)) for h, f in s.items()} for s in stories]
    for one, story in zip(rates, stories, strict=True):
        assert one[-24] < 0.05, rates
        assert any("drift" in n or "storm" in n for n in story[6].notes), story[6].notes
        assert not any("storm" in n for n in story[-24].notes)
        assert max(one[4], one[6], one[8]) > 0.3, rates
    for hour in (6, 8, 24, 71):
        assert 0.3 < sum(one[hour] for one in rates) / len(rates) < 0.8, rates


def test_case_10_the_backtest_gives_a_calibration_table_by_day() -> None:
    history, _ = stormy_history()
    guesses = backtest(history, get_forecaster("ewma"), step_ms=2 * HOUR, first=0.9)
    days = by_day(guesses)
    assert len(days) >= 6
    assert days[-1].foretold > 5 * days[0].foretold
    assert all(0 <= d.lost <= 1 for d in days)


@pytest.mark.parametrize("kept", [1, 0])
def test_case_9_a_price_file_without_zones_is_read_as_utc_with_a_warning(
    tmp_path: Path, kept: int
) -> None:
    """CASES 9: stamps with a zone in one file and none in another: one told assumption, no more."""
    page = price_page([(0, "0.42"), (6, "0.43")])
    listed = page["SpotPriceHistory"]
    assert isinstance(listed, list)
    if not kept:
        for one in listed:
            one["Timestamp"] = one["Timestamp"].removesuffix("Z")
    path = tmp_path / "p.json"
    path.write_text(json.dumps(page))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        steps = read_aws_prices([path])[POOL]
    assert [s.at_ms for s in steps] == [1_767_225_600_000, 1_767_225_600_000 + 6 * HOUR]
    assert len(told) == 1 - kept
    assert all("read as UTC" in str(one.message) for one in told)


@pytest.mark.parametrize("name", MODELS)
def test_case_11_no_price_level_or_noise_lowers_the_risk_in_any_model(name: str) -> None:
    """CASES 11: a pool at ten times its price, and a noisy cheap one: the risk is the same."""
    risks = []
    for prices in ([], [4_200_000] * 9, [420_000 + (-1) ** i * 90_000 for i in range(9)]):
        history = History()
        history.born(POOL, "a", at_ms=0)
        for hour, micro in enumerate(prices):
            history.priced(POOL, at_ms=hour * HOUR, micro_usd_h=micro)
        risks.append(forecast(history, 9 * HOUR, name).survival(HOUR, HOUR))
    assert risks[0] == risks[1] == risks[2] < 1.0


def test_case_11_a_low_price_alone_never_lowers_the_risk() -> None:
    quiet, cheap = History(), History()
    for history in (quiet, cheap):
        history.born(POOL, "a", at_ms=0)
    cheap.priced(POOL, at_ms=0, micro_usd_h=1)
    assert forecast(cheap, HOUR).hazard_at(HOUR) == forecast(quiet, HOUR).hazard_at(HOUR)


def test_a_rebalance_hint_raises_the_risk_by_what_such_hints_are_worth() -> None:
    plain, hinted = History(), History()
    for history in (plain, hinted):
        history.born(POOL, "a", at_ms=0)
        history.ended(POOL, "a", at_ms=HOUR, end=LifeEnd.CENSORED)
        history.born(POOL, "b", at_ms=HOUR)
    hinted.signalled(POOL, at_ms=2 * HOUR, kind="rebalance", value=1)
    before, after = (forecast(h, 2 * HOUR).survival(HOUR, HOUR // 4) for h in (plain, hinted))
    assert 0.6 * before < after < 0.8 * before
    assert forecast(hinted, 4 * HOUR).survival(HOUR, HOUR) > 0.8 * before


def test_interruption_bands_rank_pools_that_were_never_watched() -> None:
    rates = []
    for band in range(5):
        history = History()
        history.born(Pool("aws", "x", "xa", "t"), "other", at_ms=0)
        history.signalled(POOL, at_ms=HOUR, kind="interruption_band", value=float(band))
        rates.append(forecast(history, HOUR).hazard_at(HOUR))
    assert rates == sorted(rates)
    assert rates[-1] > 1.2 * rates[0]


def test_a_good_pool_and_a_bad_pool_are_told_apart_by_every_model_that_can() -> None:
    good, bad = POOL, Pool("aws", "us-west-2", "us-west-2a", "p3.2xlarge")
    history = History()
    for hour in range(120):
        for pool, life in ((good, 100), (bad, 2)):
            if hour % life == 0:
                if hour:
                    history.ended(
                        pool, f"{pool}{hour - life}", at_ms=hour * HOUR, end=LifeEnd.PREEMPTED
                    )
                history.born(pool, f"{pool}{hour}", at_ms=hour * HOUR + 60_000)
    for name in set(MODELS) - {"life_table", "persistence"}:
        beliefs = get_forecaster(name).fit(history, now_ms=120 * HOUR)
        a, b = (beliefs.predict(p, now_ms=120 * HOUR).survival(HOUR, HOUR) for p in (good, bad))
        assert a > b, name
