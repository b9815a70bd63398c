"""Whatever happened, forecasts are sane, incremental and free of the future."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.core.forecast import DEFAULT, FORECASTERS, get_forecaster, predict_all
from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd

POOLS = [Pool("aws", f"r{i // 2}", f"z{i}", "t") for i in range(4)]

FACTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["born", "lost", "let go", "granted", "refused"]),
        st.integers(0, 4 * 3_600_000),
    ),
    max_size=60,
)


def told(history: History, facts: list[tuple[int, str, int]], start_ms: int = 0) -> int:
    """Add the facts, each some time after the one before; return the last instant."""
    at_ms, held = start_ms, {p: [] for p in POOLS}
    for n, (i, kind, gap_ms) in enumerate(facts):
        at_ms += gap_ms
        pool = POOLS[i]
        if kind == "born":
            held[pool].append(f"{start_ms}-{n}")
            history.born(pool, held[pool][-1], at_ms=at_ms)
        elif kind in ("lost", "let go") and held[pool]:
            end = LifeEnd.PREEMPTED if kind == "lost" else LifeEnd.CENSORED
            history.ended(pool, held[pool].pop(0), at_ms=at_ms, end=end)
        elif kind in ("granted", "refused"):
            history.tried(pool, at_ms=at_ms, asked=1, granted=int(kind == "granted"))
    return at_ms


@settings(max_examples=40, deadline=None)
@given(facts=FACTS, name=st.sampled_from(sorted(FORECASTERS)))
def test_every_number_is_finite_and_every_chance_is_one(
    facts: list[tuple[int, str, int]], name: str
) -> None:
    history = History()
    now_ms = told(history, facts)
    beliefs = get_forecaster(name).fit(history, now_ms=now_ms)
    for seen in predict_all(beliefs, POOLS, now_ms=now_ms + 60_000).values():
        for age_ms in (0, 600_000, 90_000_000):
            assert 0 < seen.hazard_at(age_ms) < math.inf
            near, far = (seen.survival(age_ms, h) for h in (900_000, 7_200_000))
            assert 0 <= far <= near <= 1
        assert 0 < seen.hazard_low <= seen.hazard_high < math.inf
        assert 0 < seen.launch_odds < 1
        assert 0 < seen.events_per_h < math.inf
        assert 0 < seen.event_share <= 1
        assert 0 < seen.window_h < math.inf


@settings(max_examples=25, deadline=None)
@given(facts=FACTS)
def test_updating_by_and_by_gives_what_one_fit_gives(facts: list[tuple[int, str, int]]) -> None:
    model, by_and_by, at_once = get_forecaster(DEFAULT), History(), History()
    now_ms = told(at_once, facts)
    beliefs = model.fit(by_and_by, now_ms=0)
    for n in range(len(facts)):
        partial = History()
        at_ms = told(partial, facts[: n + 1])
        by_and_by.pools = partial.pools
        beliefs = beliefs.update(by_and_by, now_ms=at_ms)
    whole = model.fit(at_once, now_ms=now_ms)
    for pool in POOLS:
        one, other = (b.predict(pool, now_ms=now_ms + 60_000) for b in (beliefs, whole))
        assert one.survival(0, 3_600_000) == pytest.approx(other.survival(0, 3_600_000), abs=1e-6)
        assert one.launch_odds == pytest.approx(other.launch_odds)
