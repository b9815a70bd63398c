"""What has hurt elastic training elsewhere, inflicted on real agents and workers."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from train_rig import Hub, read_log

from surefoot.checkpoint import Checkpointer
from surefoot.core.wire import Formed, Generation, Saved, SetInterval, Stepped

LONG = {"RIG_TOTAL": "100000"}


def steps_on(hub: Hub, count: int) -> None:
    """Wait until training has gone on by some steps."""
    newest = max((h.message.step for h in hub.heard if isinstance(h.message, Stepped)), default=0)
    hub.wait_step(newest + count)


def test_notice_that_one_rank_hears_makes_all_save_the_same_step(
    hub: Hub, vms: Any, tmp_path: Path
) -> None:  # case 83
    moments = random.Random(5)
    a, b, c = members = vms(1, 2, 3, **LONG)
    hub.form(1, members)
    hub.wait_step(10)
    for vm in (c, a, b):
        time.sleep(moments.uniform(1.6, 3.0))  # closer ones are one notice heard twice
        since = len(hub.heard)
        vm.process.send_signal(signal.SIGTERM)  # the hub hands nothing on
        _, saved = hub.wait(Saved, since=since, emergency=True, token=a.token)
        assert saved.error == ""
        steps_on(hub, 5)
        assert saved.step in Checkpointer(tmp_path / "checkpoints", read_only=True).steps()
    assert all(row["stepped"] for vm in members for row in read_log(tmp_path, vm))


@pytest.mark.parametrize("rank", [2, 0])
def test_agent_killed_alone_takes_its_worker_along_and_nobody_else(
    hub: Hub, vms: Any, rank: int
) -> None:  # case 87
    members = vms(1, 2, 3, **LONG)
    hub.form(1, members)
    hub.wait_step(10)
    lost = members[rank]
    os.kill(lost.process.pid, signal.SIGKILL)
    hub.until(lambda: lost.token in hub.gone, "the hub sees the loss", 10)
    left = [vm for vm in members if vm is not lost]
    hub.form(2, left, lost=(lost.address,), urgent=True)
    _, formed = hub.wait(Formed, generation=2)
    assert (formed.world, formed.source, formed.lost_steps) == (2, "live", 0)
    (pid,) = lost.worker_pids()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists(), "an orphan must neither train nor write"


def test_twenty_quick_changes_of_one_group_and_stale_orders_between_them(
    hub: Hub, vms: Any, tmp_path: Path
) -> None:  # cases 88, 89
    a, b, c = vms(1, 2, 3, **LONG)
    squatters = []
    hub.form(1, [a, b])
    hub.wait(Formed, generation=1)
    for number in range(2, 22):
        members = [a, b, c] if number % 2 == 0 else [a, b]
        hub.form(number, members, [a, b, c])
        stale = Generation(number - 1, (c.token,), (c.address,))
        for vm in (a, b, c):
            hub.send(vm.token, stale)  # from a past that repeats itself
        squatter = socket.socket()  # takes ports where the next store might want one
        squatter.bind((a.address, 0))
        squatters.append(squatter)
        if number % 5 == 0:
            hub.wait(Formed, generation=number)
    _, formed = hub.wait(Formed, generation=21)
    assert (formed.world, formed.lost_steps) == (2, 0)
    steps_on(hub, 5)
    worlds = {row["world"] for row in read_log(tmp_path, c)}
    assert worlds <= {3}, "a stale order made a group of one"
    for squatter in squatters:
        squatter.close()


def test_tree_killed_five_times_leaves_nothing_that_blocks_the_next_start(
    hub: Hub, vms: Any, tmp_path: Path
) -> None:  # case 90
    shared = set(os.listdir("/dev/shm"))  # noqa: PTH208
    for number in range(1, 6):
        (vm,) = vms(number, **LONG)
        hub.send(vm.token, SetInterval(100))
        hub.form(number, [vm])
        hub.wait(Formed, generation=number)
        steps_on(hub, 3)
        vm.signal(signal.SIGKILL)
        hub.until(lambda vm=vm: vm.token in hub.gone, "the hub sees the loss", 10)
    (last,) = vms(6, **LONG)
    hub.form(6, [last])
    _, formed = hub.wait(Formed, generation=6)
    assert formed.source == "checkpoint" and formed.step > 0
    left = set(os.listdir("/dev/shm")) - shared  # noqa: PTH208
    assert not [name for name in left if "surefoot" in name]


@pytest.mark.parametrize("rank", [1, 0])
def test_member_reclaimed_during_the_emergency_save_costs_no_step(
    hub: Hub, vms: Any, tmp_path: Path, rank: int
) -> None:  # case 91
    members = vms(1, 2, 3, **LONG)
    hub.send(members[0].token, SetInterval(500))
    hub.form(1, members)
    hub.wait(Saved, error="")
    lost = members[rank]
    lost.process.send_signal(signal.SIGTERM)
    time.sleep(random.Random(rank).uniform(0.0, 0.1))
    lost.signal(signal.SIGKILL)
    left = [vm for vm in members if vm is not lost]
    hub.form(2, left, lost=(lost.address,), urgent=True)
    _, formed = hub.wait(Formed, generation=2)
    assert (formed.world, formed.source, formed.lost_steps) == (2, "live", 0)
    step, _, _ = Checkpointer(tmp_path / "checkpoints", read_only=True).load()
    assert 0 < step <= formed.step, "what was good before is good still, or a newer one is"
    steps_on(hub, 5)
