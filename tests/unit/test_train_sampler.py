"""The data order is a pure function of seed, epoch and step, and misses nothing."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import ConfigError
from surefoot.train.sampler import DataOrder, mix, permute

SIZES = st.integers(1, 3000)
quick = settings(deadline=None, max_examples=40)


@quick
@given(size=SIZES, seed=st.integers(0, 2**40), epoch=st.integers(0, 50))
def test_permutation_reaches_every_place_once(size: int, seed: int, epoch: int) -> None:
    places = permute(np.arange(size), size, (seed, epoch))
    assert sorted(places.tolist()) == list(range(size))


@quick
@given(
    size=st.integers(1, 400),
    batch=st.integers(1, 64),
    worlds=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    drop_last=st.booleans(),
)
def test_every_sample_counts_once_an_epoch_whatever_the_number_of_workers(
    size: int, batch: int, worlds: list[int], drop_last: bool
) -> None:
    if drop_last and batch > size:
        return
    order = DataOrder(size, batch, seed=7, drop_last=drop_last)
    seen: list[int] = []
    for step in range(order.steps_per_epoch):
        world = worlds[step % len(worlds)]
        shares = [order.share(step, rank, world) for rank in range(world)]
        assert sum(s.weight for s in shares) == pytest.approx(1.0)
        assert max(s.samples for s in shares) - min(s.samples for s in shares) <= 1
        seen += [i for s in shares if s.weight for i in s.ids]
    assert len(seen) == len(set(seen)) == (size // batch * batch if drop_last else size)


def test_epochs_differ_and_seeds_differ() -> None:
    order = DataOrder(1000, 10, seed=1)
    assert order.ids(0).tolist() != order.ids(order.steps_per_epoch).tolist()
    assert order.ids(0).tolist() != DataOrder(1000, 10, seed=2).ids(0).tolist()


def test_order_is_the_same_on_every_machine() -> None:
    assert mix(1, 2, 3) != mix(1, 3, 2)
    assert DataOrder(50, 5, seed=3).ids(0).tolist() == [23, 9, 28, 32, 46]


def test_unshuffled_order_is_the_data_sets_own() -> None:
    order = DataOrder(10, 4, shuffle=False)
    assert [order.ids(s).tolist() for s in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_deep_in_a_huge_epoch_costs_no_fast_forward() -> None:  # case 75
    order = DataOrder(1_000_000_000, 512, seed=1)
    started_s = time.perf_counter()
    ids = order.ids(1_900_000)
    assert time.perf_counter() - started_s < 0.2
    assert len(set(ids.tolist())) == 512


def test_shuffle_leaves_no_trace_of_the_old_order() -> None:
    places = permute(np.arange(20_000), 20_000, (5, 0)).astype(float)
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(places, np.arange(20_000))[0, 1]) < 0.03


def test_refuses_data_that_hold_no_step() -> None:
    with pytest.raises(ConfigError, match="holds no step"):
        DataOrder(0, 4)
    with pytest.raises(ConfigError, match="drop_last"):
        DataOrder(3, 4, drop_last=True)
