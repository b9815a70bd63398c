"""The VMs of a run and how far the training is: states, the one transition table, progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from surefoot.core.market import Capacity, Pool


class InstanceState(Enum):
    """Where a VM is in its life, as far as we know."""

    REQUESTED = "requested"
    """The intent is written; the provider may or may not have heard it."""
    STARTING = "starting"
    """The provider accepted; the VM boots, sets up, joins."""
    READY = "ready"
    """Its worker is in the group, or may join at the next generation."""
    NOTICED = "noticed"
    """The provider has announced that it will take the VM."""
    DRAINING = "draining"
    """We have decided to let it go; it hands over its work."""
    GONE = "gone"

    __hash__ = object.__hash__  # members are single, and looked up hundreds of times a decision


ALLOWED: Mapping[InstanceState, frozenset[InstanceState]] = {
    InstanceState.REQUESTED: frozenset({InstanceState.STARTING, InstanceState.GONE}),
    InstanceState.STARTING: frozenset(
        {InstanceState.READY, InstanceState.NOTICED, InstanceState.DRAINING, InstanceState.GONE}
    ),
    InstanceState.READY: frozenset(
        {InstanceState.NOTICED, InstanceState.DRAINING, InstanceState.GONE}
    ),
    InstanceState.NOTICED: frozenset({InstanceState.DRAINING, InstanceState.GONE}),
    InstanceState.DRAINING: frozenset({InstanceState.GONE}),
    InstanceState.GONE: frozenset(),
}
"""The only transitions there are; everything else is a bug or a stale report."""


class Ending(Enum):
    """Why a VM is gone."""

    PREEMPTED_NOTICE = "preempted_notice"
    PREEMPTED_SILENT = "preempted_silent"
    RELEASED = "released"
    """We terminated it."""
    LAUNCH_FAILED = "launch_failed"
    BOOT_FAILED = "boot_failed"
    USER_CODE = "user_code"
    HARDWARE = "hardware"

    @property
    def is_preemption(self) -> bool:
        """Whether the provider took it back (as opposed to us, or a failure)."""
        return self in (Ending.PREEMPTED_NOTICE, Ending.PREEMPTED_SILENT)


@dataclass(frozen=True, slots=True)
class Instance:
    """One VM. `token` is ours and exists before the provider's `instance_id` does."""

    token: str
    pool: Pool
    capacity: Capacity
    state: InstanceState
    requested_ms: int
    instance_id: str = ""
    launched_ms: int | None = None
    ready_ms: int | None = None
    noticed_ms: int | None = None
    notice_deadline_ms: int | None = None
    gone_ms: int | None = None
    ending: Ending | None = None
    speed: float = 1.0

    def moved(self, state: InstanceState) -> Instance:
        """Return this VM in `state`. Raises ValueError for a transition not in `ALLOWED`."""
        if state not in ALLOWED[self.state]:
            raise ValueError(f"{self.token}: {self.state.value} -> {state.value} is not allowed")
        return replace(self, state=state)

    def age_ms(self, now_ms: int) -> int:
        """Return time since launch, 0 before it."""
        return max(0, now_ms - self.launched_ms) if self.launched_ms is not None else 0


HELD = frozenset(
    {
        InstanceState.STARTING,
        InstanceState.READY,
        InstanceState.NOTICED,
        InstanceState.DRAINING,
    }
)
"""States in which the provider bills the VM."""

STAYING = frozenset({InstanceState.REQUESTED, InstanceState.STARTING, InstanceState.READY})
"""States that count as capacity which will be there soon and is not on its way out."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The run's VMs that are not gone, by token, in order of request."""

    instances: Mapping[str, Instance] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.instances.values())

    def __len__(self) -> int:
        return len(self.instances)

    def get(self, token: str) -> Instance | None:
        """Return the VM with our token, or None."""
        return self.instances.get(token)

    def by_id(self, instance_id: str) -> Instance | None:
        """Return the VM with the provider's id, or None."""
        return next((i for i in self if i.instance_id == instance_id), None)

    def select(
        self,
        *states: InstanceState,
        capacity: Capacity | None = None,
        pool: Pool | None = None,
    ) -> tuple[Instance, ...]:
        """Return the VMs in any of `states` (all states if none is named), filtered."""
        if not self.instances:
            return ()
        found = list(self.instances.values())
        if states:
            found = [i for i in found if i.state in states]
        if capacity is not None:
            found = [i for i in found if i.capacity is capacity]
        if pool is not None:
            found = [i for i in found if i.pool == pool]
        return tuple(found)

    def speed(self, *states: InstanceState, capacity: Capacity | None = None) -> float:
        """Return the VMs' worth (sum of speeds) of the selected VMs."""
        return sum(i.speed for i in self.select(*states, capacity=capacity))

    def with_instance(self, instance: Instance) -> Fleet:
        """Return the fleet with `instance` added or replaced; GONE ones are dropped."""
        table = dict(self.instances)
        if instance.state is InstanceState.GONE:
            table.pop(instance.token, None)
        else:
            table[instance.token] = instance
        return Fleet(table)


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """What a checkpoint costs, measured (B.6 in the theory notes): all in milliseconds.

    `stall_ms` blocks training, `persist_ms` is the time until durable, of which the share
    `slowdown` is lost to training, `restore_ms` is the time to load one.
    """

    stall_ms: int = 50
    persist_ms: int = 2_000
    restore_ms: int = 5_000
    slowdown: float = 0.0
    saves: int = 0
    """Measured saves behind the figures; 0: they are a guess made beforehand."""
    size_bytes: int = 0
    """Size of the newest checkpoint; 0: not known."""

    @property
    def effective_ms(self) -> float:
        """Training time that one save costs: stall + slowdown x persist."""
        return self.stall_ms + self.slowdown * self.persist_ms


@dataclass(frozen=True, slots=True)
class FleetCost:
    """What changing the fleet costs, measured; milliseconds."""

    boot_ms: int = 60_000
    """From launch accepted to ready."""
    reform_ms: int = 2_000
    """Pause of the survivors when membership changes."""
    detect_ms: int = 1_000
    """From a silent loss to its discovery."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the training is. `steps_safe` are those in a durable checkpoint."""

    steps_done: int = 0
    steps_safe: int = 0
    steps_lost: int = 0
    """Steps computed and later thrown away, over the whole run."""
    step_ms: int = 0
    """Measured time of one step with `members` VMs; 0 before the first measurement."""
    members: int = 0
    """VMs in the present group; 0 when there is none."""
    generation: int = 0
    last_save_ms: int = 0
    """When the newest durable checkpoint was begun; 0 before the first."""
