"""AWS's whole story on this machine: boto3, VMs that boot their user data, reclaims, a lost leader.

Four VMs train. Two are reclaimed with notice and one without; one pool has nothing to sell; the
controller is killed in the middle and started again. Nothing is lost, left over or billed wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aws_lead import job_of

from surefoot.controller.store import Store
from surefoot.core.account import Account
from surefoot.core.event import (
    CheckpointCommitted,
    Event,
    GroupFormed,
    InstanceGone,
    LaunchFailed,
    RunEnded,
    RunStarted,
    StepsDone,
)
from surefoot.core.fleet import Ending
from surefoot.core.market import Capacity, Pool
from surefoot.core.units import usd
from surefoot.providers.local import namespaces
from surefoot.train.sampler import DataOrder

pytest.importorskip("moto", reason="the fake AWS needs moto[server,ec2]")
pytest.importorskip("boto3", reason="the AWS provider needs boto3")

from surefoot.testing.cloud import FakeCloud, Sale
from surefoot.testing.cloud.cloud import CREDENTIALS, spot_running

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.environ.get("SUREFOOT_NO_ROOT_TESTS") == "1" or bool(namespaces.why_not()),
        reason=f"no namespace VMs here: {namespaces.why_not() or 'switched off'}",
    ),
]

STEPS, NODES, RUN, TYPE = 320, 4, "story-1", "m5.large"
SAMPLES, BATCH = 101, 12
GOOD, DRY, SPARE = (Pool("aws", "us-east-1", f"us-east-1{zone}", TYPE) for zone in "abc")
SALES = {
    GOOD: Sale(4, 3_060_000, 12_240_000),
    DRY: Sale(0, 2_900_000, 12_240_000),
    SPARE: Sale(4, 3_200_000, 12_240_000),
}
Found = TypeVar("Found")


@dataclass
class Story:
    """One run: the cloud, the leading process, and what the journal says so far."""

    cloud: FakeCloud
    folder: Path
    leader: subprocess.Popen[str]
    terms: dict[str, Any] = field(default_factory=dict)

    def events(self) -> list[Event]:
        path = self.folder / "journal.sqlite"
        if not path.exists():
            return []
        store = Store(path)
        try:
            return [event for _, event in store.events(RUN)]
        finally:
            store.close()

    def of(self, kind: type[Found]) -> list[Found]:
        return [event for event in self.events() if isinstance(event, kind)]

    def wait(self, true: Callable[[], Found], what: str, within_s: float = 60) -> Found:
        end = time.monotonic() + within_s
        while not (found := true()):
            assert time.monotonic() < end, f"no {what} in {within_s} s\n{self.told()}"
            time.sleep(0.1)
        return found

    def wait_world(self, size: int) -> None:
        """Wait for a group of `size` that trains, all of whose members run."""

        def formed() -> bool:
            groups = self.of(GroupFormed)
            alive = {vm.token for vm in self.cloud.running}
            return bool(groups) and len(groups[-1].members) == size <= len(
                alive & set(groups[-1].members)
            )

        self.wait(formed, f"group of {size}")

    def gone(self, ending: Ending) -> list[InstanceGone]:
        return [event for event in self.of(InstanceGone) if event.ending is ending]

    def step(self) -> int:
        done = [event.step for event in self.of(StepsDone)]
        return done[-1] if done else 0

    def told(self) -> str:
        """Return the end of all logs, for a failure's message."""
        lines = [repr(event)[:240] for event in self.events() if type(event) not in (StepsDone,)]
        for vm in self.cloud.held:
            for name in ("console.log", "agent.log", "worker.log"):
                tail = self.cloud.machines.log(vm.instance_id, name).splitlines()[-6:]
                lines += [f"{vm.token} {name}: {line}" for line in tail]
        lines.append((self.folder / "leader.log").read_text()[-2000:])
        return "\n".join(lines[-120:])


def lead(folder: Path) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("aws_lead.py")
    with (folder / "leader.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, str(script), str(folder)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **CREDENTIALS},
        )


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    with FakeCloud(SALES, folder=tmp_path / "cloud", vms="namespace") as cloud:
        terms = {
            "endpoint": cloud.endpoint,
            "cloud": str(cloud.machines.folder),
            "run": RUN,
            "nodes": NODES,
            "steps": STEPS,
            "type": TYPE,
            "pools": [str(pool) for pool in SALES],
        }
        (tmp_path / "terms.json").write_text(json.dumps(terms))
        told = Story(cloud, tmp_path, lead(tmp_path), terms)
        yield told
        told.leader.kill()
        told.leader.wait(10)


def visits_of(steps: int) -> list[float]:
    """Return how often each sample counts when every step is done exactly once."""
    order = DataOrder(SAMPLES, BATCH, seed=1)
    counts = [0.0] * SAMPLES
    for step in range(steps):
        for i in order.ids(step):
            counts[int(i)] += 1
    return counts


@pytest.mark.timeout(300)
def test_training_survives_reclaims_shortage_and_a_killed_controller(story: Story) -> None:
    cloud = story.cloud
    story.wait_world(NODES)
    first = spot_running(cloud)[0]
    cloud.reclaim(first.instance_id, notice_s=6)
    story.wait(lambda: story.gone(Ending.PREEMPTED_NOTICE), "announced loss")

    silent = spot_running(cloud)[0]
    cloud.reclaim(silent.instance_id)
    story.wait(lambda: story.gone(Ending.PREEMPTED_SILENT), "silent loss")

    story.leader.kill()
    story.leader.wait(10)
    at_kill = story.step()
    time.sleep(2)
    story.leader = lead(story.folder)
    story.wait(lambda: len(story.of(RunStarted)) > 1, "second controller")
    story.wait(lambda: story.step() > at_kill, "step after the controller's death")

    last = spot_running(cloud)[0]
    cloud.reclaim(last.instance_id, notice_s=6)
    story.wait(lambda: len(story.gone(Ending.PREEMPTED_NOTICE)) > 1, "second announced loss")
    story.wait(lambda: story.leader.poll() is not None, "end of the run")
    assert story.leader.returncode == 0, story.told()
    check(story)


def check(story: Story) -> None:
    """What must hold at the end of the run."""
    cloud, events = story.cloud, story.events()
    (ended,) = story.of(RunEnded)
    assert ended.outcome == "done", story.told()
    assert story.of(CheckpointCommitted)[-1].step == STEPS
    assert cloud.running == [], "no VM is left over"
    assert all(row.state in ("closed", "cancelled") for row in cloud.ec2.requests.rows.values())
    short = [e for e in story.of(LaunchFailed) if e.kind == "CapacityError"]
    assert any("InsufficientInstanceCapacity" in e.message for e in short)
    tokens = [vm.token for vm in cloud.held]
    assert len(tokens) == len(set(tokens)), "no launch was made twice"

    account = Account(job_of(story.terms))
    for event in events:
        account.add(event)
    counts = account.counts
    assert (counts.notice, counts.silent) == (2, 1)
    ours, theirs = account.bill.total, cloud.bill(RUN)
    assert theirs > 100_000, "worth comparing"
    assert abs(ours - theirs) < 10_000, f"{usd(ours)} is not {usd(theirs)} to the cent"
    assert cloud.bill(RUN, first_hour_free=True) < theirs
    print(
        f"bill ${usd(ours):.4f}, cloud ${usd(theirs):.4f}, goodput {account.goodput.share:.3f}, "
        f"lost steps {counts.lost_steps}, recoveries {[round(s, 1) for s in account.recovery_s]}"
    )
    finals = [row for vm in cloud.held for row in rows(story, vm.instance_id) if "final" in row]
    assert finals, "a worker finished"
    for row in finals:
        assert row["final"]["visits"] == visits_of(STEPS), "each sample counts as it should"
    assert all(vm.capacity is Capacity.SPOT for vm in cloud.held if vm.taken)


def rows(story: Story, instance_id: str) -> list[dict[str, Any]]:
    text = story.cloud.machines.log(instance_id, "steps.jsonl")
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # a VM that lost its power in the middle of a line
    return found
