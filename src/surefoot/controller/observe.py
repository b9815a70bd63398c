"""What the provider shows, turned into facts: prices, VMs that came, VMs that went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from surefoot.controller.guard import Guard
from surefoot.controller.settings import Settings
from surefoot.core.event import (
    Event,
    InstanceGone,
    InstanceLaunched,
    OfferingsSeen,
    State,
)
from surefoot.core.fleet import Ending, Fleet, Instance, InstanceState
from surefoot.core.market import Capacity, Market, Offering
from surefoot.providers.base import Provider, Vm, VmState

MISSING_LOOKS = 2
"""A VM that was listed must be absent from this many looks before it counts as gone."""


@dataclass(slots=True)
class Watch:
    """Looks at one provider when it is due; remembers what a single look cannot show."""

    provider: Provider
    run: str
    guard: Guard
    settings: Settings
    due_ms: int = 0
    change_ms: int | None = None
    """When the market will change next, as the provider said at the last look."""
    listed: set[str] = field(default_factory=set)
    missed: dict[str, int] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    """VMs that were sent Leave or Stop: one that has ended by itself was let go, not taken."""

    def look(
        self, state: State, now_ms: int, heard: frozenset[str]
    ) -> tuple[list[Event], list[Vm]]:
        """Return (facts, VMs of this run that nobody owns).

        `heard` are the tokens whose agents are connected: such a VM is there, whatever a list
        says by leaving it out. Raises what the provider raises; then nothing has changed.
        """
        offers = tuple(self.provider.offerings())
        vms = self.provider.list(self.run)
        self.due_ms = now_ms + self.settings.poll_ms
        self.change_ms = self.provider.next_change_ms()
        self.guard.saw(offers, now_ms)
        facts: list[Event] = []
        changed = news(state.market, offers)
        if changed:
            facts.append(OfferingsSeen(now_ms, changed))
        for vm in sorted(vms, key=_alive_first):
            facts += self._compare(state.fleet, vm, now_ms)
        facts += self._absent(state.fleet, vms, now_ms, heard)
        return facts, [vm for vm in vms if _unowned(state.fleet, vm)]

    def wake_ms(self) -> int:
        """Return when to look next: at the provider's next change if it knows, else by the pace."""
        return self.due_ms if self.change_ms is None else min(self.due_ms, self.change_ms)

    def _compare(self, fleet: Fleet, vm: Vm, now_ms: int) -> list[Event]:
        known = fleet.get(vm.token)
        if known is None or known.instance_id not in ("", vm.instance_id):
            return []
        facts: list[Event] = []
        if known.state is InstanceState.REQUESTED:
            born_ms = min(now_ms, max(vm.launched_ms, known.requested_ms))
            facts.append(InstanceLaunched(born_ms, vm.token, vm.instance_id))
        if vm.state is VmState.ENDED:
            ended_ms = now_ms if vm.ended_ms is None else vm.ended_ms
            at_ms = min(now_ms, max(ended_ms, known.launched_ms or 0))
            facts.append(InstanceGone(at_ms, vm.token, self._ending(known, vm)))
        else:
            self.listed.add(vm.token)
            self.missed.pop(vm.token, None)
        return facts

    def _ending(self, known: Instance, vm: Vm) -> Ending:
        if vm.token in self.told and not vm.preempted and known.notice_deadline_ms is None:
            return Ending.RELEASED
        return ending_of(known, preempted=vm.preempted)

    def _absent(
        self, fleet: Fleet, vms: Sequence[Vm], now_ms: int, heard: frozenset[str]
    ) -> list[Event]:
        shown = {vm.token for vm in vms}
        gone: list[Event] = []
        for vm in fleet:
            if vm.state is InstanceState.REQUESTED or vm.token in shown or vm.token in heard:
                continue
            old = vm.age_ms(now_ms) > self.settings.list_lag_ms
            if vm.token not in self.listed and not old:
                continue
            self.missed[vm.token] = self.missed.get(vm.token, 0) + 1
            if self.missed[vm.token] >= MISSING_LOOKS:
                gone.append(InstanceGone(now_ms, vm.token, ending_of(vm, preempted=False)))
        return gone


def ending_of(vm: Instance, *, preempted: bool) -> Ending:
    """Return why a VM that we did not see go is gone.

    A spot VM that vanishes without a word counts as preempted: that is what happens to them.
    """
    if vm.state is InstanceState.DRAINING and not preempted:
        return Ending.RELEASED
    if vm.notice_deadline_ms is not None:
        return Ending.PREEMPTED_NOTICE
    if preempted or vm.capacity is Capacity.SPOT:
        return Ending.PREEMPTED_SILENT
    return Ending.BOOT_FAILED if vm.state is InstanceState.STARTING else Ending.HARDWARE


def news(market: Market, offers: Sequence[Offering]) -> tuple[Offering, ...]:
    """Return the offerings that differ from what the market says."""
    return tuple(o for o in offers if market.get(o.pool, o.capacity) != o)


def _alive_first(vm: Vm) -> tuple[bool, str]:
    """An ended namesake of a running VM must not be taken for it."""
    return (vm.state is VmState.ENDED, vm.instance_id)


def _unowned(fleet: Fleet, vm: Vm) -> bool:
    if vm.state in (VmState.ENDED, VmState.STOPPING):
        return False
    known = fleet.get(vm.token)
    return known is None or known.instance_id not in ("", vm.instance_id)
