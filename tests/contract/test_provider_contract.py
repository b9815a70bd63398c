"""What every provider must do, run over all of them: `Rig` is all that a new one has to add."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from surefoot.core.market import Capacity, Pool
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.errors import CapacityError, SurefootError
from surefoot.providers.base import LaunchRequest, Provider, Vm, VmState
from surefoot.providers.local import namespaces
from surefoot.providers.local.provider import LocalProvider
from surefoot.providers.ssh.provider import SshProvider
from surefoot.providers.ssh.settings import SshHost, SshSettings
from surefoot.testing.hosts import SshHosts

SLEEPER = (sys.executable, "-S", "-c", "import time; time.sleep(600)")


@dataclass
class Rig:
    """A provider with a pool that sells two spot VMs, and one that sells none."""

    provider: Provider
    pool: Pool
    dry_pool: Pool
    preempt: Callable[[Vm], None]
    """Makes the cloud take a VM back at once."""
    reopen: Callable[[], Provider]
    """Closes the provider, VMs running on, and gives it as a restarted controller has it."""
    asked: list[str] = field(default_factory=list)

    def ask(self, token: str, **changes: object) -> Vm:
        values: dict[str, object] = {
            "token": token,
            "run": "run-a",
            "pool": self.pool,
            "capacity": Capacity.SPOT,
        }
        vm = self.provider.launch(LaunchRequest(**(values | changes)))  # type: ignore[arg-type]
        return vm

    def now(self, token: str, run: str = "run-a") -> Vm:
        (vm,) = [vm for vm in self.provider.list(run) if vm.token == token]
        return vm

    def wait_for(self, token: str, state: VmState, *, within_s: float = 10.0) -> Vm:
        give_up = time.monotonic() + within_s
        while self.now(token).state is not state and time.monotonic() < give_up:
            time.sleep(0.02)
        vm = self.now(token)
        assert vm.state is state
        return vm


def local_trace() -> tuple[Trace, Pool, Pool]:
    pool = Pool("local", "here", "a", "small")
    dry = Pool("local", "here", "b", "small")
    prices = ((Step(0, 40_000),), (Step(0, 100_000),))
    pools = {
        pool: PoolTrace(pool, (Step(0, 2),), *prices, boot_ms=0),
        dry: PoolTrace(dry, (Step(0, 0),), *prices, boot_ms=0),
    }
    return Trace("contract", Semantics.SUPPLY, 0, 3_600_000, pools), pool, dry


def local_rig(folder: Path, vms: str) -> Iterator[Rig]:
    trace, pool, dry = local_trace()

    def opened() -> LocalProvider:
        return LocalProvider(trace, state_dir=folder, vms=vms, agent=SLEEPER)

    provider = opened()

    def preempt(vm: Vm) -> None:
        provider.reclaim(vm.instance_id)

    def reopen() -> LocalProvider:
        nonlocal provider
        provider.close()
        provider = opened()
        rig.provider = provider
        return provider

    rig = Rig(provider, pool, dry, preempt, reopen)
    yield rig
    provider.close(kill=True)
    assert all(vm.state is VmState.ENDED for vm in provider.list("run-a"))


def aws_rig(folder: Path, vms: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    pytest.importorskip("moto", reason="the fake AWS needs moto[server,ec2] and boto3")
    pytest.importorskip("boto3")
    from surefoot.providers.aws.compute import AwsProvider
    from surefoot.providers.aws.settings import AwsSettings
    from surefoot.testing.cloud import FakeCloud, Sale
    from surefoot.testing.cloud.cloud import CREDENTIALS

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    pool = Pool("aws", "us-east-1", "us-east-1a", "m5.large")
    dry = Pool("aws", "us-east-1", "us-east-1b", "m5.large")
    sales = {pool: Sale(2, 40_000, 100_000), dry: Sale(0, 40_000, 100_000)}
    with FakeCloud(sales, folder=folder, vms=vms) as cloud:
        sleeper = folder / "python"  # finds its address as any VM does; its agent only sleeps
        sleeper.parent.mkdir(exist_ok=True)
        sleeper.write_text(
            f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\nexec sleep 600\n'
        )
        sleeper.chmod(0o700)
        settings = AwsSettings(
            ("us-east-1",),
            ("m5.large",),
            images={"*": "ami-12c6146b"},
            endpoint_url=cloud.endpoint,
            install="true",
            python=str(sleeper),
        )

        def preempt(vm: Vm) -> None:
            cloud.reclaim(vm.instance_id)

        def reopen() -> Provider:
            rig.provider.close()
            rig.provider = AwsProvider(settings)
            return rig.provider

        rig = Rig(AwsProvider(settings), pool, dry, preempt, reopen)
        yield rig
        rig.provider.close()


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(4, folder=tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


def ssh_rig(hosts: SshHosts, folder: Path) -> Iterator[Rig]:
    """The hosts are shared; every test has a state of its own on them."""
    mine = [hosts.of(number, folder.parent.name) for number in range(4)]
    named = [
        SshHost("n0", **mine[0], preemptible=True, usd_h=0.04),
        SshHost("n1", **mine[1], preemptible=True, usd_h=0.04),
        SshHost("n2", **mine[2], usd_h=0.10),
        SshHost("n3", **mine[3], rack="dry", usd_h=0.10),
    ]
    folder.mkdir()
    python = folder / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o700)
    settings = SshSettings(tuple(named), python=str(python), install="true", ssh=hosts.ssh)

    def preempt(vm: Vm) -> None:
        hosts.kill_all(int(vm.instance_id.split("-")[1][1:]))

    def reopen() -> Provider:
        rig.provider.close()
        rig.provider = SshProvider(settings)
        return rig.provider

    rig = Rig(SshProvider(settings), named[0].pool, named[3].pool, preempt, reopen)
    yield rig
    rig.provider.close()
    for number in range(4):
        hosts.kill_all(number)


NO_SSH = pytest.mark.skipif(
    not Path("/usr/sbin/sshd").exists() or shutil.which("ssh") is None,
    reason="needs openssh-server and openssh-client",
)

NEEDS_ROOT = pytest.mark.skipif(
    os.environ.get("SUREFOOT_NO_ROOT_TESTS") == "1" or bool(namespaces.why_not()),
    reason=f"no namespace VMs here: {namespaces.why_not() or 'switched off'}",
)


@pytest.fixture(
    params=[
        "local-process",
        pytest.param("local-namespace", marks=[NEEDS_ROOT, pytest.mark.root]),
        "aws-none",
        pytest.param("aws-namespace", marks=[NEEDS_ROOT, pytest.mark.root]),
        pytest.param("ssh-namespace", marks=[NO_SSH, NEEDS_ROOT, pytest.mark.root]),
    ]
)
def rig(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rig]:
    cloud, _, vms = request.param.partition("-")
    if cloud == "local":
        yield from local_rig(tmp_path / "state", vms)
    elif cloud == "ssh":
        yield from ssh_rig(request.getfixturevalue("ssh_hosts"), tmp_path / "hosts")
    else:
        yield from aws_rig(tmp_path / "cloud", vms, monkeypatch)


def test_its_name_is_the_first_part_of_its_pools(rig: Rig) -> None:
    offerings = rig.provider.offerings()
    assert {o.pool.provider for o in offerings} == {rig.provider.name}


def test_offers_both_capacities_with_prices_above_zero(rig: Rig) -> None:
    offered = {(o.pool, o.capacity): o for o in rig.provider.offerings()}
    assert offered[rig.pool, Capacity.SPOT].price_micro_usd_h > 0
    on_demand = offered[rig.pool, Capacity.ON_DEMAND].price_micro_usd_h
    assert on_demand > offered[rig.pool, Capacity.SPOT].price_micro_usd_h


def test_a_launched_vm_is_listed_under_its_run_with_its_token(rig: Rig) -> None:
    before_ms = time.time_ns() // 1_000_000
    vm = rig.ask("t1")
    seen = rig.now("t1")
    assert seen.instance_id == vm.instance_id
    assert (seen.run, seen.pool, seen.capacity) == ("run-a", rig.pool, Capacity.SPOT)
    assert before_ms - 2_000 <= seen.launched_ms <= time.time_ns() // 1_000_000 + 2_000
    assert rig.wait_for("t1", VmState.RUNNING).address
    assert not seen.preempted and seen.ended_ms is None


def test_runs_do_not_see_each_other(rig: Rig) -> None:
    rig.ask("t1")
    rig.ask("t2", run="run-b")
    assert [vm.token for vm in rig.provider.list("run-a")] == ["t1"]
    assert [vm.token for vm in rig.provider.list("run-b")] == ["t2"]
    assert list(rig.provider.list("run-c")) == []


def test_the_same_token_twice_is_one_vm(rig: Rig) -> None:
    first, second = rig.ask("t1"), rig.ask("t1")
    assert first.instance_id == second.instance_id
    assert len(rig.provider.list("run-a")) == 1


def test_a_token_is_not_taken_for_another_request(rig: Rig) -> None:
    rig.ask("t1")
    with pytest.raises(SurefootError):
        rig.ask("t1", capacity=Capacity.ON_DEMAND)
    assert len(rig.provider.list("run-a")) == 1


def test_two_vms_have_two_ids_and_two_addresses(rig: Rig) -> None:
    rig.ask("t1")
    rig.ask("t2")
    a, b = rig.wait_for("t1", VmState.RUNNING), rig.wait_for("t2", VmState.RUNNING)
    assert a.instance_id != b.instance_id and a.address != b.address


def test_no_capacity_is_a_capacity_error_and_leaves_no_vm(rig: Rig) -> None:
    with pytest.raises(CapacityError):
        rig.ask("t1", pool=rig.dry_pool)
    rig.ask("t2")
    rig.ask("t3")
    with pytest.raises(CapacityError):
        rig.ask("t4")
    assert {vm.token for vm in rig.provider.list("run-a")} == {"t2", "t3"}


def test_on_demand_is_sold_when_spot_is_not(rig: Rig) -> None:
    assert rig.ask("t1", pool=rig.dry_pool, capacity=Capacity.ON_DEMAND).pool == rig.dry_pool


def test_a_price_cap_below_the_price_buys_nothing(rig: Rig) -> None:
    with pytest.raises(CapacityError):
        rig.ask("t1", max_price_micro_usd_h=1)
    assert list(rig.provider.list("run-a")) == []


def test_an_unknown_pool_is_a_typed_error(rig: Rig) -> None:
    nowhere = Pool(rig.provider.name, "no", "where", "at-all")
    with pytest.raises(SurefootError):
        rig.ask("t1", pool=nowhere)


def test_a_terminated_vm_ends_unpreempted_and_may_be_ended_again(rig: Rig) -> None:
    vm = rig.ask("t1")
    rig.provider.terminate(vm.instance_id)
    ended = rig.wait_for("t1", VmState.ENDED)
    assert not ended.preempted and ended.ended_ms is not None
    rig.provider.terminate(vm.instance_id)
    assert rig.now("t1") == ended


def test_ending_an_unknown_vm_is_no_error(rig: Rig) -> None:
    rig.provider.terminate("local-0000-00000000")
    rig.provider.terminate("")


def test_a_terminated_vm_makes_room_and_its_token_gives_no_second_one(rig: Rig) -> None:
    rig.ask("t1")
    vm = rig.ask("t2")
    rig.provider.terminate(vm.instance_id)
    rig.wait_for("t2", VmState.ENDED)
    assert rig.ask("t2").state is VmState.ENDED
    assert rig.ask("t3").instance_id != vm.instance_id


def test_a_preempted_vm_is_listed_as_taken(rig: Rig) -> None:
    vm = rig.ask("t1")
    rig.wait_for("t1", VmState.RUNNING)
    rig.preempt(vm)
    ended = rig.wait_for("t1", VmState.ENDED)
    assert ended.preempted and ended.ended_ms is not None
    rig.provider.terminate(vm.instance_id)
    assert rig.now("t1").preempted


def test_a_restarted_controller_finds_its_vms_and_repeats_no_launch(rig: Rig) -> None:
    rig.ask("t1")
    gone = rig.ask("t2")
    rig.wait_for("t1", VmState.RUNNING)
    rig.provider.terminate(gone.instance_id)
    before = rig.now("t1")
    rig.reopen()
    assert rig.now("t1") == before
    assert rig.now("t2").state is VmState.ENDED
    assert rig.ask("t1").instance_id == before.instance_id
    rig.provider.terminate(before.instance_id)
    rig.wait_for("t1", VmState.ENDED)


def test_says_when_the_market_changes_or_that_it_cannot_know(rig: Rig) -> None:
    change_ms = rig.provider.next_change_ms()
    assert change_ms is None or change_ms > time.time_ns() // 1_000_000 - 1_000
