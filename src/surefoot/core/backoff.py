"""Which pools to leave alone, and until when: derived from events, so a restart knows it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from surefoot.core.event import Event, InstanceGone, InstanceLaunched, LaunchFailed, State
from surefoot.core.fleet import Ending
from surefoot.core.market import Capacity, Pool

BLOCKED = "blocked by quota"

Key = tuple[Pool, Capacity]


@dataclass(slots=True)
class Pause:
    """Refusals in a row, until when the pool is left alone, and the reason for people."""

    count: int = 0
    until_ms: int = 0
    why: str = ""


@dataclass(slots=True)
class Backoff:
    """Refusals by (pool, capacity); `observe` every event before `apply`, as for the history.

    A pool is left alone for `first_ms` after its first refusal, twice as long after each further
    one up to `limit_ms`; for `quota_ms` after a refusal for quota. After refused credentials
    nothing is launched for `auth_ms`.
    """

    first_ms: int
    limit_ms: int
    quota_ms: int = 3_600_000
    auth_ms: int = 300_000
    pauses: dict[Key, Pause] = field(default_factory=dict)
    auth_until_ms: int = 0
    auth_why: str = ""

    def observe(self, event: Event, state: State) -> None:
        """Take in one event."""
        match event:
            case LaunchFailed(kind="LimitError" | "Cancelled"):
                return
            case LaunchFailed(kind="AuthError"):
                self.auth_until_ms = event.at_ms + self.auth_ms
                self.auth_why = event.message
            case LaunchFailed():
                self._refused(event, state)
            case InstanceLaunched():
                self.auth_until_ms, self.auth_why = 0, ""
                vm = state.fleet.get(event.token)
                if vm is not None:
                    self.pauses.pop((vm.pool, vm.capacity), None)
            case InstanceGone(ending=Ending.BOOT_FAILED):
                vm = state.fleet.get(event.token)
                if vm is not None:
                    self._longer((vm.pool, vm.capacity), event.at_ms, "its VMs do not come up")
            case _:
                return

    def spot(self, now_ms: int) -> Mapping[Pool, int]:
        """Return the spot pools to leave alone now, with the instant until which."""
        return {
            pool: pause.until_ms
            for (pool, capacity), pause in self.pauses.items()
            if capacity is Capacity.SPOT and pause.until_ms > now_ms
        }

    def why_not(self, key: Key, now_ms: int) -> str | None:
        """Return why nothing may be launched there now; None when it may."""
        if self.auth_until_ms > now_ms:
            return f"credentials were refused: {self.auth_why}"
        pause = self.pauses.get(key)
        if pause is None or pause.until_ms <= now_ms:
            return None
        return f"{key[0]} {key[1].value} was refused {pause.count} times: {pause.why}"

    def quota(self, now_ms: int) -> tuple[str, ...]:
        """Return a sentence for each place that is left alone now because of its quota."""
        held = {k: p for k, p in self.pauses.items() if p.why.startswith(BLOCKED)}
        found = (self.why_not(key, now_ms) for key in held)
        return tuple(why for why in found if why is not None)

    def until_ms(self, key: Key) -> int:
        """Return when something may be launched there again; an instant gone by if it may now."""
        pause = self.pauses.get(key)
        return max(self.auth_until_ms, pause.until_ms if pause else 0)

    def next_ms(self, now_ms: int) -> int | None:
        """Return when the next pause ends."""
        ends = [p.until_ms for p in self.pauses.values()] + [self.auth_until_ms]
        return min((end for end in ends if end > now_ms), default=None)

    def _refused(self, event: LaunchFailed, state: State) -> None:
        vm = state.fleet.get(event.token)
        if vm is None:
            return
        self._longer((vm.pool, vm.capacity), event.at_ms, event.message or event.kind)
        if event.kind == "QuotaError":
            pause = self.pauses[vm.pool, vm.capacity]
            pause.why = f"{BLOCKED}: {pause.why}"
            pause.until_ms = event.at_ms + self.quota_ms

    def _longer(self, key: Key, at_ms: int, why: str) -> None:
        """Count a refusal; several within one pause (a batch of launches) count once."""
        pause = self.pauses.setdefault(key, Pause())
        pause.why = why
        if pause.until_ms > at_ms:
            return
        pause.count += 1
        wait = self.first_ms * 2 ** min(pause.count - 1, 20)
        pause.until_ms = at_ms + min(wait, self.limit_ms)
