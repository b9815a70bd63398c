"""The fleet policies by name, baselines among them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from surefoot.core.decide import Policy
from surefoot.core.policy.fixed_mix import FixedMix
from surefoot.core.policy.greedy import Greedy
from surefoot.core.policy.hybrid import Hybrid
from surefoot.core.policy.liveput import Liveput
from surefoot.core.policy.on_demand import OnDemand
from surefoot.core.policy.oracle import Oracle
from surefoot.core.policy.skyserve import SkyServe
from surefoot.core.policy.spot_only import SpotOnly
from surefoot.core.policy.uniform_progress import UniformProgress
from surefoot.core.trace import Trace
from surefoot.errors import ConfigError

_ALL: tuple[Policy, ...] = (
    Hybrid(),
    OnDemand(),
    SpotOnly(),
    Greedy(),
    FixedMix(),
    UniformProgress(),
    SkyServe(),
    Liveput(),
)

POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in _ALL}


ORACLE = "oracle"
"""The offline optimum: not in `POLICIES`, since it takes a trace."""


def policy_for(name: str, trace: Trace) -> Policy:
    """Return the policy called `name` for a simulation on `trace`, the oracle among them.

    Raises ConfigError for an unknown name.
    """
    return Oracle(trace) if name == ORACLE else get_policy(name)


def get_policy(name: str) -> Policy:
    """Return the policy registered under `name`.

    Raises ConfigError, naming the nearest known policy, for an unknown one, and for `oracle`,
    which sees the future of a trace and is made by `policy_for`.
    """
    if name in POLICIES:
        return POLICIES[name]
    if name == ORACLE:
        raise ConfigError(
            "policy: 'oracle' looks ahead in a recorded trace, so it can only be simulated",
            hint="surefoot compare job.yaml --traces DIR --policies hybrid,oracle",
        )
    near = difflib.get_close_matches(name, POLICIES, n=1, cutoff=0.4)
    guess = f", did you mean {near[0]!r}?" if near else ""
    known = ", ".join(sorted(POLICIES))
    raise ConfigError(f"policy: unknown policy {name!r}{guess}", hint=f"known policies: {known}")
