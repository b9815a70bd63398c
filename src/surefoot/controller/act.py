"""How a plan is carried out: the intent is written, the provider is called, the outcome written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from surefoot.controller.clock import Clock
from surefoot.controller.guard import Guard
from surefoot.controller.passes import Passes
from surefoot.controller.record import Record
from surefoot.controller.settings import Settings
from surefoot.core.event import (
    DrainStarted,
    InstanceGone,
    InstanceLaunched,
    InstanceRequested,
    LaunchFailed,
)
from surefoot.core.fleet import Ending, Instance, InstanceState
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Launch
from surefoot.errors import LimitError, RetryLaterError, SurefootError, ThrottledError
from surefoot.providers.base import LaunchRequest, Provider, Vm

PATIENT = frozenset({InstanceState.STARTING, InstanceState.READY, InstanceState.NOTICED})


@dataclass(slots=True)
class _Doomed:
    """A VM to end: why, how often it was tried, when to try next."""

    token: str
    instance_id: str
    ending: Ending
    tries: int = 0
    due_ms: int = 0
    trouble: str = ""


@dataclass(slots=True)
class Actor:
    """The only caller of the provider's launch and terminate."""

    provider: Provider
    record: Record
    guard: Guard
    clock: Clock
    settings: Settings
    run: str
    boot: Mapping[str, str]
    passes: Passes | None = None
    """Gives each VM its own word for the hub, instead of the one in `boot`."""
    doomed: dict[str, _Doomed] = field(default_factory=dict)
    """By the provider's id: VMs whose end is still to be confirmed by a call that worked."""
    unsure: dict[str, int] = field(default_factory=dict)
    """Launches whose reply was lost: token -> when to ask again."""
    unsure_until_ms: int = 0
    """Until then a VM may still turn up that no list has shown."""
    refusals: dict[tuple[Pool, Capacity], str] = field(default_factory=dict)
    """Why launches are not even tried now, for people; by pool and capacity."""
    slow_until_ms: int = 0
    retry_ms: int | None = None
    """When a launch that was wanted, and not even tried, may be wanted again."""
    _throttled: int = 0

    # -- launching -----------------------------------------------------------------------------

    def launch(self, wish: Launch, now_ms: int) -> None:
        """Launch up to `wish.count` VMs; the first refusal ends the attempt."""
        for _ in range(wish.count):
            if not self._launch_one(wish.pool, wish.capacity, now_ms):
                return

    def _launch_one(self, pool: Pool, capacity: Capacity, now_ms: int) -> bool:
        key = (pool, capacity)
        why = self.record.backoff.why_not(key, now_ms)
        if why is None and self.slow_until_ms > now_ms:
            why = "the provider asked to slow down"
        if why is not None:
            self.refusals[key] = why
            until_ms = max(self.record.backoff.until_ms(key), self.slow_until_ms)
            self.retry_ms = until_ms if self.retry_ms is None else min(self.retry_ms, until_ms)
            return False
        try:
            offer = self.guard.check(self.record, pool, capacity, now_ms)
        except LimitError as error:
            self._refuse(key, error, now_ms)
            return False
        self.refusals.pop(key, None)
        token = self._next_token()
        self.record.add(InstanceRequested(now_ms, token, pool, capacity, offer.speed))
        return self._call(token, pool, capacity)

    def _next_token(self) -> str:
        return f"{self.run}-{self.record.requested + 1}"

    def _refuse(self, key: tuple[Pool, Capacity], error: LimitError, now_ms: int) -> None:
        """Journal a limit's refusal once, not at every plan that runs into it."""
        if self.refusals.get(key) == str(error):
            return
        self.refusals[key] = str(error)
        token = self._next_token()
        self.record.add(
            InstanceRequested(now_ms, token, *key),
            LaunchFailed(now_ms, token, "LimitError", str(error)),
        )

    def _call(self, token: str, pool: Pool, capacity: Capacity) -> bool:
        """Ask the provider for a VM whose intent is journaled; True when it was accepted."""
        request = LaunchRequest(
            token=token,
            run=self.run,
            pool=pool,
            capacity=capacity,
            boot=self._boot(token),
            max_price_micro_usd_h=self.guard.job.limits.max_price_micro_usd_h,
        )
        try:
            vm = self.provider.launch(request)
        except ThrottledError:
            self.slowed(self.clock.now_ms())
            self.unsure[token] = self.slow_until_ms
            return False
        except RetryLaterError:
            now_ms = self.clock.now_ms()
            self.unsure[token] = now_ms + self.settings.slow_down_ms
            self.unsure_until_ms = now_ms + self.settings.list_lag_ms
            return False
        except SurefootError as error:
            message = f"{error} {error.hint}".strip()
            failed = LaunchFailed(self.clock.now_ms(), token, type(error).__name__, message)
            self.unsure.pop(token, None)
            self.record.add(failed)
            return False
        self._throttled = 0
        self.unsure.pop(token, None)
        self.record.add(InstanceLaunched(self.clock.now_ms(), token, vm.instance_id))
        return True

    def _boot(self, token: str) -> dict[str, str]:
        """Return a VM's environment; the same for a launch that is tried again."""
        boot = {**self.boot, "SUREFOOT_TOKEN": token, "SUREFOOT_RUN": self.run}
        vm = self.record.state.fleet.get(token)
        if self.passes is not None and vm is not None:
            boot["SUREFOOT_SECRET"] = self.passes.issue(token, vm.requested_ms)
        return boot

    def why_not(self, now_ms: int) -> tuple[str, ...]:
        """Return why launches are not tried now: wishes refused, and places without quota."""
        return tuple(sorted({*self.refusals.values(), *self.record.backoff.quota(now_ms)}))

    def slowed(self, now_ms: int) -> None:
        """Pause all calls for longer and longer while the provider says to slow down."""
        wait = self.settings.slow_down_ms * 2 ** min(self._throttled, 20)
        self._throttled += 1
        self.slow_until_ms = now_ms + min(wait, self.settings.slow_down_limit_ms)

    # -- ending --------------------------------------------------------------------------------

    def drain(self, token: str, now_ms: int) -> None:
        """Write that a VM is let go; it leaves the group first and is ended then."""
        vm = self.record.state.fleet.get(token)
        if vm is not None and vm.state in PATIENT:
            self.record.add(DrainStarted(now_ms, token))

    def end(self, token: str, now_ms: int, ending: Ending = Ending.RELEASED) -> None:
        """End a VM at once, for `ending`; tried again until the provider has taken it."""
        vm = self.record.state.fleet.get(token)
        if vm is None:
            return
        if vm.state is InstanceState.REQUESTED:
            self._cancel(vm, now_ms)
            return
        if vm.instance_id in self.doomed:
            return
        if ending is Ending.RELEASED:
            self.drain(token, now_ms)
        self.doomed[vm.instance_id] = _Doomed(token, vm.instance_id, ending)
        self._try_end(self.doomed[vm.instance_id], now_ms)

    def bury(self, token: str, instance_id: str, now_ms: int) -> None:
        """End a VM that no fact is owed about: one believed dead, or one that nobody owns."""
        if instance_id and instance_id not in self.doomed:
            self.doomed[instance_id] = _Doomed(token, instance_id, Ending.RELEASED)
            self._try_end(self.doomed[instance_id], now_ms)

    def _cancel(self, vm: Instance, now_ms: int) -> None:
        self.unsure.pop(vm.token, None)
        self.unsure_until_ms = max(self.unsure_until_ms, now_ms + self.settings.list_lag_ms)
        self.record.add(LaunchFailed(now_ms, vm.token, "Cancelled", "not wanted any more"))

    def _try_end(self, doomed: _Doomed, now_ms: int) -> None:
        if self.slow_until_ms > now_ms:
            doomed.due_ms = self.slow_until_ms
            return
        doomed.tries += 1
        try:
            self.provider.terminate(doomed.instance_id)
        except SurefootError as error:
            if isinstance(error, ThrottledError):
                self.slowed(now_ms)
            wait = self.settings.clean_up_ms * 2 ** min(doomed.tries - 1, 5)
            doomed.due_ms = max(now_ms + wait, self.slow_until_ms)
            doomed.trouble = str(error)
            return
        self.doomed.pop(doomed.instance_id, None)
        vm = self.record.state.fleet.get(doomed.token)
        if vm is not None and vm.instance_id == doomed.instance_id:
            self.record.add(InstanceGone(self.clock.now_ms(), doomed.token, doomed.ending))

    # -- what is left over from before -----------------------------------------------------------

    def work(self, now_ms: int, orphans: list[Vm]) -> None:
        """Try again what is due: ends that failed, launches without an answer, orphans."""
        for vm in orphans:
            self.bury(vm.token, vm.instance_id, now_ms)
        for doomed in [d for d in self.doomed.values() if d.due_ms <= now_ms and d.tries]:
            self._try_end(doomed, now_ms)
        for doomed in [d for d in self.doomed.values() if not d.tries and d.due_ms <= now_ms]:
            self._try_end(doomed, now_ms)
        for token in [t for t, due in self.unsure.items() if due <= now_ms]:
            self._ask_again(token, now_ms)

    def _ask_again(self, token: str, now_ms: int) -> None:
        """Repeat a launch with its own token, which can never give a second VM."""
        vm = self.record.state.fleet.get(token)
        if vm is None or vm.state is not InstanceState.REQUESTED:
            self.unsure.pop(token, None)
        elif now_ms - vm.requested_ms > self.settings.request_ms:
            self.unsure.pop(token, None)
            self.unsure_until_ms = max(self.unsure_until_ms, now_ms + self.settings.list_lag_ms)
            why = "no answer to the launch within the limit"
            self.record.add(LaunchFailed(now_ms, token, "RetryLaterError", why))
        elif self.slow_until_ms > now_ms:
            self.unsure[token] = self.slow_until_ms
        else:
            self._call(token, vm.pool, vm.capacity)

    def wake_ms(self) -> int | None:
        """Return when something here is due next."""
        due = [d.due_ms for d in self.doomed.values()] + list(self.unsure.values())
        return min(due, default=None)
