"""What the acceptance tests of training share: a small hub, and VMs of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from train_rig import Hub, Vm

from surefoot.core.wire import Ready


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.close()


@pytest.fixture
def vms(hub: Hub, tmp_path: Path) -> Iterator[Any]:
    """Start VMs by number, `vms(1, 2, RIG_TOTAL="30")`, and wait until they are ready."""
    made: list[Vm] = []

    def start(*numbers: int, **env: str) -> list[Vm]:
        new = [Vm(hub, n, tmp_path, **{"SUREFOOT_PACE": "240", **env}) for n in numbers]
        made.extend(new)
        for vm in new:
            hub.wait(Ready, token=vm.token, timeout_s=90)
        return new

    yield start
    for vm in made:
        vm.end()
