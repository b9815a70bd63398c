"""Who is in the next generation: the pure rules, where one second decides about lost work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surefoot.controller.membership import Group, Seats, regroup
from surefoot.controller.settings import Settings

SETTINGS = Settings()
FORMING = Group(2, ("old", "new"), announced_ms=0, formed=False, form_by_ms=30_000)
SEATS = Seats(
    {"old": 0, "new": 0}, frozenset({"old"}), frozenset({"old"}), holders=frozenset({"old"})
)


def test_the_only_one_with_the_live_state_stays_until_somebody_else_has_it() -> None:
    assert regroup(FORMING, SEATS, 1_000, SETTINGS) is None
    change = regroup(replace(FORMING, formed=True), SEATS, 1_000, SETTINGS)
    assert change is not None
    assert (change.members, change.left, change.urgent) == (("new",), ("old",), False)


@pytest.mark.parametrize(
    ("seats", "settings"),
    [
        (replace(SEATS, holders=frozenset({"old", "new"})), SETTINGS),
        (replace(SEATS, holders=frozenset()), SETTINGS),
        (SEATS, replace(SETTINGS, by_checkpoint=True)),
    ],
    ids=["another has it", "nobody has any", "it is handed over by checkpoint"],
)
def test_one_whose_time_is_up_leaves_before_the_group_has_formed(
    seats: Seats, settings: Settings
) -> None:
    change = regroup(FORMING, seats, 1_000, settings)
    assert change is not None
    assert (change.members, change.left) == (("new",), ("old",))


def test_the_taking_of_the_one_that_stayed_is_a_loss_like_any_other() -> None:
    change = regroup(FORMING, replace(SEATS, ready={"new": 0}), 2_000, SETTINGS)
    assert change is not None
    assert (change.members, change.lost, change.urgent) == (("new",), ("old",), True)
