"""What a gang's state costs on its way to another region: in the bill, and before a move."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_world import USD, forecast, on_demand, seen, spot
from policy_world import vm as vm_of

from surefoot.config import load_job
from surefoot.core.account import Account
from surefoot.core.event import (
    CheckpointCommitted,
    Event,
    GroupFormed,
    InstanceLaunched,
    InstanceRequested,
    RunStarted,
)
from surefoot.core.fleet import CheckpointCost
from surefoot.core.job import Job, Limits, Throughput
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Launch
from surefoot.core.policy.hybrid import Hybrid
from surefoot.errors import ConfigError

EAST, ALSO, WEST = (Pool("aws", r, z, "t") for r, z in (("e", "ea"), ("e", "eb"), ("w", "wa")))
GB = 10**9


def job(price: int) -> Job:
    limits = Limits(egress_micro_usd_gb=price)
    return Job("j", 2, (EAST, ALSO, WEST), Throughput(2, 4), limits)


def vm(token: str, pool: Pool) -> list[Event]:
    return [
        InstanceRequested(0, token, pool, Capacity.SPOT),
        InstanceLaunched(0, token, f"i-{token}"),
    ]


def spent(price: int, *groups: tuple[str, ...], size: int = 20 * GB) -> int:
    account = Account(job(price))
    start: list[Event] = [RunStarted(0, "r"), *vm("a", EAST), *vm("b", ALSO)]
    for event in (*start, *vm("c", WEST), *vm("d", WEST)):
        account.add(event)
    account.add(CheckpointCommitted(1, 1, 0, 1, 1, size_bytes=size))
    for number, members in enumerate(groups, 1):
        account.add(GroupFormed(10 * number, number, members, number))
    assert account.bill.total == account.bill.spot + account.bill.on_demand + account.bill.egress
    return account.bill.egress


def test_each_vm_in_a_region_new_to_the_group_is_sent_one_state() -> None:
    assert spent(20_000, ("a", "b"), ("c", "d")) == 2 * 20 * 20_000
    assert spent(20_000, ("a",), ("a", "c"), ("a", "c", "d")) == 20 * 20_000, "d had a neighbour"
    assert spent(20_000, ("a", "b"), ("c", "d"), ("a", "b")) == 4 * 20 * 20_000, "and back"


def test_the_first_group_a_zone_of_the_same_region_and_no_price_cost_nothing() -> None:
    assert spent(20_000, ("c", "d")) == 0
    assert spent(20_000, ("a",), ("a", "b"), ("b",)) == 0
    assert spent(0, ("a", "b"), ("c", "d")) == 0
    assert spent(20_000, ("a", "b"), ("c", "d"), size=0) == 0, "nothing was measured yet"


def test_a_dear_transfer_keeps_a_gang_where_it_is() -> None:
    """Spot is gone in the east and plentiful in the west: 20 GB a VM decide."""
    vms = [vm_of(f"v{i}", EAST, Capacity.ON_DEMAND) for i in range(2)]
    offers = (on_demand(EAST, 3.0), on_demand(WEST, 3.0), spot(EAST, 1.0, 0), spot(WEST, 0.9, 8))
    world = seen(offers, tuple(vms), save_cost=CheckpointCost(saves=3, size_bytes=20 * GB))
    known = {EAST: forecast(EAST, 0.1, holdable=0.0), WEST: forecast(WEST, 0.02, holdable=8.0)}

    def goes(price: int) -> bool:
        plan = Hybrid().decide(job(price), world, known)
        return any(isinstance(a, Launch) and a.pool == WEST for a in plan.actions)

    assert goes(0)
    assert not goes(100 * USD), "4,000 dollars for the move"


def test_the_price_is_read_from_the_job_file_and_never_below_zero(tmp_path: Path) -> None:
    (tmp_path / "market.yaml").write_text("name: m\n")
    text = "name: a\nnum_nodes: 4\nresources: {infra: local}\nrun: python train.py\n"
    text += "local: {trace: market.yaml}\nbudget: {egress_per_gb: %s}\n"
    path = tmp_path / "job.yaml"
    path.write_text(text % "0.02")
    assert load_job(path).job.limits.egress_micro_usd_gb == 20_000
    path.write_text(text % "-1")
    with pytest.raises(ConfigError, match="egress_per_gb"):
        load_job(path)
