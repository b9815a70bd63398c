"""What the user says of AWS: where, which types, which image, and what AWS itself does not tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from surefoot.core.units import micro_usd
from surefoot.errors import ConfigError

INSTALL = "{python} -c 'import surefoot' 2>/dev/null || {python} -m pip install --quiet surefoot"
"""Shell text that makes `surefoot` importable in a VM whose image does not hold it."""


def _none() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """Settings of the AWS provider. Raises ConfigError for values that cannot be meant.

    Maps whose keys are regions know the key `*` for all others.
    """

    regions: tuple[str, ...]
    instance_types: tuple[str, ...]
    zones: frozenset[str] = frozenset()
    """Only these zones; empty: all that sell the types."""
    images: Mapping[str, str] = field(default_factory=_none)
    """Region -> AMI id, or `ssm:NAME` of a public parameter that holds one."""
    on_demand_usd_h: Mapping[str, float] = field(default_factory=dict[str, float])
    """`type` or `region/type` -> US dollars per hour; goes before AWS's price list."""
    speeds: Mapping[str, float] = field(default_factory=dict[str, float])
    """Type -> training speed relative to the job's reference VM."""
    key_name: str = ""
    """EC2 key pair for your own ssh; none by default."""
    subnets: Mapping[str, str] = field(default_factory=_none)
    """Zone -> subnet id; zones without one use the default VPC."""
    security_groups: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    """Region -> group ids; regions without any get a group of the job's own."""
    instance_profile: str = ""
    """Name or ARN of the role that VMs have (for the checkpoint bucket)."""
    placement_group: str = ""
    volume_gb: int | None = None
    python: str = "python3"
    """The Python of the image that runs the agent."""
    install: str = INSTALL
    unprotect: bool = False
    """Whether a VM with termination protection may be unprotected to end it."""
    profile: str = ""
    """Profile of the AWS configuration files; empty: the usual chain of credentials."""
    endpoint_url: str = ""
    """Another address of all of AWS's services (tests, private endpoints)."""
    page_size: int = 500
    refresh_ms: int = 30_000
    """Prices are asked for again after this long."""
    max_age_ms: int = 600_000
    """A price that AWS has not confirmed for this long is not offered any more."""
    list_lag_ms: int = 60_000
    """A new VM or spot request may be missing from AWS's lists for this long."""

    def __post_init__(self) -> None:
        if not self.regions or not self.instance_types:
            raise ConfigError("aws: at least one region and one instance type must be named")
        for name in (*self.regions, *self.instance_types):
            if not name or "*" in name:
                raise ConfigError(f"aws: regions and instance types must be named, not {name!r}")
        for key, price in self.on_demand_usd_h.items():
            if not math.isfinite(price) or price <= 0:
                raise ConfigError(f"aws: on_demand: {key}: {price} is no price")
        if not 5 <= self.page_size <= 1000:
            raise ConfigError(f"aws: page_size {self.page_size} must be within 5 and 1000")

    def image(self, region: str) -> str:
        """Return the AMI id or `ssm:NAME` for a region. Raises ConfigError when none is set."""
        found = self.images.get(region) or self.images.get("*")
        if not found:
            raise ConfigError(
                f"aws: no image for {region}", hint="aws: {image: ami-0123456789abcdef0}"
            )
        return found

    def groups(self, region: str) -> tuple[str, ...]:
        """Return the user's security groups for a region; empty: make one for the job."""
        return self.security_groups.get(region) or self.security_groups.get("*") or ()

    def told_on_demand(self, region: str, instance_type: str) -> int | None:
        """Return the user's own on-demand price, micro-dollars per hour; None when not given."""
        table = self.on_demand_usd_h
        price = table.get(f"{region}/{instance_type}", table.get(instance_type))
        return None if price is None else micro_usd(price)

    def speed(self, instance_type: str) -> float:
        """Return a type's training speed; 1.0 unless set."""
        return self.speeds.get(instance_type, 1.0)
