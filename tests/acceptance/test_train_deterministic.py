"""With deterministic=True a storm of membership changes leaves no bit of the weights changed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from train_rig import Hub, Vm, read_log

from surefoot.core.wire import Finished, Formed, Leave, Ready

WORKER = Path(__file__).with_name("train_storm_worker.py")
TOTAL, CHANGES = 300, 20
SEED = int(os.environ.get("SUREFOOT_STORM_SEED", "7"))


def alone(folder: Path, total: int, **more: str) -> list[dict[str, Any]]:
    """Return the log of a run by one worker that nothing disturbs."""
    folder.mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("SUREFOOT_")}
    log = folder / "alone.jsonl"
    more = {"RIG_LOG": str(log), "RIG_TOTAL": str(total), **more}
    more["SUREFOOT_CHECKPOINT"] = str(folder / "checkpoints")
    subprocess.run([sys.executable, WORKER], env={**env, **more}, check=True, timeout=150)
    return [json.loads(line) for line in log.read_text().splitlines()]


def storm(hub: Hub, vms: list[Vm], chosen: random.Random) -> None:
    """Change the group CHANGES times: members come and go, two are killed."""
    here, members = list(vms), vms[:2]
    hub.form(1, members)
    hub.wait(Formed, generation=1, timeout_s=60)
    for number in range(2, CHANGES + 2):
        time.sleep(chosen.uniform(0.05, 0.25))
        if number in (7, 15):
            victim = chosen.choice(members)
            here.remove(victim)
            left = [vm for vm in members if vm is not victim]
            victim.signal(signal.SIGKILL)
            more = [vm for vm in here if vm not in left][: 0 if left else 1]
            hub.form(number, left + more, left, lost=(victim.address,), urgent=True)
            members = left + more
        else:
            size = chosen.choice([n for n in (1, 2, 3) if n <= len(here)])
            keep = chosen.choice(members)  # somebody carries the live state on
            others = chosen.sample([vm for vm in here if vm is not keep], size - 1)
            hub.form(number, [keep, *others], members)
            members = [keep, *others]
        hub.wait(Formed, generation=number)


@pytest.mark.timeout(240)
def test_weights_are_bitwise_the_same_after_a_storm_of_twenty_changes(
    hub: Hub, tmp_path: Path
) -> None:
    print(f"repeat with SUREFOOT_STORM_SEED={SEED}")
    env = {"SUREFOOT_COMMAND": f"exec {sys.executable} {WORKER}", "RIG_TOTAL": str(TOTAL)}
    vms = [Vm(hub, n, tmp_path, SUREFOOT_PACE="130", **env) for n in range(1, 6)]
    try:
        for vm in vms:
            hub.wait(Ready, token=vm.token, timeout_s=90)
        storm(hub, vms, random.Random(SEED))
        hub.wait(Finished, step=TOTAL, timeout_s=90)
        for vm in vms:
            hub.send(vm.token, Leave())
        time.sleep(1)
    finally:
        for vm in vms:
            vm.end()
    undisturbed = alone(tmp_path / "alone", TOTAL)
    bits = {row["step"]: row["digest"] for row in undisturbed if "step" in row}
    finals = {row["final"] for row in undisturbed if "final" in row}
    worlds = {h.message.world for h in hub.heard if isinstance(h.message, Formed)}
    assert worlds == {1, 2, 3}
    rows = [row for vm in vms for row in read_log(tmp_path, vm)]
    assert len(rows) > TOTAL
    assert all(bits[row["step"]] == row["digest"] for row in rows if "step" in row)
    assert {row["final"] for row in rows if "final" in row} == finals
