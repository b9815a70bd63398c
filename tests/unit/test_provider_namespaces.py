"""VMs as network namespaces: real addresses, the real metadata URL, silence after a power-off."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from surefoot.core.market import Capacity, Pool
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.errors import ConfigError
from surefoot.providers.base import LaunchRequest, Vm, VmState
from surefoot.providers.local import namespaces, processes
from surefoot.providers.local.provider import LocalProvider
from surefoot.providers.local.sweep import sweep

REASON = namespaces.why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        bool(REASON) or os.environ.get("SUREFOOT_NO_ROOT_TESTS") == "1",
        reason=f"no namespace VMs here: {REASON or 'switched off'}",
    ),
]

POOL = Pool("local", "here", "a", "small")
SLEEPER = (sys.executable, "-S", "-c", "import time; time.sleep(600)")

REPORT = """
import json, os, socket, time, urllib.request
from surefoot.providers.aws.notice import AwsNoticeWatcher
host, port = os.environ["SUREFOOT_HUB"].split(":")
link = socket.create_connection((host, int(port)))
watcher = AwsNoticeWatcher("http://169.254.169.254")
while True:
    begun = time.monotonic()
    socket.getfqdn("10.77.200.200")
    notice = watcher.poll()
    link.sendall(json.dumps({
        "host": socket.gethostname(), "address": link.getsockname()[0], "pid": os.getpid(),
        "shm": os.listdir("/dev/shm"), "notice": notice and notice.action,
        "blind": watcher.blind_since, "took_s": time.monotonic() - begun}).encode() + b"\\n")
    time.sleep(0.05)
"""


def trace() -> Trace:
    record = PoolTrace(
        POOL, (Step(0, 4),), (Step(0, 40_000),), (Step(0, 100_000),), boot_ms=0, notice_ms=0
    )
    return Trace("test", Semantics.SUPPLY, 0, 3_600_000, {POOL: record})


def left_behind(root: Path) -> list[str]:
    name = namespaces.hub_name(root)
    places = (Path("/run/netns"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    return [str(path) for place in places for path in place.glob(f"{name}*")]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    assert left_behind(tmp_path / "state") == []
    assert processes.marked(f"{(tmp_path / 'state').resolve()}/") == set()


@pytest.fixture
def provider(root: Path) -> Iterator[LocalProvider]:
    agent = (sys.executable, "-c", REPORT)
    provider = LocalProvider(trace(), state_dir=root, vms="namespace", agent=agent)
    yield provider
    provider.close(kill=True)


@pytest.fixture
def hub(provider: LocalProvider) -> Iterator[socket.socket]:
    with provider.listen() as listener:
        listener.settimeout(10)
        yield listener


def ask(provider: LocalProvider, token: str, hub: socket.socket | None = None) -> Vm:
    boot = {"SUREFOOT_HUB": provider.hub_address(hub)} if hub else {}
    return provider.launch(LaunchRequest(token, "r", POOL, Capacity.SPOT, boot))


class Link:
    """The controller's end of a VM's connection."""

    def __init__(self, hub: socket.socket) -> None:
        self.socket, _ = hub.accept()
        self.socket.settimeout(0.5)
        self._lines = self.socket.makefile("rb")

    def next(self) -> dict[str, object]:
        body: dict[str, object] = json.loads(self._lines.readline())
        return body

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


@pytest.fixture
def vm(provider: LocalProvider, hub: socket.socket) -> Vm:
    return ask(provider, "a", hub)


@pytest.fixture
def link(vm: Vm, hub: socket.socket) -> Iterator[Link]:
    link = Link(hub)
    yield link
    link.close()


def silent_for(link: Link, seconds: float) -> bool:
    """Drain what is on its way, then say whether nothing (no FIN either) comes for a while."""
    link.socket.settimeout(0.2)
    give_up = time.monotonic() + 5
    while time.monotonic() < give_up:
        try:
            if link.socket.recv(1 << 16) == b"":
                return False
        except TimeoutError:
            break
        except OSError:
            return False
    link.socket.settimeout(seconds)
    try:
        link.socket.recv(1)
    except TimeoutError:
        return True
    except OSError:
        return False
    return False


def eventually(check: Callable[[], bool], *, within_s: float = 10.0) -> None:
    give_up = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.01)


def test_a_vm_is_a_machine_of_its_own(vm: Vm, link: Link) -> None:
    told = link.next()
    assert told["host"] == f"vm{int(vm.instance_id.split('-')[1])}"
    assert told["address"] == vm.address and vm.address.startswith("10.77.")
    assert told["shm"] == [] and isinstance(told["pid"], int) and told["pid"] < 20
    assert isinstance(told["took_s"], float) and told["took_s"] < 2


def test_the_metadata_url_of_the_clouds_tells_vms_apart(
    provider: LocalProvider, vm: Vm, link: Link, hub: socket.socket
) -> None:
    ask(provider, "b", hub)
    other = Link(hub)
    provider.reclaim(vm.instance_id, notice_ms=60_000)
    try:
        for _ in range(3):
            last, unaware = link.next(), other.next()
        eventually(lambda: link.next()["notice"] == "terminate")
        unaware = other.next()
        assert last["blind"] is None and unaware["blind"] is None
        assert unaware["notice"] is None
    finally:
        other.close()


def test_a_kill_is_seen_by_the_peer_at_once(provider: LocalProvider, vm: Vm, link: Link) -> None:
    link.next()
    provider.kill(vm.instance_id)
    assert not silent_for(link, 1.0)
    assert provider.list("r")[0].state is VmState.ENDED


def test_a_power_off_is_silent_and_so_is_a_reclaim(
    provider: LocalProvider, vm: Vm, link: Link, hub: socket.socket
) -> None:
    link.next()
    provider.poweroff(vm.instance_id)
    assert silent_for(link, 1.0)
    second = ask(provider, "b", hub)
    other = Link(hub)
    other.next()
    provider.reclaim(second.instance_id)
    assert silent_for(other, 1.0)
    other.close()
    assert [v.state for v in provider.list("r")] == [VmState.ENDED] * 2


def test_a_cut_vm_is_silent_until_it_is_plugged_in_again(
    provider: LocalProvider, vm: Vm, link: Link
) -> None:
    link.next()
    provider.cut(vm.instance_id)
    assert silent_for(link, 0.5)
    assert provider.list("r")[0].state is VmState.RUNNING
    provider.uncut(vm.instance_id)
    link.socket.settimeout(10)
    assert link.socket.recv(1) != b""


def test_the_machines_own_network_is_untouched(provider: LocalProvider, vm: Vm) -> None:
    shown = subprocess.run(["ip", "addr"], capture_output=True, text=True, check=True).stdout
    assert "10.77." not in shown and "169.254.169.254" not in shown


def test_the_hub_goes_with_the_last_vm(root: Path) -> None:
    provider = LocalProvider(trace(), state_dir=root, vms="namespace", agent=SLEEPER)
    vm = ask(provider, "a")
    assert len(left_behind(root)) >= 3
    provider.terminate(vm.instance_id)
    provider.close()
    assert left_behind(root) == []


def test_sweep_and_process_mode_both_clear_namespaces_away(root: Path) -> None:
    for clear in (sweep, lambda at: LocalProvider(trace(), state_dir=at).close(kill=True)):
        provider = LocalProvider(trace(), state_dir=root, vms="namespace", agent=SLEEPER)
        ask(provider, f"a{clear}")
        provider.close()
        assert left_behind(root) != []
        clear(root)
        assert left_behind(root) == []


def test_without_root_the_user_is_told_what_else_there_is(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only root") as error:
        LocalProvider(trace(), state_dir=root, vms="namespace")
    assert "process" in error.value.hint
