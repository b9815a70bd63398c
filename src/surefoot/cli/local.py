"""What `run` needs to know of the local provider: how it is built, and a pace that suits it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.config import JobFile
from surefoot.controller.settings import Settings
from surefoot.core.trace import Trace
from surefoot.errors import ConfigError, NotBuiltError
from surefoot.providers.registry import load_provider
from surefoot.sim import CostModel
from surefoot.traces import read_trace

if TYPE_CHECKING:
    from surefoot.providers.local.provider import LocalProvider

USABLE = ("local", "aws", "ssh")
"""Clouds that `surefoot run` knows how to set up."""

LEASE_S = 30
"""A local VM whose controller is not heard for this long ends itself."""

SETTINGS = Settings(
    poll_ms=1_000,
    list_lag_ms=3_000,
    request_ms=20_000,
    boot_limit_ms=180_000,
    drain_limit_ms=15_000,
    stop_limit_ms=30_000,
    backoff_ms=2_000,
    backoff_limit_ms=5_000,
)
"""A local VM boots in seconds and its list never lags: wait for less than in a cloud."""

COSTS = CostModel(
    reform_ms=250,
    reform_alone_ms=10,
    detect_ms=100,
    stall_ms=15,
    persist_ms=200,
    restore_ms=500,
    backoff_ms=SETTINGS.backoff_ms,
    backoff_limit_ms=SETTINGS.backoff_limit_ms,
)
"""What the same things cost here, for simulating a local job: measured on two cores."""


def check_provider(job_file: JobFile) -> None:
    """Refuse a job that names a cloud which this version cannot use.

    Raises NotBuiltError or ConfigError.
    """
    for cloud in job_file.clouds:
        if cloud == "*" and job_file.local is not None:
            continue
        if cloud == "*":
            raise ConfigError(
                f"{job_file.path}: resources.infra: name the cloud, `*` is not enough",
                hint="infra: local, with a section `local:`, runs on this machine",
            )
        load_provider(cloud)
        if cloud not in USABLE:
            raise NotBuiltError(
                f"`surefoot run` cannot use {cloud} yet",
                hint=f"this version runs on infra: {' or '.join(USABLE)}",
            )


def read_market(job_file: JobFile) -> Trace:
    """Return the trace that the job's local market replays."""
    if job_file.local is None:
        raise ConfigError(
            f"{job_file.path}: local: this section is needed to run here",
            hint="local: {trace: market.yaml}",
        )
    return read_trace(job_file.local.trace)


def open_provider(job_file: JobFile, trace: Trace, state_dir: Path) -> LocalProvider:
    """Open the local provider for a job; its VMs find this Python first on their PATH."""
    from surefoot.providers.local.provider import LocalProvider

    assert job_file.local is not None
    here = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != here:
        os.environ["PATH"] = os.pathsep.join((here, path))
    return LocalProvider(
        trace, state_dir=state_dir, vms=job_file.local.vms, pace=job_file.local.pace
    )
