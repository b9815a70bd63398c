"""Properties of the interval formulas over their whole range."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from surefoot.core import interval as theory

costs = st.floats(1e-6, 1e5)
means = st.floats(1e-3, 1e9)
branch = st.floats(-1 / math.e, 1e6)


@given(branch)
def test_lambert_inverts_its_definition(x: float) -> None:
    w = theory.lambert_w0(x)
    assert math.isclose(w * math.exp(w), x, rel_tol=1e-9, abs_tol=1e-12)


@given(costs, means)
def test_exact_interval_is_positive_finite_and_between_its_limits(cost: float, mtbf: float) -> None:
    best = theory.exact(cost, mtbf)
    assert 0 < best <= mtbf * (1 + 1e-12)
    assert best <= theory.young(cost, mtbf) * (1 + 1e-9)


@given(costs, st.floats(1e-9, 1e2), st.floats(1.01, 100))
def test_more_losses_never_lengthen_the_interval(cost: float, rate: float, more: float) -> None:
    few, many = theory.asynchronous(cost, rate), theory.asynchronous(cost, rate * more)
    assert many <= few * (1 + 1e-9)


@given(costs, st.floats(1.01, 100), means)
def test_dearer_saves_never_come_more_often(cost: float, dearer: float, mtbf: float) -> None:
    assert theory.exact(cost * dearer, mtbf) >= theory.exact(cost, mtbf) * (1 - 1e-9)


@given(st.lists(st.tuples(costs, st.floats(0, 1)), min_size=1, max_size=5))
def test_levels_never_come_rarer_than_dearer_ones_behind_them(
    levels: list[tuple[float, float]],
) -> None:
    got = theory.multi_level(levels)
    assert got == sorted(got)


@given(st.integers(0, 500), st.integers(0, 500))
def test_notice_share_is_a_probability(saved: int, unsaved: int) -> None:
    assert 0 < theory.notice_share((saved, saved + unsaved)) < 1
