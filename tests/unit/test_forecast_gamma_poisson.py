"""The first model: rates with forgetting and a prior, launch odds that follow the newest try."""

from __future__ import annotations

import json
import math

import pytest

from surefoot.core.forecast import FORECASTERS, Forecast, get_forecaster
from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd
from surefoot.errors import ConfigError

POOL = Pool("aws", "us-east-1", "a", "p3.2xlarge")
HOUR = 3_600_000


def forecast(history: History, now_ms: int, name: str = "gamma_poisson") -> Forecast:
    return get_forecaster(name).fit(history, now_ms=now_ms).predict(POOL, now_ms=now_ms)


def test_every_registered_name_finds_a_model_and_a_wrong_one_names_the_nearest() -> None:
    for name in FORECASTERS:
        assert get_forecaster(name).name == name
    with pytest.raises(ConfigError) as error:
        get_forecaster("mixtur")
    assert "'mixture'" in error.value.hint


def test_a_new_pool_rests_on_the_prior_and_is_finite() -> None:
    seen = forecast(History(), 0)
    assert 0.01 < seen.hazard_at(HOUR) < 2.0
    assert seen.observed_losses == 0
    assert not seen.in_drought
    assert 0 < seen.launch_odds < 1
    assert math.isfinite(seen.holdable)


def test_hours_without_a_loss_lower_the_rate_and_its_upper_bound() -> None:
    history = History()
    for i in range(40):
        history.born(POOL, f"v{i}", at_ms=0)
    highs, rates = [], []
    for hours in (1, 5, 20):
        seen = forecast(history, hours * HOUR)
        highs.append(seen.hazard_high)
        rates.append(seen.hazard_at(HOUR))
    assert highs[0] > highs[1] > highs[2] > 0
    assert rates[0] > rates[1] > rates[2] > 0
    assert "no events seen" in seen.notes[0]


def test_learns_a_rate_of_seconds_from_a_handful_of_losses() -> None:
    history = History()
    for i in range(9):
        history.born(POOL, f"v{i}", at_ms=i * 20_000)
        history.ended(POOL, f"v{i}", at_ms=(i + 1) * 20_000, end=LifeEnd.PREEMPTED)
    rate = forecast(history, 180_000).hazard_at(0)
    assert 90 < rate < 300, "180 an hour were seen"


def test_the_newest_try_rules_the_launch_odds_within_seconds() -> None:
    history = History()
    for second in range(20):
        history.tried(POOL, at_ms=second * 1000, asked=1, granted=1)
    assert forecast(history, 20_000).launch_odds > 0.85
    history.tried(POOL, at_ms=21_000, asked=1, granted=0)
    refused = forecast(history, 21_000)
    assert refused.in_drought and refused.launch_odds < 0.3
    history.tried(POOL, at_ms=24_000, asked=5, granted=5)
    again = forecast(history, 24_000)
    assert not again.in_drought and again.launch_odds > 0.7


def test_an_old_refusal_fades_towards_the_long_run() -> None:
    history = History()
    for hour in range(50):
        history.tried(POOL, at_ms=hour * HOUR, asked=1, granted=1)
    history.tried(POOL, at_ms=50 * HOUR, asked=1, granted=0)
    soon, later = forecast(history, 50 * HOUR), forecast(history, 60 * HOUR)
    assert soon.launch_odds < 0.3
    assert later.launch_odds > 0.8
    assert not later.in_drought


def test_losses_within_three_minutes_are_one_pool_event_that_takes_a_share() -> None:
    history = History()
    for i in range(8):
        history.born(POOL, f"v{i}", at_ms=0)
    for i in range(8):
        history.ended(POOL, f"v{i}", at_ms=10 * HOUR + i * 20_000, end=LifeEnd.PREEMPTED)
    seen = forecast(history, 11 * HOUR)
    assert seen.observed_losses == 8
    assert seen.events_per_h < 0.25, "one event in ten hours, not eight"
    assert seen.event_share > 0.6


def test_facts_that_come_late_count_as_if_they_had_come_in_time() -> None:
    straight, late = History(), History()
    for i in range(20):
        straight.born(POOL, f"v{i}", at_ms=0)
        late.born(POOL, f"v{i}", at_ms=0)
        late.ended(POOL, f"v{i}", at_ms=5 * HOUR, end=LifeEnd.CENSORED)
    for i in range(20):
        straight.ended(POOL, f"v{i}", at_ms=5 * HOUR, end=LifeEnd.CENSORED)
    one, other = forecast(straight, 5 * HOUR), forecast(late, 5 * HOUR)
    assert one.hazard_at(HOUR) == pytest.approx(other.hazard_at(HOUR), rel=0.1)


def test_released_vms_are_exposure_and_no_loss() -> None:
    history = History()
    for i in range(20):
        history.born(POOL, f"v{i}", at_ms=0)
        history.ended(POOL, f"v{i}", at_ms=5 * HOUR, end=LifeEnd.CENSORED)
    seen = forecast(history, 5 * HOUR)
    assert seen.observed_losses == 0
    assert seen.hazard_at(HOUR) < 0.03


def test_updating_bit_by_bit_gives_what_one_fit_gives() -> None:
    history, model = History(), get_forecaster("gamma_poisson")
    beliefs = model.fit(history, now_ms=0)
    for i in range(30):
        at_ms = i * 1_800_000
        history.tried(POOL, at_ms=at_ms, asked=1, granted=i % 3 > 0)
        history.born(POOL, f"v{i}", at_ms=at_ms)
        if i % 2:
            history.ended(POOL, f"v{i - 1}", at_ms=at_ms + 60_000, end=LifeEnd.PREEMPTED)
        beliefs = beliefs.update(history, now_ms=at_ms + 60_000)
    now_ms = history.now_ms + HOUR
    one, other = beliefs.predict(POOL, now_ms=now_ms), forecast(history, now_ms)
    assert one.hazard_at(0) == pytest.approx(other.hazard_at(0))
    assert one.launch_odds == pytest.approx(other.launch_odds)
    assert one.events_per_h == pytest.approx(other.events_per_h)


def test_beliefs_are_json_able_and_older_beliefs_stay_as_they_were() -> None:
    history, model = History(), get_forecaster("gamma_poisson")
    history.born(POOL, "a", at_ms=0)
    before = model.fit(history, now_ms=0)
    text = json.dumps(before.to_dict())
    history.ended(POOL, "a", at_ms=HOUR, end=LifeEnd.PREEMPTED)
    before.update(history, now_ms=HOUR)
    assert json.dumps(before.to_dict()) == text
