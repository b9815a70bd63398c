"""Kill -9 of trainer, writer or both: acknowledged checkpoints load, the other side goes on."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch
from checkpoint_kills import TARGETS, kill_once

SEED = int(os.environ.get("SUREFOOT_SEED", "20261130"))


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_acknowledged_is_lost_whoever_is_killed(tmp_path: Path, target: str) -> None:
    """Repeat with SUREFOOT_SEED=<seed>; benchmarks/crash.py does a thousand of them."""
    torch.set_num_threads(1)
    rng = random.Random(f"{SEED}-{target}")
    for number in range(4):
        outcome = kill_once(tmp_path, target, rng)
        assert not outcome.lost, (number, outcome, SEED)
        assert outcome.went_on, (number, outcome, SEED)
