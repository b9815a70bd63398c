"""Training on hosts reached by a real ssh: one is taken by its owner, another steps in."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aws_lead import WORKER
from test_aws_story import visits_of

from surefoot.cli.local import SETTINGS
from surefoot.controller.clock import RealClock
from surefoot.controller.hub import Hub
from surefoot.controller.loop import Controller
from surefoot.controller.store import Store
from surefoot.core.event import Event, GroupFormed, InstanceGone, RunEnded, StepsDone
from surefoot.core.fleet import Ending
from surefoot.core.forecast import get_forecaster
from surefoot.core.job import IntervalRule, Job, Throughput, Work
from surefoot.core.policy import get_policy
from surefoot.providers.base import VmState
from surefoot.providers.local import namespaces
from surefoot.providers.ssh.provider import SshProvider
from surefoot.providers.ssh.settings import SshHost, SshSettings
from surefoot.testing.hosts import SshHosts

pytestmark = [
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

STEPS = 120


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    with SshHosts(3, folder=tmp_path / "hosts") as made:
        yield made


def lead(hosts: SshHosts, provider: SshProvider, folder: Path, events: list[Event]) -> Controller:
    clock = RealClock()
    listener = hosts.listen()
    address, port = listener.getsockname()[:2]
    boot = {
        "SUREFOOT_HUB": f"{address}:{port}",
        "SUREFOOT_SECRET": "one run's",
        "SUREFOOT_COMMAND": f"RIG_LOG=$SUREFOOT_VM_DIR/steps.jsonl {sys.executable} {WORKER}",
        "SUREFOOT_CHECKPOINT": str(folder / "checkpoints"),
        "SUREFOOT_KEEP": "3",
        "SUREFOOT_NOTICE": "none",
        "SUREFOOT_ENVS": json.dumps({"RIG_TOTAL": str(STEPS), "OMP_NUM_THREADS": "1"}),
        "SUREFOOT_LEASE_S": "60",
        "SUREFOOT_PACE": "40",
    }
    job = Job(
        name="ssh",
        num_nodes=2,
        pools=provider.pools(),
        throughput=Throughput(2.0, 2.0),
        interval=IntervalRule(min_ms=1_500, max_ms=10_000),
        work=Work(total_steps=STEPS, step_ms=150),
    )
    return Controller(
        job,
        provider,
        agents=Hub(listener, boot["SUREFOOT_SECRET"], clock),
        store=Store(folder / "journal.sqlite"),
        clock=clock,
        policy=get_policy("hybrid"),
        forecaster=get_forecaster("gamma_poisson"),
        run="ssh-1",
        boot=boot,
        settings=SETTINGS,
        on_event=(events.append,),
    )


def wait(true: Callable[[], object], what: str, within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, f"no {what} in {within_s} s"
        time.sleep(0.1)


@pytest.mark.timeout(200)
def test_a_host_that_its_owner_takes_is_replaced_and_nothing_is_lost(
    hosts: SshHosts, tmp_path: Path
) -> None:
    named = tuple(SshHost(f"n{i}", **hosts.of(i), preemptible=True, usd_h=0.5) for i in range(3))
    settings = SshSettings(named, python=sys.executable, ssh=hosts.ssh)
    provider, events = SshProvider(settings), []
    controller = lead(hosts, provider, tmp_path, events)
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()
    wait(lambda: any(isinstance(e, GroupFormed) and len(e.members) == 2 for e in events), "pair")
    wait(lambda: any(isinstance(e, StepsDone) and e.step > 15 for e in events), "steps")
    first = next(vm for vm in provider.list("ssh-1") if vm.state is VmState.RUNNING)
    hosts.kill_all(int(first.instance_id.split("-")[1][1:]))
    thread.join(90)
    assert not thread.is_alive()

    (ended,) = (e for e in events if isinstance(e, RunEnded))
    assert ended.outcome == "done"
    endings = [e.ending for e in events if isinstance(e, InstanceGone)]
    assert endings.count(Ending.PREEMPTED_SILENT) == 1
    vms = provider.list("ssh-1")
    assert len(vms) >= 3 and all(vm.state is VmState.ENDED for vm in vms)
    assert [vm.instance_id for vm in vms if vm.preempted] == [first.instance_id]
    finals = [
        json.loads(line)["final"]
        for log in tmp_path.glob("hosts/home*/.surefoot/vms/*/steps.jsonl")
        for line in log.read_text().splitlines()
        if line.startswith('{"final"')
    ]
    assert finals and all(final["visits"] == visits_of(STEPS) for final in finals)
    provider.close()
