"""Every event survives the journal's JSON unchanged."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.controller.store.codec import EVENTS, decode_event, encode_event
from surefoot.core.event import CostMeasured, Decided, Event, MetricSeen, OfferingsSeen
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Action, Decision, IntervalChoice, Launch, Plan

text = st.text(max_size=12)
floats = st.floats(allow_nan=False)
pools = st.builds(Pool, text, text, text, text)
launches = st.builds(Launch, pools, st.sampled_from(Capacity), st.integers())
actions = st.one_of(launches, *(st.from_type(cls) for cls in get_args(Action) if cls is not Launch))
plans = st.builds(
    Plan,
    actions=st.lists(actions, max_size=4).map(tuple),
    reason=text,
    revisit_at_ms=st.none() | st.integers(),
    memory=st.dictionaries(text, floats, max_size=3),
    target=st.dictionaries(st.tuples(pools, st.sampled_from(Capacity)), st.integers(), max_size=3),
)
intervals = st.builds(IntervalChoice, st.integers(), text, floats, floats, floats)
decisions = st.builds(Decision, st.integers(), plans, intervals, text, text)
offerings = st.builds(
    Offering, pools, st.sampled_from(Capacity), st.integers(), floats, st.integers()
)
SPECIAL: dict[str, Any] = {
    "Decided": st.builds(Decided, st.integers(), decisions),
    "OfferingsSeen": st.builds(
        OfferingsSeen, st.integers(), st.lists(offerings, max_size=3).map(tuple)
    ),
    "MetricSeen": st.builds(MetricSeen, st.integers(), text, floats, st.integers()),
}
events = st.one_of(
    *(SPECIAL[name] if name in SPECIAL else st.from_type(cls) for name, cls in EVENTS.items())
)


def same(a: object, b: object) -> bool:
    return a == b or (repr(a) == repr(b))


@settings(max_examples=300, deadline=None)
@given(event=events)
def test_every_event_comes_back_exactly(event: Event) -> None:
    kind, body = encode_event(event)
    json.loads(body, parse_constant=lambda bad: pytest.fail(f"{bad} is not JSON"))
    back = decode_event(kind, body)
    assert same(back, event)
    assert type(back) is type(event)


def test_every_kind_of_event_is_known_to_the_journal() -> None:
    assert set(EVENTS) == {cls.__name__ for cls in get_args(Event)}


def test_floats_that_json_cannot_hold_come_back() -> None:
    for value in (math.inf, -math.inf, math.nan):
        back = decode_event(*encode_event(MetricSeen(1, "x", value)))
        assert isinstance(back, MetricSeen)
        assert repr(back.value) == repr(value)


def test_an_older_record_without_a_later_field_takes_the_default() -> None:
    back = decode_event("MetricSeen", '{"at_ms":1,"name":"x","value":2.0,"new_key":7}')
    assert back == MetricSeen(1, "x", 2.0, step=0)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("Unheard", "{}"),
        ("CostMeasured", '{"at_ms":1}'),
        ("CostMeasured", '{"at_ms":"soon","name":"boot_ms","value_ms":1}'),
        ("CostMeasured", "[1,2"),
        ("CostMeasured", "[]"),
        ("OfferingsSeen", '{"at_ms":1,"offerings":[{"pool":["a"]}]}'),
    ],
)
def test_a_record_that_is_not_an_event_is_a_value_error(kind: str, body: str) -> None:
    with pytest.raises(ValueError):
        decode_event(kind, body)


def test_integers_stay_integers() -> None:
    back = decode_event(*encode_event(CostMeasured(2**53 + 1, "boot_ms", 5)))
    assert back == CostMeasured(2**53 + 1, "boot_ms", 5)
