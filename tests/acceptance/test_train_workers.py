"""Several workers in a VM, one for each GPU: one seat in the group, as many ranks."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from train_rig import Hub, Vm, read_log

from surefoot.core.wire import Finished, Formed, Ready, WorkerExited
from surefoot.train.sampler import DataOrder

TOTAL = 160


@pytest.mark.timeout(180)
def test_vms_of_two_workers_grow_lose_one_worker_and_finish(hub: Hub, tmp_path: Path) -> None:
    env = {"SUREFOOT_WORKERS": "2", "SUREFOOT_PACE": "240", "RIG_TOTAL": str(TOTAL)}
    vms = [Vm(hub, number, tmp_path, **env) for number in (1, 2)]
    a, b = vms
    try:
        for vm in vms:
            hub.wait(Ready, token=vm.token, timeout_s=120)
        assert sum(isinstance(h.message, Ready) for h in hub.heard) == 2, "one word a VM"
        hub.form(1, [a])
        hub.wait(Formed, generation=1, world=2, timeout_s=60)
        hub.wait_step(20, 60)
        hub.form(2, [a, b], [a])
        hub.wait(Formed, generation=2, world=4, source="live", timeout_s=60)
        hub.wait_step(50, 60)

        first = b.worker_pids()[0]
        os.kill(first, signal.SIGKILL)
        hub.wait(WorkerExited, token=b.token, code=137, timeout_s=60)
        hub.form(3, [a], lost=(b.address,), urgent=True)
        _, formed = hub.wait(Formed, generation=3, world=2, timeout_s=60)
        assert formed.source == "live" and formed.lost_steps == 0
        hub.wait(Finished, step=TOTAL, timeout_s=90)
        hub.wait(WorkerExited, token=a.token, code=0, timeout_s=60)
    finally:
        for vm in vms:
            vm.end()
    rows = read_log(tmp_path, a)
    finals = [row["final"] for row in rows if "final" in row]
    assert len(finals) == 2 and finals[0] == finals[1]
    order = DataOrder(101, 12, seed=1)
    counts = Counter(int(i) for step in range(TOTAL) for i in order.ids(step))
    assert finals[0]["visits"] == [float(counts[i]) for i in range(101)]
