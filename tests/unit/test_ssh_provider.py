"""The ssh provider over real sshd in namespaces: what the contract does not ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from surefoot.core.market import Capacity, Pool
from surefoot.errors import AuthError, ConfigError, RetryLaterError
from surefoot.providers.base import LaunchRequest, Vm, VmState
from surefoot.providers.local import namespaces
from surefoot.providers.ssh import remote
from surefoot.providers.ssh.provider import SshProvider
from surefoot.providers.ssh.settings import SshHost, SshSettings
from surefoot.testing.hosts import SshHosts

REAL: list[pytest.MarkDecorator] = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.environ.get("SUREFOOT_NO_ROOT_TESTS") == "1" or bool(namespaces.why_not()),
        reason=f"no namespace hosts here: {namespaces.why_not() or 'switched off'}",
    ),
    pytest.mark.skipif(
        not Path("/usr/sbin/sshd").exists() or shutil.which("ssh") is None,
        reason="needs openssh-server and openssh-client",
    ),
]


def real(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs hosts."""
    for mark in REAL:
        test = mark(test)
    return test


class World:
    """Two hosts, a preemptible one and one of our own; agents that write down what they got."""

    def __init__(self, hosts: SshHosts, folder: Path) -> None:
        self.hosts, self.ahead_ms = hosts, 0
        agent = folder / "python"
        agent.write_text('#!/bin/sh\nenv > "$SUREFOOT_VM_DIR/env"\n[ -z "$QUICK" ] && sleep 600\n')
        agent.chmod(0o700)
        self.named = (
            SshHost("taken", **hosts.of(0, folder.name), preemptible=True, rack="a"),
            SshHost("own", **hosts.of(1, folder.name), rack="b", usd_h=0.5),
        )
        self.settings = SshSettings(
            self.named, python=str(agent), install="true", ssh=hosts.ssh, connect_s=2, answer_s=4
        )
        self.provider = SshProvider(self.settings, now_ms=self.now)
        self.a, self.b = (host.pool for host in self.named)

    def now(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def ask(self, token: str, pool: Pool, capacity: Capacity, **boot: str) -> Vm:
        return self.provider.launch(LaunchRequest(token, "run-a", pool, capacity, boot))

    def one(self, token: str) -> Vm:
        (vm,) = [vm for vm in self.provider.list("run-a") if vm.token == token]
        return vm


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(2, folder=tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def world(hosts: SshHosts, tmp_path: Path) -> Iterator[World]:
    made = World(hosts, tmp_path)
    yield made
    made.provider.close()
    for number in (0, 1):
        hosts.uncut(number)
        hosts.kill_all(number)


@real
def test_the_agent_gets_what_it_was_given_and_no_process_list_shows_it(world: World) -> None:
    odd = 'it\'s "$HOME" `date` \\ {x}\nsecond'
    world.ask("t1", world.b, Capacity.ON_DEMAND, SUREFOOT_SECRET="planted-9f", COMMAND=odd)
    (place,) = (world.hosts.home(1) / world.named[1].folder.rpartition("/")[2] / "vms").iterdir()
    end = time.monotonic() + 10
    while not (place / "env").exists() and time.monotonic() < end:
        time.sleep(0.05)
    env = (place / "env").read_text()
    assert f"COMMAND={odd}" in env and "SUREFOOT_SECRET=planted-9f" in env
    assert f"SUREFOOT_ADDRESS={world.named[1].host}" in env
    shown = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True).stdout
    assert "planted-9f" not in shown
    assert (place / "boot").stat().st_mode & 0o077 == 0


@real
def test_an_agent_that_comes_to_its_end_was_not_taken_and_frees_the_host(world: World) -> None:
    world.ask("t1", world.a, Capacity.SPOT, QUICK="1")
    end = time.monotonic() + 10
    while (vm := world.one("t1")).state is not VmState.ENDED and time.monotonic() < end:
        time.sleep(0.1)
    assert vm.state is VmState.ENDED and not vm.preempted
    assert vm.ended_ms is not None and abs(vm.ended_ms - world.now()) < 15_000
    assert world.ask("t2", world.a, Capacity.SPOT).state is VmState.RUNNING


@real
def test_a_host_that_is_silent_keeps_its_vm_for_a_while_and_then_counts_as_taken(
    world: World,
) -> None:
    vm = world.ask("t1", world.a, Capacity.SPOT)
    world.provider.list("run-a")
    world.hosts.cut(0)
    assert world.one("t1").state is VmState.RUNNING
    assert any("taken" in line for line in world.provider.trouble)
    with pytest.raises(RetryLaterError):
        world.provider.terminate(vm.instance_id)
    world.ahead_ms = 61_000
    lost = world.one("t1")
    assert lost.state is VmState.ENDED and lost.preempted
    world.hosts.uncut(0)
    assert world.one("t1").state is VmState.RUNNING, "it is back, and somebody has to end it"
    world.provider.terminate(vm.instance_id)
    assert world.one("t1").state is VmState.ENDED


@real
def test_says_how_many_hosts_are_free(world: World) -> None:
    world.provider.list("run-a")
    before = {o.pool: o.available for o in world.provider.offerings()}
    world.ask("t1", world.a, Capacity.SPOT)
    after = {o.pool: o.available for o in world.provider.offerings()}
    assert before == {world.a: 1, world.b: 1} and after == {world.a: 0, world.b: 1}


@real
def test_two_controllers_that_want_one_host_get_it_once(world: World) -> None:
    other = SshProvider(world.settings)
    try:
        other.list("run-b")
        world.ask("t1", world.a, Capacity.SPOT)
        program = remote.start(
            world.named[0].folder, now_ms=world.now(), id="ssh-taken-x", record="{}", boot="true"
        )
        assert other._lines.run(world.named[0], program) == "busy\n"
    finally:
        other.close()


@real
def test_a_host_that_does_not_let_us_in_says_what_to_try(world: World, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", wrong], check=True)
    only = SshHost("taken", **{**world.hosts.of(0), "key": str(wrong)}, preemptible=True)
    locked = SshProvider(SshSettings((only,), ssh=world.hosts.ssh))
    with pytest.raises(AuthError) as error:
        locked.terminate("ssh-taken-0123456789abcdef")
    assert "ssh " in error.value.hint
    locked.close()


def test_hosts_of_one_pool_have_one_price_and_names_are_unique() -> None:
    with pytest.raises(ConfigError, match="one price"):
        SshSettings((SshHost("a"), SshHost("b", usd_h=2.0)))
    with pytest.raises(ConfigError, match="same name"):
        SshSettings((SshHost("a"), SshHost("a")))
    with pytest.raises(ConfigError, match="no host"):
        SshSettings(())


@pytest.mark.parametrize(
    "changes",
    [
        {"usd_h": 0.0},
        {"usd_h": float("nan")},
        {"host": "-oProxyCommand=touch /tmp/x"},
        {"rack": "a/b"},
        {"name": ""},
    ],
)
def test_hosts_that_cannot_be_meant_are_refused(changes: dict[str, object]) -> None:
    values: dict[str, object] = {"name": "node1"}
    with pytest.raises(ConfigError):
        SshHost(**(values | changes))  # type: ignore[arg-type]


def test_a_command_that_holds_the_end_mark_is_not_cut_short() -> None:
    boot = "echo SUREFOOT-END\nSUREFOOT-END\nSUREFOOT-END-X\necho last"
    program = remote.start("f", now_ms=1, id="i", record=json.dumps({}), boot=boot)
    assert "<<'SUREFOOT-END-X-X'" in program and boot in program
