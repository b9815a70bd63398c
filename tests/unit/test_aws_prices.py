"""What AWS asks for its VMs: never free, never stale, never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from aws_world import FAR, A, B, World, world_in

from surefoot.core.market import Capacity
from surefoot.errors import CapacityError, ConfigError, RetryLaterError
from surefoot.providers.aws.prices import read_price
from surefoot.testing.cloud import Refusal


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_in(tmp_path, monkeypatch) as made:
        yield made


def prices(world: World) -> dict[tuple[object, Capacity], int]:
    return {(o.pool, o.capacity): o.price_micro_usd_h for o in world.aws.offerings()}


def test_spot_and_on_demand_prices_come_from_aws(world: World) -> None:
    found = prices(world)
    assert found[A, Capacity.SPOT] == 40_000 and found[FAR, Capacity.SPOT] == 30_000
    assert found[A, Capacity.ON_DEMAND] == 100_000 and found[FAR, Capacity.ON_DEMAND] == 110_000
    assert all(o.minimum_billing_ms == 60_000 for o in world.aws.offerings())


def test_prices_are_asked_at_a_pace_not_at_every_look(world: World) -> None:
    for _ in range(20):
        world.aws.offerings()
    assert world.cloud.calls.count("DescribeSpotPriceHistory") == 2, "once a region"
    world.time.ahead_ms = 31_000
    world.cloud.sell(A, spot_micro_usd_h=45_000)
    assert prices(world)[A, Capacity.SPOT] == 45_000


def test_a_partial_answer_keeps_the_other_prices_until_they_are_too_old(world: World) -> None:
    prices(world)
    del world.cloud.ec2.pools[B]
    world.time.ahead_ms = 300_000
    assert prices(world)[B, Capacity.SPOT] == 50_000
    assert world.aws.prices.ages_ms()[B] >= 300_000
    world.time.ahead_ms = 601_000
    found = prices(world)
    assert (B, Capacity.SPOT) not in found and found[A, Capacity.SPOT] == 40_000


def test_a_feed_that_fails_for_days_ends_in_an_error_and_not_in_old_prices(world: World) -> None:
    prices(world)
    broken = Refusal("DescribeSpotPriceHistory", "InternalError", times=999, status=500)
    world.cloud.refuse(broken)
    world.time.ahead_ms = 120_000
    assert prices(world)[A, Capacity.SPOT] == 40_000
    assert any("spot prices" in line for line in world.aws.trouble)
    world.time.ahead_ms = 3 * 24 * 3_600_000
    world.cloud.refuse(Refusal("GetProducts", "InternalError", times=99, status=500))
    with pytest.raises(RetryLaterError):
        world.aws.offerings()


@pytest.mark.parametrize("price", [0, -40_000])
def test_nothing_is_free(world: World, price: int) -> None:
    world.cloud.sell(A, spot_micro_usd_h=price)
    assert (A, Capacity.SPOT) not in prices(world)


@pytest.mark.parametrize("text", ["0.0", "-1", "nan", "inf", "", "free", None])
def test_texts_that_are_no_price(text: object) -> None:
    assert read_price(text) is None


def test_without_the_price_list_on_demand_is_not_offered_unless_the_user_says_a_price(
    world: World,
) -> None:
    refused = Refusal("GetProducts", "AccessDeniedException", times=99)
    world.cloud.refuse(refused)
    found = prices(world)
    assert {capacity for _, capacity in found} == {Capacity.SPOT}
    assert any("AccessDenied" in line for line in world.aws.trouble)
    with pytest.raises(CapacityError, match="no price is known"):
        world.ask("t1", capacity=Capacity.ON_DEMAND, max_price_micro_usd_h=10**9)
    told = world.again(on_demand_usd_h={"m5.large": 0.2, "us-west-2/m5.large": 0.3})
    found = prices(told)
    assert found[A, Capacity.ON_DEMAND] == 200_000 and found[FAR, Capacity.ON_DEMAND] == 300_000


def test_the_users_price_goes_before_the_list(world: World) -> None:
    told = world.again(on_demand_usd_h={"m5.large": 0.2})
    assert prices(told)[A, Capacity.ON_DEMAND] == 200_000
    assert "GetProducts" not in world.cloud.calls


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan")])
def test_a_users_price_that_is_none_is_refused(world: World, price: float) -> None:
    with pytest.raises(ConfigError, match="no price"):
        world.again(on_demand_usd_h={"m5.large": price})


def test_a_type_that_is_sold_nowhere_is_named(world: World) -> None:
    with pytest.raises(ConfigError, match=r"p9\.huge"):
        world.again(instance_types=("p9.huge",)).aws.pools()


def test_zones_can_be_chosen(world: World) -> None:
    chosen = world.again(zones=frozenset({"us-east-1b"}))
    assert chosen.aws.pools() == (B,)
