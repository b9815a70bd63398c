"""How events grow the `History`: what each fact teaches about the pools."""

from __future__ import annotations

from surefoot.core.event import Event, InstanceGone, InstanceLaunched, LaunchFailed, OfferingsSeen
from surefoot.core.event import State as RunState
from surefoot.core.fleet import Instance, InstanceState
from surefoot.core.market import Capacity, Offering
from surefoot.core.trace import History, LifeEnd

PROBE_COALESCE_MS = 300_000
"""An unchanged answer about availability is recorded again only after this long."""


def observe(history: History, event: Event, state: RunState) -> None:
    """Add to `history` what `event` teaches. Call it BEFORE `apply(state, event)`.

    Only spot VMs and spot offerings count: on-demand VMs are not preempted.
    """
    match event:
        case OfferingsSeen():
            for offering in event.offerings:
                if offering.capacity is Capacity.SPOT:
                    _offered(history, offering, event.at_ms)
        case InstanceLaunched():
            vm = _spot(state, event.token)
            if vm is not None and vm.state is InstanceState.REQUESTED:
                history.tried(vm.pool, at_ms=event.at_ms, asked=1, granted=1)
                history.born(vm.pool, vm.token, at_ms=event.at_ms)
        case LaunchFailed():
            vm = _spot(state, event.token)
            if vm is not None and event.kind == "CapacityError":
                history.tried(vm.pool, at_ms=event.at_ms, asked=1, granted=0)
        case InstanceGone():
            vm = _spot(state, event.token)
            if vm is not None:
                end = LifeEnd.PREEMPTED if event.ending.is_preemption else LifeEnd.CENSORED
                history.ended(vm.pool, vm.token, at_ms=event.at_ms, end=end)
        case _:
            history.now_ms = max(history.now_ms, event.at_ms)


def _spot(state: RunState, token: str) -> Instance | None:
    vm = state.fleet.get(token)
    return vm if vm is not None and vm.capacity is Capacity.SPOT else None


def _offered(history: History, offering: Offering, at_ms: int) -> None:
    history.priced(offering.pool, at_ms=at_ms, micro_usd_h=offering.price_micro_usd_h)
    if offering.available is None:
        return
    granted = max(0, offering.available)
    asked = max(1, granted)
    launches = history.of(offering.pool).launches
    if launches:
        last = launches[-1]
        same = (last.asked, last.granted) == (asked, granted)
        if same and at_ms - last.at_ms < PROBE_COALESCE_MS:
            return
    history.tried(offering.pool, at_ms=at_ms, asked=asked, granted=granted)
