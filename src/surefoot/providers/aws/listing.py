"""AWS's descriptions of instances, read as VMs of the port: states, owners, endings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from surefoot.core.market import Capacity, Pool
from surefoot.providers.base import Vm, VmState

RUN_TAG, TOKEN_TAG = "surefoot-run", "surefoot-token"

STATES: Mapping[str, VmState] = {
    "pending": VmState.PENDING,
    "running": VmState.RUNNING,
    "shutting-down": VmState.STOPPING,
    "stopping": VmState.STOPPING,
    "stopped": VmState.ENDED,
    "terminated": VmState.ENDED,
}
"""A stopped VM trains no more: it counts as ended, and the provider terminates it for good."""

TAKEN = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
"""Codes of a state reason with which AWS took a VM back."""

_MOMENT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def vm_of(region: str, instance: Mapping[str, Any]) -> Vm:
    """Return one instance of DescribeInstances or RunInstances as a VM.

    An unknown state counts as running: better a VM too many in the list than one too few.
    """
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    zone = instance.get("Placement", {}).get("AvailabilityZone", "")
    state = STATES.get(instance["State"]["Name"], VmState.RUNNING)
    spot = instance.get("InstanceLifecycle") == "spot"
    return Vm(
        instance_id=instance["InstanceId"],
        token=tags.get(TOKEN_TAG, ""),
        run=tags.get(RUN_TAG, ""),
        pool=Pool("aws", region, zone or "unknown", instance["InstanceType"]),
        capacity=Capacity.SPOT if spot else Capacity.ON_DEMAND,
        state=state,
        launched_ms=epoch_ms(instance["LaunchTime"]),
        address=instance.get("PrivateIpAddress") or "",
        ended_ms=_ended_ms(instance) if state is VmState.ENDED else None,
        preempted=_is_taken(instance) and state in (VmState.ENDED, VmState.STOPPING),
    )


def epoch_ms(moment: datetime) -> int:
    """Return a moment that botocore parsed as epoch ms."""
    return round(moment.timestamp() * 1000)


def is_stopped(instance: Mapping[str, Any]) -> bool:
    """Return whether an instance is stopped: not running, its disks still billed."""
    return bool(instance["State"]["Name"] in ("stopped", "stopping"))


def _is_taken(instance: Mapping[str, Any]) -> bool:
    code = (instance.get("StateReason") or {}).get("Code", "")
    return code in TAKEN


def _ended_ms(instance: Mapping[str, Any]) -> int | None:
    """Return when an instance ended, from AWS's text for people; None when it does not say."""
    found = _MOMENT.search(instance.get("StateTransitionReason") or "")
    if found is None:
        return None
    moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    return epoch_ms(moment)
