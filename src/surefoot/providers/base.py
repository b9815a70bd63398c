"""The port to a cloud: what the controller asks of every provider, and in which words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from surefoot.core.market import Capacity, Offering, Pool
from surefoot.errors import SurefootError


class VmState(Enum):
    """A VM's state as a provider lists it, translated from the cloud's words."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    """On its way out; still billed by some clouds."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Ask for one VM. The same `token` twice must never give two VMs.

    `boot` is what the VM is told at boot (agent address, run token, script, environment);
    it is passed as user data and may hold no long-lived secret.
    """

    token: str
    run: str
    pool: Pool
    capacity: Capacity
    boot: Mapping[str, str] = field(default_factory=dict)
    max_price_micro_usd_h: int | None = None


@dataclass(frozen=True, slots=True)
class Vm:
    """One VM as the provider lists it. Times are epoch ms on the controller's clock."""

    instance_id: str
    token: str
    run: str
    pool: Pool
    capacity: Capacity
    state: VmState
    launched_ms: int
    address: str = ""
    ended_ms: int | None = None
    preempted: bool = False
    """Whether the provider says that it took the VM back."""


class Provider(Protocol):
    """One cloud. Calls block; they raise only errors of `surefoot.errors`.

    CapacityError: another pool. ThrottledError: slow down. QuotaError, AuthError: ask the user.
    """

    @property
    def name(self) -> str:
        """Registered name, the first part of its pools."""

    def offerings(self) -> Sequence[Offering]:
        """Return what can be bought now, with prices; stale prices are left out."""

    def launch(self, request: LaunchRequest) -> Vm:
        """Launch one VM, tagged with run and token in the same call; idempotent by token."""

    def terminate(self, instance_id: str) -> None:
        """End a VM (spot request included). Ending an ended or unknown VM is no error."""

    def list(self, run: str) -> Sequence[Vm]:
        """Return all VMs tagged with the run, ended ones while the provider still lists them."""

    def next_change_ms(self) -> int | None:
        """Return when the market will next change, if the provider knows (a replay does)."""

    def close(self) -> None:
        """Let go of connections; VMs keep running."""


class Sweeper(Protocol):
    """What a provider can do besides, if it can list by tag: find and end VMs of any run."""

    def list_all(self) -> Sequence[Vm]:
        """Return all VMs that carry our tag, whatever their run; changes nothing."""

    def price_of(self, vm: Vm) -> int | None:
        """Return what a VM costs, micro-dollars per hour; None when that is not known."""

    def terminate_all(self, instance_ids: Sequence[str]) -> Mapping[str, SurefootError]:
        """End VMs in as few calls as can be; return what stood in the way, by VM."""
