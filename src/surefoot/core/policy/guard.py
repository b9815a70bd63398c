"""What overrules every policy: work that is done, and money that is spent."""

from __future__ import annotations

from surefoot.core.decide import Observation
from surefoot.core.fleet import STAYING, InstanceState
from surefoot.core.job import Job
from surefoot.core.plan import Action, Checkpoint, Drain, Plan, Terminate
from surefoot.core.policy.terms import (
    budget_left,
    burn_micro_usd_h,
    closing_ms,
    dollars,
    steps_left,
)
from surefoot.core.units import MS_PER_HOUR


def overruled(job: Job, seen: Observation) -> Plan | None:
    """Return the plan that ends the fleet when nothing may go on, else None."""
    if steps_left(job, seen) == 0:
        return _let_all_go(seen, "all steps are done: every VM is let go")
    if job.limits.budget_micro_usd is None:
        return None
    left, burn = budget_left(job, seen), burn_micro_usd_h(seen)
    if left <= 0 or left <= burn * 2 * closing_ms(seen) / MS_PER_HOUR:
        held = len(seen.state.fleet)
        reason = (
            f"budget: {dollars(max(0.0, left))} left, {held} VMs at {dollars(burn)}/h need it for "
            "a last checkpoint and an orderly end"
        )
        return _let_all_go(seen, reason)
    return None


def leave(seen: Observation, token: str) -> Action:
    """Return the action that lets one VM go: a hand-over if it works, an end if it does not."""
    vm = seen.state.fleet.get(token)
    if vm is not None and vm.state is InstanceState.READY:
        return Drain(token)
    return Terminate(token)


def _let_all_go(seen: Observation, reason: str) -> Plan:
    stay = sorted(vm.token for vm in seen.state.fleet.select(*STAYING))
    actions: list[Action] = [Checkpoint("the fleet is let go")] if stay else []
    actions += [leave(seen, token) for token in stay]
    return Plan(
        actions=tuple(actions),
        reason=reason,
        revisit_at_ms=seen.now_ms + 60_000,
        memory=seen.state.memory,
    )
