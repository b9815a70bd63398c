"""Which hosts there are, how ssh reaches them, and what using one is said to cost."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from surefoot.core.market import Capacity, Pool
from surefoot.core.units import micro_usd
from surefoot.errors import ConfigError

INSTALL = "{python} -c 'import surefoot'"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]*")


@dataclass(frozen=True, slots=True)
class SshHost:
    """One host, which is one VM at a time.

    `preemptible`: its owner may take it back at any moment, so it is sold as spot. `usd_h` is
    what an hour is said to cost (nothing is ever free: a nominal price still tells cheap from
    dear). `address`: where the others reach it, if that is not where ssh does.
    """

    name: str
    host: str = ""
    """What ssh is given: a name of ~/.ssh/config, a host name or an address; default: `name`."""
    user: str = ""
    port: int | None = None
    key: str = ""
    """File of the private key; empty: what ssh finds by itself."""
    site: str = "site"
    rack: str = "rack"
    """Hosts of one rack are lost together: pools are made of site, rack and type."""
    instance_type: str = "host"
    preemptible: bool = False
    usd_h: float = 0.01
    address: str = ""
    folder: str = ".surefoot"
    """Where the host keeps our files, relative to the user's home."""

    def __post_init__(self) -> None:
        for value in (self.name, self.site, self.rack, self.instance_type):
            if not _NAME.fullmatch(value.replace("-", ".")):
                raise ConfigError(f"ssh: {value!r} is no name for a host or its place")
        if not math.isfinite(self.usd_h) or self.usd_h <= 0:
            raise ConfigError(f"ssh: {self.name}: {self.usd_h} is no price")
        if self.target.startswith("-") or not self.target:
            raise ConfigError(f"ssh: {self.name}: {self.target!r} is no host")

    @property
    def target(self) -> str:
        """What ssh dials."""
        return self.host or self.name

    @property
    def pool(self) -> Pool:
        """The pool that the host belongs to."""
        return Pool("ssh", self.site, self.rack, self.instance_type)

    @property
    def capacity(self) -> Capacity:
        """How the host is sold."""
        return Capacity.SPOT if self.preemptible else Capacity.ON_DEMAND

    @property
    def price(self) -> int:
        """Micro-dollars per hour."""
        return micro_usd(self.usd_h)


@dataclass(frozen=True, slots=True)
class SshSettings:
    """Settings of the ssh provider. Raises ConfigError for hosts that contradict each other."""

    hosts: tuple[SshHost, ...]
    python: str = "python3"
    """The Python of the hosts that runs the agent."""
    install: str = INSTALL
    """Shell text run before the agent; fails the launch's VM if it fails."""
    ssh: tuple[str, ...] = ("ssh",)
    """The ssh program and options that all hosts share."""
    connect_s: int = 5
    answer_s: int = 30
    lost_ms: int = 60_000
    """A host that has not answered for this long counts as gone, with its VM."""

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ConfigError("ssh: no host is named", hint="ssh: {hosts: [{name: node1}]}")
        names = [host.name for host in self.hosts]
        if len(set(names)) != len(names):
            raise ConfigError("ssh: two hosts have the same name")
        prices: dict[tuple[Pool, Capacity], int] = {}
        for host in self.hosts:
            known = prices.setdefault((host.pool, host.capacity), host.price)
            if known != host.price:
                raise ConfigError(
                    f"ssh: {host.name}: hosts of one pool have one price",
                    hint="give it another `rack` or `instance_type`",
                )
