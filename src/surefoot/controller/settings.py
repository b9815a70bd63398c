"""The controller's time limits and paces, with defaults for a cloud; all milliseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the controller waits for, and how long. Raises ValueError for values under 0."""

    poll_ms: int = 10_000
    """Between looks at the provider's list and prices when nothing else calls for one."""
    stale_price_ms: int = 600_000
    """Nothing is bought on a price that was not confirmed within this time."""
    list_lag_ms: int = 60_000
    """A launched VM may be missing from the provider's list for this long."""
    request_ms: int = 120_000
    """A launch without an answer is given up after this long (the list is asked meanwhile)."""
    boot_limit_ms: int = 900_000
    """A VM whose worker is not ready by then is ended and counts as a failed boot."""
    batch_ms: int = 300
    """Joiners that become ready within this time enter the group together."""
    leave_margin_ms: int = 2_000
    """A VM with a notice leaves the group this long, a step and a re-forming before its end."""
    form_limit_ms: int = 30_000
    """A group that has not formed by then is announced anew."""
    again_ms: int = 2_500
    """A formed group that reports its break twice gets a new generation after this long."""
    again_forming_ms: int = 8_000
    """The same for a group that never formed: forming itself takes time on a busy machine."""
    rejoin_ms: int = 5_000
    """After a restart of the controller agents have this long to come back."""
    drain_limit_ms: int = 60_000
    """A VM that we let go is ended after this long even if it has not handed over."""
    leave_limit_ms: int = 3_000
    """Workers that were told to leave at the end of a run have this long to exit."""
    stop_limit_ms: int = 60_000
    """A stop waits this long for the final checkpoint."""
    progress_ms: int = 1_000
    """Least time between two journaled reports of progress."""
    renew_ms: int = 3_000
    """Between renewals of the controller's lease."""
    backoff_ms: int = 15_000
    """How long a pool is left alone after its first refusal; doubles with each further one."""
    backoff_limit_ms: int = 600_000
    slow_down_ms: int = 1_000
    """Pause of all calls after the provider said to slow down; doubles with each further time."""
    slow_down_limit_ms: int = 60_000
    quota_pause_ms: int = 3_600_000
    """How long a pool is left alone after a refusal for quota."""
    auth_pause_ms: int = 300_000
    """How long nothing is launched after credentials were refused."""
    clean_up_ms: int = 2_000
    """Between tries to end a VM whose end failed or did not show."""
    max_crashes: int = 3
    """Crashes of the user's code after which the run fails."""
    max_setup_failures: int = 2
    """VMs on which the worker may fail before any group ever trained."""
    max_boot_rounds: int = 20
    """VMs in a row that start and never come up, while none trains, after which the run fails."""
    by_checkpoint: bool = False
    """Whether state passes from group to group by checkpoints only, not from memory to memory."""
    reannounce: int = 2
    """A member that reports the same broken generation this often gets a new one."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
