"""Real agents and workers on loopback through a kill, an addition, a silent loss and a notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from train_rig import WORKER, Hub, Vm, read_log

from surefoot.core.wire import (
    Finished,
    Formed,
    Leave,
    Noticed,
    Ready,
    Saved,
    SaveNow,
    SetInterval,
    Stop,
    WorkerExited,
)
from surefoot.train.sampler import DataOrder

SAMPLES, BATCH = 101, 12


def alone(folder: Path, total: int) -> list[dict[str, Any]]:
    log = folder / "alone.jsonl"
    env = {k: v for k, v in os.environ.items() if not k.startswith("SUREFOOT_")}
    env |= {"RIG_LOG": str(log), "RIG_TOTAL": str(total), "RIG_SAME_START": "1"}
    subprocess.run([sys.executable, str(WORKER)], env=env, check=True, timeout=60)
    return [json.loads(line) for line in log.read_text().splitlines()]


def visits(total: int) -> list[int]:
    order = DataOrder(SAMPLES, BATCH, seed=1)
    counts = [0] * SAMPLES
    for step in range(total):
        for i in order.ids(step):
            counts[int(i)] += 1
    return counts


def final_state(folder: Path, vm: Vm) -> dict[str, Any]:
    return next(row["final"] for row in read_log(folder, vm) if "final" in row)


def losses(rows: list[dict[str, Any]]) -> dict[int, float]:
    """Global mean loss of each step, from the last attempt whose parts make up the batch."""
    order = DataOrder(SAMPLES, BATCH, seed=1)
    found: dict[int, float] = {}
    by_step: dict[int, dict[tuple[int, int], dict[str, Any]]] = {}
    for row in sorted((r for r in rows if "step" in r), key=lambda r: r["t"]):
        by_step.setdefault(row["step"], {})[row["world"], row["rank"]] = row
    for step, parts in by_step.items():
        worlds = {world for world, _ in parts}
        want = sorted(int(i) for i in order.ids(step))
        for world in worlds:
            rows_of = [parts[world, r] for r in range(world) if (world, r) in parts]
            if sorted(i for row in rows_of for i in row["ids"]) == want:
                total = sum(row["loss"] * len(row["ids"]) for row in rows_of)
                found[step] = total / len(want)
    return found


def test_nothing_is_skipped_or_repeated_through_kill_addition_silence_and_notice(
    hub: Hub, vms: Any, tmp_path: Path
) -> None:  # cases 78 (places by rank), 86 (killed, stopped)
    total = 600
    a, b, c, d, e = vms(1, 2, 3, 4, 5, RIG_TOTAL=str(total), RIG_SAME_START="1")
    for vm in (a, b, c):
        hub.send(vm.token, SetInterval(1500))
    hub.form(1, [a, b, c])
    hub.wait(Formed, generation=1, source="fresh", world=3)
    hub.wait_step(30)

    # An addition: the newcomer is warm before it is named, the others do not stop for it.
    sent_s = hub.form(2, [a, b, c, d], [a, b, c])
    at_s, formed = hub.wait(Formed, generation=2)
    report = {"add_to_first_step_s": at_s - sent_s, "add_pause_ms": formed.reform_ms}
    assert (formed.world, formed.source, formed.lost_steps) == (4, "live", 0)
    assert formed.reform_ms < 2000

    # A kill whose connections are seen to close: rank 0, of all.
    time.sleep(0.5)
    killed_s = a.signal(signal.SIGKILL)
    hub.until(lambda: a.token in hub.gone, "the hub sees the loss", 5)
    hub.form(3, [b, c, d], lost=(a.address,), urgent=True)
    at_s, formed = hub.wait(Formed, generation=3)
    report |= {"kill_to_first_step_s": at_s - killed_s, "kill_pause_ms": formed.reform_ms}
    assert (formed.world, formed.source, formed.lost_steps) == (3, "live", 0)

    # A silent loss: nothing is closed, the survivors wait in a collective until told.
    time.sleep(0.5)
    frozen_s = c.signal(signal.SIGSTOP)
    time.sleep(1.0)
    told_s = hub.form(4, [b, d], lost=(c.address,), urgent=True)
    at_s, formed = hub.wait(Formed, generation=4)
    report |= {"silence_told_to_first_step_s": at_s - told_s, "silence_s": at_s - frozen_s}
    assert (formed.world, formed.source) == (2, "live")
    assert at_s - told_s < 2.0
    c.signal(signal.SIGKILL)

    # A notice: an emergency save inside the window, then the VM is let go at a step boundary.
    b.process.send_signal(signal.SIGTERM)
    _, notice = hub.wait(Noticed, token=b.token)
    for vm in (b, d):
        hub.send(vm.token, SaveNow("notice", notice.left_ms))
    _, saved = hub.wait(Saved, emergency=True)
    assert saved.error == "" and saved.margin_ms is not None and saved.margin_ms > 5000
    hub.form(5, [d, e], [b, d])
    hub.send(b.token, Leave("notice"))
    _, formed = hub.wait(Formed, generation=5)
    report |= {"replace_pause_ms": formed.reform_ms, "emergency_margin_ms": saved.margin_ms}
    assert b.process.wait(10) == 0

    _, finished = hub.wait(Finished, timeout_s=40)
    assert finished.step == total
    for vm in (d, e):
        hub.send(vm.token, Leave("done"))
    assert [vm.process.wait(10) for vm in (d, e)] == [0, 0]
    print("\nmeasured:", json.dumps({k: round(v, 3) for k, v in report.items()}))

    assert len(d.worker_pids()) == 1, "a survivor was restarted"
    final = final_state(tmp_path, d)
    assert [round(v) for v in final["visits"]] == visits(total)
    reference = alone(tmp_path, total)
    (want,) = (row["final"] for row in reference if "final" in row)
    for name in want:
        assert torch_close(final[name], want[name]), name
    seen = losses([r for vm in (a, b, c, d, e) for r in read_log(tmp_path, vm)])
    expected = losses(reference)
    assert len(seen) > total - 5  # a killed worker may not have logged its last step
    assert all(abs(seen[step] - expected[step]) < 1e-8 for step in seen)


def torch_close(one: Any, other: Any) -> bool:
    import torch

    return torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-7, atol=1e-9)


def test_stop_saves_and_the_same_command_goes_on_from_there(
    hub: Hub, vms: Any, tmp_path: Path
) -> None:
    total = 60
    a, b = vms(1, 2, RIG_TOTAL=str(total), RIG_SAME_START="1")
    hub.form(1, [a, b])
    hub.wait_step(15)
    for vm in (a, b):
        hub.send(vm.token, Stop(save=True))
    _, saved = hub.wait(Saved, error="")
    assert [vm.process.wait(10) for vm in (a, b)] == [0, 0]
    assert 15 <= saved.step < total

    (c,) = vms(3, RIG_TOTAL=str(total))
    _, ready = hub.wait(Ready, token=c.token)
    assert ready.newest_step == saved.step
    hub.form(2, [c])
    _, formed = hub.wait(Formed, generation=2)
    assert (formed.step, formed.source) == (saved.step, "checkpoint")
    hub.wait(Finished, step=total)
    hub.send(c.token, Leave())
    assert c.process.wait(10) == 0
    assert [round(v) for v in final_state(tmp_path, c)["visits"]] == visits(total)


def test_crash_of_user_code_is_reported_with_its_output_and_restarted(hub: Hub, vms: Any) -> None:
    marker = "$SUREFOOT_VM_DIR/crashed"
    command = (
        f"test -e {marker} || {{ touch {marker}; echo Traceback: no such layer; exit 3; }};"
        f" exec {sys.executable} {WORKER}"
    )
    (a,) = vms(1, SUREFOOT_COMMAND=command, RIG_TOTAL="10")
    _, exited = hub.wait(WorkerExited, token=a.token)
    assert exited.code == 3 and "no such layer" in exited.tail
    hub.form(1, [a])
    hub.wait(Finished, step=10)


@pytest.mark.parametrize("step", [0, 12])
def test_worker_that_hangs_is_ended_with_its_stack_and_those_who_wait_for_it_are_not(
    hub: Hub, vms: Any, step: int
) -> None:  # case 93
    a, b = vms(1, 2, SUREFOOT_HANG_S="2", RIG_HANG=f"vm1:{step}", RIG_TOTAL="30")
    hub.form(1, [a, b])
    _, exited = hub.wait(WorkerExited, token=a.token, timeout_s=60)
    assert exited.code == 70
    assert f"hangs in the loop body of step {step}" in exited.tail and "hang_once" in exited.tail
    time.sleep(3)
    assert not [h for h in hub.heard if isinstance(h.message, WorkerExited) and h.token == b.token]
    hub.form(2, [b], lost=(a.address,), urgent=True)
    hub.wait(Formed, generation=2)
    hub.wait(Finished, step=30)


def test_agent_ends_its_vm_when_the_lease_is_over(hub: Hub, vms: Any, tmp_path: Path) -> None:
    (a,) = vms(1, SUREFOOT_LEASE_S="2", RIG_TOTAL="100000")
    hub.form(1, [a])
    hub.wait_step(5)
    steps = len(read_log(tmp_path, a))
    hub.close()
    assert a.process.wait(20) == 75
    assert len(read_log(tmp_path, a)) > steps + 20, "training went on without the controller"
    assert not Path(f"/proc/{a.worker_pids()[0]}").exists()


def test_stream_in_small_parts_is_read_once_whoever_comes_and_goes(
    hub: Hub, vms: Any, tmp_path: Path
) -> None:
    total = 120
    a, b, c = vms(1, 2, 3, RIG_TOTAL=str(total), RIG_STREAM="1", RIG_MICRO="3")
    hub.form(1, [a])
    hub.wait_step(15)
    hub.form(2, [a, b, c], [a])
    hub.wait(Formed, generation=2, source="live", world=3)
    hub.wait_step(50)
    a.signal(signal.SIGKILL)
    hub.form(3, [b, c], lost=(a.address,), urgent=True)
    hub.wait(Formed, generation=3, source="live", world=2)
    hub.wait_step(80)
    for vm in (b, c):
        hub.send(vm.token, Stop(save=True))
    assert [vm.process.wait(20) for vm in (b, c)] == [0, 0]

    (d,) = vms(4, RIG_TOTAL=str(total), RIG_STREAM="1", RIG_MICRO="5")
    hub.form(4, [d])
    hub.wait(Formed, generation=4, source="checkpoint")
    hub.wait(Finished, step=total)
    hub.send(d.token, Leave())
    assert d.process.wait(20) == 0
    full, part = divmod(total, 9)  # 9 batches an epoch, unshuffled
    want = [full + (i < 12 * part) for i in range(SAMPLES)]
    assert [round(v) for v in final_state(tmp_path, d)["visits"]] == want
    parts = [len(row["ids"]) for vm in (a, b, c) for row in read_log(tmp_path, vm) if "ids" in row]
    assert max(parts) == 3


def test_newcomer_that_dies_on_its_way_costs_the_others_nothing(
    hub: Hub, vms: Any, tmp_path: Path
) -> None:
    a, b, c = vms(1, 2, 3, RIG_TOTAL="100000")
    hub.form(1, [a, b])
    hub.wait_step(10)
    c.signal(signal.SIGKILL)
    hub.form(2, [a, b, c], [a, b])
    time.sleep(0.3)
    begun = read_log(tmp_path, a)[-1]["step"]
    time.sleep(1.0)
    rows = read_log(tmp_path, a)
    assert rows[-1]["step"] > begun + 10, "the old group waited for the dead"
    hub.form(3, [a, b], [c], lost=(c.address,), urgent=True)
    _, formed = hub.wait(Formed, generation=3)
    assert (formed.world, formed.source, formed.lost_steps) == (2, "live", 0)
    assert all(row["stepped"] for row in read_log(tmp_path, a)), "a healthy step was broken"


def test_loss_while_the_next_group_forms_is_survived(hub: Hub, vms: Any) -> None:
    a, b, c = vms(1, 2, 3, RIG_TOTAL="100000")
    hub.form(1, [a, b, c])
    hub.wait_step(10)
    a.signal(signal.SIGKILL)
    b.signal(signal.SIGSTOP)
    hub.form(2, [b, c], lost=(a.address,), urgent=True)
    time.sleep(0.5)
    b.signal(signal.SIGKILL)
    hub.form(3, [c], lost=(b.address,), urgent=True)
    _, formed = hub.wait(Formed, generation=3)
    assert (formed.world, formed.source, formed.lost_steps) == (1, "live", 0)
