"""The local provider's market and VMs: what a trace does to real processes, in real time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from surefoot.core.market import Capacity, Pool
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.errors import CapacityError, ConfigError
from surefoot.providers.base import LaunchRequest, Vm, VmState
from surefoot.providers.local import processes
from surefoot.providers.local.host import temporary
from surefoot.providers.local.provider import LocalProvider
from surefoot.providers.local.sweep import sweep

POOL = Pool("local", "here", "a", "small")
SLEEPER = (sys.executable, "-S", "-c", "import time; time.sleep(600)")

TELL_ENVIRONMENT = """
import json, os, time
out = os.path.join(os.environ["SUREFOOT_VM_DIR"], "env.json")
open(out + ".tmp", "w").write(json.dumps(dict(os.environ)))
os.rename(out + ".tmp", out)
time.sleep(600)
"""

WATCH = """
import os, threading
from surefoot.providers.aws.notice import AwsNoticeWatcher
out = os.path.join(os.environ["SUREFOOT_VM_DIR"], "notice.txt")
def note(n):
    open(out + ".tmp", "w").write(f"{n.left_ms} {n.action}"); os.rename(out + ".tmp", out)
AwsNoticeWatcher(poll_s=0.1).watch(note, threading.Event())
"""

SPREAD = """
import os, subprocess, sys, time
from multiprocessing import shared_memory
out = os.path.join(os.environ["SUREFOOT_VM_DIR"], "pids")
block = shared_memory.SharedMemory(create=True, size=1000)
nap = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
kids = [subprocess.Popen(nap), subprocess.Popen(nap, start_new_session=True)]
bare = subprocess.Popen(nap, env={})
middle = subprocess.Popen([sys.executable, "-S", "-c",
    "import subprocess,sys; p = subprocess.Popen(sys.argv[1:], start_new_session=True);"
    "print(p.pid, flush=True)", *nap], stdout=subprocess.PIPE, text=True)
orphan = int(middle.stdout.readline()); middle.wait()
pids = [os.getpid(), *(k.pid for k in kids), bare.pid, orphan]
open(out + ".tmp", "w").write(" ".join(map(str, pids)) + "\\n" + block.name)
os.rename(out + ".tmp", out)
time.sleep(600)
"""


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def trace(
    *steps: tuple[int, int | None],
    notice_ms: int = 0,
    reclaims: tuple[Reclaim, ...] = (),
    boot_ms: int = 0,
) -> Trace:
    supply = tuple(Step(at, value) for at, value in steps) or (Step(0, 4),)
    record = PoolTrace(
        POOL,
        supply,
        (Step(0, 40_000),),
        (Step(0, 100_000),),
        reclaims=reclaims,
        notice_ms=notice_ms,
        boot_ms=boot_ms,
    )
    return Trace("test", Semantics.SUPPLY, 0, 3_600_000, {POOL: record})


Opener = Callable[..., LocalProvider]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    made: list[LocalProvider] = []

    def open_one(market: Trace, **options: object) -> LocalProvider:
        values: dict[str, object] = {"state_dir": tmp_path / "state", "agent": SLEEPER}
        made.append(LocalProvider(market, **(values | options)))  # type: ignore[arg-type]
        return made[-1]

    yield open_one
    for provider in made:
        provider.close(kill=True)
    names = [path.name for path in (tmp_path / "state" / "vms").glob("local-*")]
    assert not any(temporary(name).exists() for name in names)
    assert processes.marked(f"{(tmp_path / 'state').resolve()}/") == set()


def ask(provider: LocalProvider, token: str, **changes: object) -> Vm:
    values: dict[str, object] = {"token": token, "run": "r", "pool": POOL}
    values["capacity"] = Capacity.SPOT
    return provider.launch(LaunchRequest(**(values | changes)))  # type: ignore[arg-type]


def alive(provider: LocalProvider) -> set[str]:
    return {vm.token for vm in provider.list("r") if vm.state is not VmState.ENDED}


def eventually(check: Callable[[], bool], *, within_s: float = 10.0) -> None:
    give_up = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.01)


def folder_of(tmp_path: Path, vm: Vm) -> Path:
    return tmp_path / "state" / "vms" / vm.instance_id


def runs(pid: int) -> bool:
    return processes.identify(pid) is not None


def test_supply_that_falls_takes_the_youngest_when_the_trace_says(opened: Opener) -> None:
    provider = opened(trace((0, 3), (700, 1)))
    for token in ("a", "b", "c"):
        ask(provider, token)
        time.sleep(0.01)
    assert alive(provider) == {"a", "b", "c"}
    eventually(lambda: alive(provider) != {"a", "b", "c"})
    assert 700 <= provider.trace_ms < 1_500
    assert alive(provider) == {"a"}
    assert all(vm.preempted for vm in provider.list("r") if vm.token != "a")


def test_a_reclaim_takes_the_oldest_though_supply_remains(opened: Opener) -> None:
    provider = opened(trace((0, 4), reclaims=(Reclaim(500, 1),)))
    for token in ("a", "b"):
        ask(provider, token)
        time.sleep(0.01)
    eventually(lambda: alive(provider) == {"b"})
    time.sleep(0.4)
    assert alive(provider) == {"b"}


def test_on_demand_is_never_taken_by_the_trace(opened: Opener) -> None:
    provider = opened(trace((0, 1), (300, 0), reclaims=(Reclaim(300, 5),)))
    ask(provider, "spot")
    ask(provider, "sure", capacity=Capacity.ON_DEMAND)
    eventually(lambda: alive(provider) == {"sure"})
    time.sleep(0.3)
    assert alive(provider) == {"sure"}


def test_a_vm_reads_its_notice_as_on_aws_and_is_gone_at_the_deadline(
    opened: Opener, tmp_path: Path
) -> None:
    provider = opened(trace((0, 1), (4_500, 0), notice_ms=3_500), agent=python(WATCH))
    vm = ask(provider, "a")
    note = folder_of(tmp_path, vm) / "notice.txt"
    eventually(note.exists)
    assert provider.trace_ms < 4_000
    left, action = note.read_text().split()
    assert action == "terminate" and 1_000 <= int(left) <= 3_500
    assert alive(provider) == {"a"}
    eventually(lambda: not alive(provider))
    assert 4_500 <= provider.trace_ms < 5_500


def test_a_vm_launched_inside_the_notice_window_is_told_at_once(opened: Opener) -> None:
    provider = opened(trace((0, 1), (60_000, 0), notice_ms=120_000))
    vm = ask(provider, "a")
    eventually(lambda: provider.metadata.is_announced(vm.instance_id), within_s=2)


def test_there_is_no_spot_in_a_gap_of_the_trace(opened: Opener) -> None:
    provider = opened(trace((0, None)))
    with pytest.raises(CapacityError):
        ask(provider, "a")


def test_a_silent_loss_leaves_no_process_whatever_it_did_and_no_shared_memory(
    opened: Opener, tmp_path: Path
) -> None:
    provider = opened(trace(), agent=python(SPREAD))
    vm = ask(provider, "a")
    listing = folder_of(tmp_path, vm) / "pids"
    eventually(listing.exists)
    first, block = listing.read_text().splitlines()
    pids = [int(pid) for pid in first.split()]
    assert all(runs(pid) for pid in pids) and Path("/dev/shm", block).exists()
    provider.kill(vm.instance_id)
    assert not any(runs(pid) for pid in pids)
    assert not Path("/dev/shm", block).exists()


def test_other_vms_live_on_when_one_is_killed(opened: Opener) -> None:
    provider = opened(trace())
    gone = ask(provider, "a")
    ask(provider, "b")
    provider.kill(gone.instance_id)
    assert alive(provider) == {"b"}


def test_the_boot_environment_reaches_the_vm_and_ours_does_not(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_LEAK", "x")
    provider = opened(trace(), agent=python(TELL_ENVIRONMENT), pace=12.5)
    vm = ask(provider, "a", boot={"SUREFOOT_HUB": "127.0.0.1:1", "SUREFOOT_SECRET": "hush"})
    told = folder_of(tmp_path, vm) / "env.json"
    eventually(told.exists)
    seen = json.loads(told.read_text())
    assert seen["SUREFOOT_HUB"] == "127.0.0.1:1"
    assert seen["SUREFOOT_PACE"] == "12.5"
    assert seen["SUREFOOT_ADDRESS"] == vm.address and vm.address.startswith("127.77.")
    assert seen["SUREFOOT_VM_DIR"] == str(folder_of(tmp_path, vm).resolve())
    assert seen["AWS_EC2_METADATA_SERVICE_ENDPOINT"].startswith("http://127.0.0.1:")
    assert "SUREFOOT_LEAK" not in seen
    assert Path(seen["TMPDIR"]).is_dir() and len(seen["TMPDIR"]) < 60
    files = [p for p in (tmp_path / "state").rglob("*") if p.is_file() and p != told]
    assert not any(b"hush" in p.read_bytes() for p in files)


def test_a_vm_that_shuts_itself_down_ends_unpreempted(opened: Opener) -> None:
    provider = opened(trace(), agent=python("pass"))
    vm = ask(provider, "a")
    eventually(lambda: not alive(provider))
    assert [v.preempted for v in provider.list("r")] == [False]
    assert provider.launch(LaunchRequest("b", "r", POOL, Capacity.SPOT)).address != vm.address


def test_a_long_boot_of_the_trace_is_waited_for_and_can_be_called_off(opened: Opener) -> None:
    provider = opened(trace(boot_ms=5_700))
    begun = time.monotonic()
    vm = ask(provider, "a")
    other = ask(provider, "b")
    assert vm.state is VmState.PENDING
    provider.terminate(other.instance_id)
    eventually(lambda: provider.list("r")[0].state is VmState.RUNNING)
    assert 0.6 < time.monotonic() - begun < 2.5
    assert provider.list("r")[1].state is VmState.ENDED


def test_the_market_stands_still_while_no_provider_is_open(opened: Opener) -> None:
    market = trace((0, 1), (3_600_000, 0))
    first = opened(market)
    first.start()
    time.sleep(0.3)
    first.close()
    stopped = first.trace_ms
    second = opened(market)
    assert 300 <= second.trace_ms <= stopped
    time.sleep(0.1)
    assert second.trace_ms <= stopped
    second.start()
    time.sleep(0.1)
    assert second.trace_ms >= 400


def test_another_trace_starts_from_its_beginning(opened: Opener) -> None:
    first = opened(trace())
    first.start()
    time.sleep(0.1)
    first.close()
    other = trace()
    renamed = Trace("other", other.semantics, other.start_ms, other.end_ms, other.pools)
    assert opened(renamed).trace_ms == 0


def test_next_change_is_on_the_wall_clock(opened: Opener) -> None:
    provider = opened(trace((0, 1), (60_000, 2)))
    change = provider.next_change_ms()
    assert change is not None
    assert abs(change - (time.time() * 1000 + 60_000)) < 1_000
    assert opened(trace(), state_dir=provider._folder.root / "b").next_change_ms() is None


def test_one_living_provider_owns_a_folder(opened: Opener, tmp_path: Path) -> None:
    opened(trace())
    with pytest.raises(ConfigError, match="in use"):
        opened(trace())
    with pytest.raises(ConfigError, match="in use"):
        sweep(tmp_path / "state")


def test_an_unknown_kind_of_vm_is_refused_and_frees_the_folder(opened: Opener) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        opened(trace(), vms="docker")
    opened(trace())


CONTROLLER = """
import sys, time
sys.path.insert(0, sys.argv[2])
import test_provider_local as t
from pathlib import Path
provider = t.LocalProvider(t.trace((0, 4)), state_dir=Path(sys.argv[1]), agent=t.SLEEPER)
for token in ("a", "b"):
    t.ask(provider, token)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def killed_controller(tmp_path: Path) -> Path:
    """A state folder whose controller was killed with two VMs running."""
    root = tmp_path / "state"
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", CONTROLLER, str(root), here]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None and controller.stdout.readline() == "up\n"
        os.kill(controller.pid, signal.SIGKILL)
    return root


def test_vms_outlive_a_killed_controller_and_are_taken_over(
    killed_controller: Path, opened: Opener
) -> None:
    provider = opened(trace((0, 4), reclaims=(Reclaim(60_000, 1),)))
    assert alive(provider) == {"a", "b"}
    assert ask(provider, "a").state is VmState.RUNNING
    provider.kill(provider.list("r")[0].instance_id)
    assert alive(provider) == {"b"}


def test_a_vm_that_died_meanwhile_is_listed_as_ended(
    killed_controller: Path, opened: Opener
) -> None:
    body = json.loads(sorted((killed_controller / "vms").glob("*.json"))[0].read_text())
    os.kill(body["process"]["pid"], signal.SIGKILL)
    eventually(lambda: not runs(body["process"]["pid"]))
    assert alive(opened(trace())) == {"b"}


def test_sweep_ends_what_a_killed_controller_left(killed_controller: Path) -> None:
    prefix = f"{killed_controller.resolve()}/"
    assert len(processes.marked(prefix)) == 2
    temporaries = [temporary(path.stem) for path in (killed_controller / "vms").glob("*.json")]
    assert all(path.is_dir() for path in temporaries)
    assert sweep(killed_controller) == 2
    assert not any(path.exists() for path in temporaries)
    assert processes.marked(prefix) == set()
    assert sweep(killed_controller) == 0


def test_sweep_kills_no_stranger_that_has_a_recycled_pid(killed_controller: Path) -> None:
    stranger = subprocess.Popen(SLEEPER)
    try:
        for path in (killed_controller / "vms").glob("*.json"):
            body = json.loads(path.read_text())
            body["process"]["pid"] = stranger.pid
            path.write_text(json.dumps(body))
        sweep(killed_controller)
        assert stranger.poll() is None
        mine = processes.identify(stranger.pid)
        assert mine is not None
        processes.send(processes.ProcessId(mine.pid, mine.start - 1), signal.SIGKILL)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_torn_records_orphan_no_process(killed_controller: Path, opened: Opener) -> None:
    for path in (killed_controller / "vms").glob("*.json"):
        path.write_text('{"torn')
    assert list(opened(trace()).list("r")) == []
    assert processes.marked(f"{killed_controller.resolve()}/") == set()


BUSY = """
import itertools, random, sys, time
sys.path.insert(0, sys.argv[2])
import test_provider_local as t
from pathlib import Path
random.seed(int(sys.argv[3]))
provider = t.LocalProvider(t.trace((0, 6)), state_dir=Path(sys.argv[1]), agent=t.SLEEPER)
print("up", flush=True)
for n in itertools.count():
    vms = [vm for vm in provider.list("r") if vm.state is not t.VmState.ENDED]
    deed = random.choice([provider.terminate, provider.kill, provider.reclaim])
    if len(vms) == 6 or (vms and random.random() < 0.4):
        deed(random.choice(vms).instance_id)
    else:
        t.ask(provider, f"t{sys.argv[3]}-{n}")
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_controller_killed_at_any_moment_leaves_nothing_that_sweep_misses(
    tmp_path: Path, seed: int
) -> None:
    root = tmp_path / "state"
    command = [sys.executable, "-c", BUSY, str(root), str(Path(__file__).parent), str(seed)]
    for round_ in range(2):  # the second one takes over from the first
        with subprocess.Popen([*command], stdout=subprocess.PIPE, text=True) as controller:
            assert controller.stdout is not None and controller.stdout.readline() == "up\n"
            time.sleep(random.Random(seed * 2 + round_).uniform(0.01, 0.3))
            os.kill(controller.pid, signal.SIGKILL)
    sweep(root)
    assert processes.marked(f"{root.resolve()}/") == set()
    names = [path.name for path in (root / "vms").iterdir() if path.is_dir()]
    assert names and not any(temporary(name).exists() for name in names)


def test_closing_leaves_vms_running_unless_told_to_kill(opened: Opener, tmp_path: Path) -> None:
    first = opened(trace())
    ask(first, "a")
    first.close()
    assert len(processes.marked(f"{(tmp_path / 'state').resolve()}/")) == 1
    second = opened(trace())
    assert alive(second) == {"a"}
    second.close(kill=True)
    assert processes.marked(f"{(tmp_path / 'state').resolve()}/") == set()


def test_a_frozen_vm_does_nothing_until_it_is_thawed(opened: Opener, tmp_path: Path) -> None:
    count = """
import os, time
out = os.path.join(os.environ["SUREFOOT_VM_DIR"], "n")
n = 0
while True:
    n += 1; open(out, "w").write(str(n)); time.sleep(0.01)
"""
    provider = opened(trace(), agent=python(count))
    vm = ask(provider, "a")
    out = folder_of(tmp_path, vm) / "n"
    eventually(out.exists)
    provider.cut(vm.instance_id)
    time.sleep(0.05)
    before = out.read_text()
    time.sleep(0.2)
    assert out.read_text() == before
    provider.uncut(vm.instance_id)
    eventually(lambda: out.read_text() not in (before, ""))


def test_a_vm_that_cannot_be_started_is_an_error_and_takes_no_supply(opened: Opener) -> None:
    provider = opened(trace((0, 1)), agent=("/nowhere/agent",))
    for token in ("a", "b"):
        with pytest.raises(ConfigError, match="cannot start"):
            ask(provider, token)
    assert alive(provider) == set()


def test_a_market_that_has_stopped_says_so(opened: Opener, tmp_path: Path) -> None:
    provider = opened(trace())
    provider.start()
    (tmp_path / "state" / "market.tmp").mkdir()  # the next write of the market's time fails
    with pytest.raises(Exception, match="market has stopped"):
        eventually(lambda: bool(provider.list("r")), within_s=3)
    (tmp_path / "state" / "market.tmp").rmdir()
