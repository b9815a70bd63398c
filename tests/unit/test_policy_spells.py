"""Windows and droughts by age: what a policy is told about how long they last."""

from __future__ import annotations

import numpy as np
import pytest
from policy_world import H, pool

from surefoot.core.forecast import get_forecaster
from surefoot.core.forecast.gamma_poisson import GammaPoisson
from surefoot.core.forecast.spells import FOUND_AGE_MS, WithSpells
from surefoot.core.trace import History, LifeEnd

A, B = pool("a"), pool("b")
MODEL = WithSpells(GammaPoisson())
STEP = H // 12


def probed(pattern, history=None, where=A):
    """One try every five minutes: '1' granted, '0' refused."""
    history = history or History()
    for index, char in enumerate(pattern):
        history.tried(where, at_ms=index * STEP, asked=1, granted=int(char))
    return history


def told(history, now_ms, where=A):
    return MODEL.fit(history, now_ms=now_ms).predict(where, now_ms=now_ms)


def test_the_default_model_forecasts_spells():
    belief = get_forecaster("mixture").fit(probed("1110"), now_ms=H)
    seen = belief.predict(A, now_ms=H)
    assert seen.window is not None and seen.drought is not None


def test_the_age_of_a_spell_counts_from_its_first_try():
    pattern = "0" * 6 + "1" * 13
    assert told(probed(pattern), 18 * STEP).spell_age_h == pytest.approx(1.0)


def test_a_spell_that_was_found_going_on_has_an_age_already():
    assert told(probed("1"), 0).spell_age_h == pytest.approx(FOUND_AGE_MS / H)


def test_short_windows_give_a_higher_rate_than_long_ones():
    short = told(probed("1110000" * 40), 280 * STEP)
    long = told(probed(("1" * 60 + "0000") * 5), 320 * STEP)
    assert short.window.rate_per_h[0] > 2 * long.window.rate_per_h[0]
    assert np.all(short.window.rate_per_h > 0)


def test_a_held_vm_keeps_the_window_open_without_tries():
    history = probed("01")
    history.born(A, "vm", at_ms=STEP)
    beliefs = MODEL.fit(history, now_ms=STEP)
    later = beliefs.update(history, now_ms=STEP + 3 * H).predict(A, now_ms=STEP + 3 * H)
    assert later.spell_age_h == pytest.approx(3.0, abs=0.01)
    history.ended(A, "vm", at_ms=STEP + 3 * H, end=LifeEnd.PREEMPTED)
    history.tried(A, at_ms=STEP + 3 * H + STEP, asked=1, granted=0)
    gone = beliefs.update(history, now_ms=5 * H).predict(A, now_ms=5 * H)
    assert gone.in_drought


def test_updates_leave_older_beliefs_as_they_were():
    history = probed("1111000")
    first = MODEL.fit(history, now_ms=H)
    before = first.predict(A, now_ms=H)
    history.tried(A, at_ms=2 * H, asked=1, granted=1)
    first.update(history, now_ms=2 * H)
    assert np.array_equal(first.predict(A, now_ms=H).window.rate_per_h, before.window.rate_per_h)


def test_a_pool_without_history_gets_the_prior_and_siblings_bend_it():
    alone = told(History(), 0, B)
    assert alone.spell_age_h == 0.0 and np.all(np.isfinite(alone.drought.rate_per_h))
    near = told(probed("10" * 100), 200 * STEP, B)
    assert near.window.rate_per_h[0] > alone.window.rate_per_h[0]


def test_many_forecasts_at_once_equal_one_by_one():
    history = probed("110", probed("1010", where=B))
    beliefs = MODEL.fit(history, now_ms=H)
    many = beliefs.predict_many((A, B), now_ms=H)
    for where in (A, B):
        one = beliefs.predict(where, now_ms=H)
        assert np.array_equal(many[where].window.rate_per_h, one.window.rate_per_h)
        assert many[where].spell_age_h == one.spell_age_h
