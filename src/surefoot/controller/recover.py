"""What a controller does first: take the lease, read the journal, see which VMs are still there."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from surefoot.controller.observe import ending_of
from surefoot.controller.record import Record
from surefoot.core.event import Event, InstanceGone, InstanceLaunched, LaunchFailed, State
from surefoot.core.fleet import InstanceState
from surefoot.providers.base import Vm, VmState


def this_process() -> str:
    """Return a name for this controller that `is_dead` understands: host:pid."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_dead(owner: str) -> bool:
    """Return whether a controller of that name is known not to run; False when in doubt."""
    host, _, pid = owner.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def reconcile(state: State, vms: Sequence[Vm], now_ms: int) -> list[Event]:
    """Return the facts that a former controller did not live to write.

    A request without a VM has failed (if its VM turns up later it is ended as an orphan), one
    with a VM was launched; a VM that is no longer there is gone.
    """
    alive = {vm.token: vm for vm in vms if vm.state is not VmState.ENDED}
    ended = {vm.token: vm for vm in vms if vm.state is VmState.ENDED}
    facts: list[Event] = []
    for known in state.fleet:
        vm = alive.get(known.token) or ended.get(known.token)
        if known.state is InstanceState.REQUESTED:
            if vm is None:
                why = "the controller went away before there was an answer"
                facts.append(LaunchFailed(now_ms, known.token, "RetryLaterError", why))
                continue
            born_ms = min(now_ms, max(vm.launched_ms, known.requested_ms))
            facts.append(InstanceLaunched(born_ms, known.token, vm.instance_id))
        if known.token not in alive:
            facts.append(_gone(state, known.token, ended.get(known.token), now_ms))
    return facts


def _gone(state: State, token: str, vm: Vm | None, now_ms: int) -> InstanceGone:
    known = state.fleet.instances[token]
    ended_ms = now_ms if vm is None or vm.ended_ms is None else vm.ended_ms
    at_ms = min(now_ms, max(ended_ms, known.launched_ms or known.requested_ms))
    return InstanceGone(at_ms, token, ending_of(known, preempted=vm is not None and vm.preempted))


def trains_on(record: Record) -> tuple[int, tuple[str, ...]] | None:
    """Return (generation, members) of the group that the journal leaves training, if any."""
    formed = record.formed
    if formed is None:
        return None
    fleet = record.state.fleet
    members = tuple(t for t in formed.members if fleet.get(t) is not None)
    return (formed.generation, formed.members) if members else None
