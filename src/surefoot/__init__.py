"""Surefoot's public names; each is imported from its module when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.checkpoint import Checkpointer
    from surefoot.config import JobFile, load_job
    from surefoot.core.account import Account, summary
    from surefoot.core.decide import Observation, Policy
    from surefoot.core.forecast import Forecast, Forecaster, get_forecaster
    from surefoot.core.job import Job
    from surefoot.core.market import Capacity, Pool
    from surefoot.core.plan import Plan
    from surefoot.core.policy import get_policy
    from surefoot.core.trace import History, Trace
    from surefoot.errors import SurefootError
    from surefoot.sim import CostModel, Outcome, simulate
    from surefoot.traces import read_trace
    from surefoot.train import Session

__version__ = "0.1.0"

_HOMES = {
    "Account": "core.account",
    "Capacity": "core.market",
    "Checkpointer": "checkpoint",
    "CostModel": "sim",
    "Forecast": "core.forecast",
    "Forecaster": "core.forecast",
    "History": "core.trace",
    "Job": "core.job",
    "JobFile": "config",
    "Observation": "core.decide",
    "Outcome": "sim",
    "Plan": "core.plan",
    "Policy": "core.decide",
    "Pool": "core.market",
    "Session": "train",
    "SurefootError": "errors",
    "Trace": "core.trace",
    "get_forecaster": "core.forecast",
    "get_policy": "core.policy",
    "load_job": "config",
    "read_trace": "traces",
    "simulate": "sim",
    "summary": "core.account",
}

__all__ = [
    "Account",
    "Capacity",
    "Checkpointer",
    "CostModel",
    "Forecast",
    "Forecaster",
    "History",
    "Job",
    "JobFile",
    "Observation",
    "Outcome",
    "Plan",
    "Policy",
    "Pool",
    "Session",
    "SurefootError",
    "Trace",
    "get_forecaster",
    "get_policy",
    "load_job",
    "read_trace",
    "simulate",
    "summary",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    return getattr(importlib.import_module(f"surefoot.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
