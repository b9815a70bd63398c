"""How long windows and droughts last, how many VMs can be held, and trees behind the same port."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from surefoot.core.forecast import DEFAULT, get_forecaster
from surefoot.core.forecast.mixture import Mixture, MixtureBeliefs
from surefoot.core.forecast.port import Beliefs, Forecast, Hazard
from surefoot.core.forecast.spells import EDGES_H
from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd, PoolTrace, Semantics, Step, Trace
from surefoot.errors import ConfigError
from surefoot.traces.facts import history_of

POOL = Pool("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
OTHER = Pool("aws", "us-west-2", "us-west-2a", "p3.2xlarge")
MINUTE, HOUR = 60_000, 3_600_000


def probed(history: History, pool: Pool, lengths_h: list[float], *, start_open: bool = True) -> int:
    """Try every 5 minutes through windows and droughts of these lengths; return the end."""
    at_ms, is_open = 0, start_open
    for length_h in lengths_h:
        until_ms = at_ms + round(length_h * HOUR)
        while at_ms < until_ms:
            history.tried(pool, at_ms=at_ms, asked=1, granted=int(is_open))
            at_ms += 5 * MINUTE
        is_open = not is_open
    return at_ms


def told(history: History, now_ms: int, pool: Pool = POOL) -> Forecast:
    return get_forecaster(DEFAULT).fit(history, now_ms=now_ms).predict(pool, now_ms=now_ms)


def rest(hazard: Hazard | None, age_h: float) -> float:
    """Expected rest of a spell of this age, hours, up to 100."""
    assert hazard is not None
    grid = np.linspace(0.0, 100.0, 4_001)
    return float(np.trapezoid([hazard.survival(age_h, float(t)) for t in grid], grid))


def test_long_windows_and_short_droughts_are_told_apart() -> None:
    history = History()
    now_ms = probed(history, POOL, [6.0, 0.5] * 12)
    seen = told(history, now_ms)
    assert rest(seen.window, 0.0) > 2 * rest(seen.drought, 0.0)
    assert seen.in_drought
    turned = History()
    seen = told(turned, probed(turned, POOL, [0.5, 6.0] * 12))
    assert rest(seen.drought, 0.0) > 2 * rest(seen.window, 0.0)


def test_a_spell_that_has_lasted_goes_on_lasting_and_its_age_is_told() -> None:
    history = History()
    now_ms = probed(history, POOL, [0.5, 0.5, 3.0, 0.5, 0.25, 0.5, 5.0, 0.5, 4.0])
    seen = told(history, now_ms)
    assert seen.spell_age_h == pytest.approx(4.0, abs=0.2)
    assert not seen.in_drought
    assert rest(seen.window, 4.0) > rest(seen.window, 0.0)


def test_a_pool_without_tries_learns_from_its_siblings_and_a_gap_ends_nothing() -> None:
    steady, restless = History(), History()
    for history, lengths in ((steady, [12.0, 0.5] * 8), (restless, [0.5, 0.5] * 100)):
        end_ms = probed(history, OTHER, lengths)
        assert end_ms == 100 * HOUR
    long, short = (rest(told(h, 100 * HOUR).window, 0.0) for h in (steady, restless))
    assert long > short
    gap = History()
    gap.tried(POOL, at_ms=0, asked=1, granted=1)
    gap.tried(POOL, at_ms=48 * HOUR, asked=1, granted=0)
    seen = told(gap, 48 * HOUR)
    assert seen.spell_age_h <= 1.0, "nobody looked for two days: the drought began who knows when"


def test_spells_counted_step_by_step_are_those_of_one_fit() -> None:
    history, model = History(), get_forecaster(DEFAULT)
    whole = History()
    now_ms = probed(whole, POOL, [1.0, 0.5, 2.0, 0.25])
    beliefs: Beliefs = model.fit(history, now_ms=0)
    for one in whole.of(POOL).launches:
        history.tried(POOL, at_ms=one.at_ms, asked=1, granted=one.granted)
        beliefs = beliefs.update(history, now_ms=one.at_ms)
    at_once = model.fit(whole, now_ms=now_ms)
    a, b = (x.predict(POOL, now_ms=now_ms) for x in (beliefs, at_once))
    for one, other in ((a.window, b.window), (a.drought, b.drought)):
        assert one is not None and other is not None
        assert one.rate_per_h == pytest.approx(other.rate_per_h)
        assert list(one.edges_h) == list(EDGES_H)
    assert json.dumps(beliefs.to_dict())


@pytest.mark.parametrize("semantics", [Semantics.PROBE, Semantics.SUPPLY])
@pytest.mark.parametrize("name", [DEFAULT, "gamma_poisson"])
def test_what_a_probe_grants_is_not_counted_on_top_of_what_is_held(
    semantics: Semantics, name: str
) -> None:
    steps = tuple(Step(i * HOUR, v) for i, v in enumerate([16, 16, 8, 16, 12, 16]))
    trace = Trace("t", semantics, 0, 6 * HOUR, {POOL: PoolTrace(POOL, steps, (), ())})
    history = history_of(trace)
    beliefs = get_forecaster(name).fit(history, now_ms=history.now_ms)
    assert 8 <= beliefs.predict(POOL, now_ms=history.now_ms).holdable <= 16


def test_what_more_is_offered_is_counted_on_top_of_what_is_held() -> None:
    history = History()
    history.born(POOL, "a", at_ms=0)
    history.tried(POOL, at_ms=MINUTE, asked=4, granted=4)
    assert 4 < told(history, MINUTE).holdable <= 5


def lives(hours: int) -> History:
    """One VM after another: those of even pools live long, those of odd ones short."""
    history = History()
    pools = [Pool("aws", f"r{i % 3}", f"z{i}", "t") for i in range(8)]
    events = []
    for i, pool in enumerate(pools):
        at, n = 0, 0
        while at < hours * 60:
            length = 45 + 30 * (n % 3) if i % 2 else 60 * (9 + n % 5)
            events.append((at, pool, f"{i}-{n}", True))
            events.append((at + length, pool, f"{i}-{n}", False))
            at, n = at + length + 5, n + 1
    for at, pool, key, begins in sorted(e for e in events if e[0] <= hours * 60):
        if begins:
            history.born(pool, key, at_ms=at * MINUTE)
        else:
            history.ended(pool, key, at_ms=at * MINUTE, end=LifeEnd.PREEMPTED)
    history.now_ms = hours * HOUR
    return history


def test_trees_answer_once_there_is_history_and_come_back_from_a_reload() -> None:
    pytest.importorskip("lightgbm")
    model = get_forecaster("lightgbm")
    assert isinstance(model, Mixture)
    history = lives(120)
    beliefs = model.fit(history, now_ms=history.now_ms)
    assert isinstance(beliefs, MixtureBeliefs)
    assert beliefs.experts[0].state()["grown"], "there were rows and losses enough"
    good, bad = (
        beliefs.predict(Pool("aws", f"r{i}", f"z{i}", "t"), now_ms=history.now_ms) for i in (0, 1)
    )
    assert good.survival(HOUR, HOUR) > bad.survival(HOUR, HOUR) + 0.1
    body = json.loads(json.dumps(beliefs.to_dict()))
    again = MixtureBeliefs.from_dict(model, body).predict(bad.pool, now_ms=history.now_ms)
    assert again.survival(HOUR, HOUR) == pytest.approx(bad.survival(HOUR, HOUR))


def test_without_the_extra_the_name_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ConfigError, match="not installed") as error:
        get_forecaster("lightgbm")
    assert "surefoot[gbm]" in error.value.hint
    with pytest.raises(ConfigError) as error:
        get_forecaster("lightgmb")
    assert "did you mean 'lightgbm'" in error.value.hint
