"""Where a job's VMs come from: its provider, and how they reach the controller."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from surefoot.cli import local, markets
from surefoot.config import JobFile
from surefoot.controller.settings import Settings
from surefoot.core.forecast import get_forecaster
from surefoot.core.forecast.port import predict_all
from surefoot.core.market import Pool
from surefoot.core.trace import History
from surefoot.errors import ConfigError, NotBuiltError, RetryLaterError
from surefoot.providers.registry import load_provider

if TYPE_CHECKING:
    from surefoot.report.prospect import Question

LEASE_S = 900
"""A cloud VM whose controller is not heard for this long ends itself."""


SSH_SETTINGS = Settings(poll_ms=3_000, list_lag_ms=5_000, boot_limit_ms=600_000)
"""Hosts answer for themselves, at once: their lists do not lag."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a run takes place. `open` builds the provider (once); `close` lets go of it."""

    pools: tuple[Pool, ...]
    open: Callable[[], Any]
    listen: Callable[[int], socket.socket]
    address: Callable[[socket.socket], str]
    close: Callable[[str], None]
    """Takes the run's name; called when the controller has ended."""
    settings: Settings = field(default_factory=Settings)
    lease_s: int = LEASE_S
    workdir: str = ""
    notice: str = "none"
    spends: bool = True
    """Whether VMs cost real money."""


def ground_of(job_file: JobFile) -> Ground:
    """Return where the job runs; nothing is launched.

    Raises ConfigError or NotBuiltError for a cloud that cannot be used, AuthError for
    credentials that do not work.
    """
    local.check_provider(job_file)
    clouds = [c for c in job_file.clouds if c != "*"] or ["local"]
    if len(set(clouds)) > 1:
        raise NotBuiltError(
            f"{job_file.path}: resources: one run cannot span {' and '.join(clouds)} yet",
            hint="name one cloud; several regions of it are fine",
        )
    grounds = {"local": _local, "aws": _aws, "ssh": _ssh}
    return grounds[clouds[0]](job_file)


def _local(job_file: JobFile) -> Ground:
    trace, held = local.read_market(job_file), []

    def open_() -> Any:
        held.append(local.open_provider(job_file, trace, job_file.out / "vms"))
        return held[0]

    return Ground(
        pools=tuple(trace.pools),
        open=open_,
        listen=lambda port: held[0].listen(port),
        address=lambda listener: held[0].hub_address(listener),
        close=lambda _run: held[0].close(kill=True) if held else None,
        settings=local.SETTINGS,
        lease_s=local.LEASE_S,
        workdir=str(job_file.workdir),
        notice="aws",
        spends=False,
    )


def _aws(job_file: JobFile) -> Ground:
    _check_reach(job_file)
    provider = open_aws(job_file)

    def close(run: str) -> None:
        with contextlib.suppress(RetryLaterError):  # VMs are left: the next start tidies up
            provider.tidy(run)
        provider.close()

    return Ground(
        pools=provider.pools(),
        open=lambda: provider,
        listen=lambda port: _listen(port or job_file.hub[1]),
        address=lambda listener: f"{_own_address(job_file)}:{listener.getsockname()[1]}",
        close=close,
        notice="aws",
    )


def _ssh(job_file: JobFile) -> Ground:
    """Return hosts that the user has: nothing is bought, so nothing is asked."""
    _check_reach(job_file)
    provider = open_ssh(job_file)
    return Ground(
        pools=provider.pools(),
        open=lambda: provider,
        listen=lambda port: _listen(port or job_file.hub[1]),
        address=lambda listener: f"{_own_address(job_file)}:{listener.getsockname()[1]}",
        close=lambda _run: provider.close(),
        settings=SSH_SETTINGS,
        notice="none",
        spends=False,
    )


def open_ssh(job_file: JobFile) -> Any:
    """Return the ssh provider over a job's hosts. Raises ConfigError."""
    from surefoot.providers.ssh.settings import SshHost, SshSettings

    terms = dict(job_file.ssh)
    hosts = tuple(SshHost(**host) for host in terms.pop("hosts"))
    return load_provider("ssh")(SshSettings(hosts, **terms))


def open_aws(job_file: JobFile) -> Any:
    """Return the AWS provider for a job's regions and types. Raises ConfigError."""
    from surefoot.providers.aws.settings import AwsSettings

    places = [place for place in job_file.places if place.cloud == "aws"]
    if any("*" in place.region or "*" in place.instance_type for place in places):
        raise ConfigError(
            f"{job_file.path}: resources: AWS needs a region and an instance type",
            hint="resources: {infra: aws/us-east-1, instance_type: p4d.24xlarge}",
        )
    zones = {place.zone for place in places}
    settings = AwsSettings(
        regions=tuple(dict.fromkeys(place.region for place in places)),
        instance_types=tuple(dict.fromkeys(place.instance_type for place in places)),
        zones=frozenset() if any("*" in zone for zone in zones) else frozenset(zones),
        **job_file.aws,
    )
    return load_provider("aws")(settings)


def _check_reach(job_file: JobFile) -> None:
    """Refuse what a VM elsewhere could not reach: folders of this machine."""
    if "://" not in job_file.checkpoint:
        raise ConfigError(
            f"{job_file.path}: checkpoint.path: {job_file.checkpoint} is a folder of this machine,"
            " which VMs elsewhere cannot reach",
            hint="checkpoint: {path: s3://bucket/folder}, or file:///folder if all VMs share it",
        )
    if job_file.has_workdir:
        raise NotBuiltError(
            f"{job_file.path}: workdir: folders are not copied to VMs elsewhere yet",
            hint="leave workdir out; fetch the code in `setup`, or put it into the image",
        )


def _listen(port: int) -> socket.socket:
    return socket.create_server(("", port))


def _own_address(job_file: JobFile) -> str:
    """Return the address of the job file, else the one this machine speaks to others from."""
    if job_file.hub[0]:
        return job_file.hub[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address would be used
        except OSError:
            raise ConfigError(
                f"{job_file.path}: controller.address: this machine has no address that VMs reach",
                hint="controller: {address: 10.0.0.5, port: 7077}",
            ) from None
        return str(probe.getsockname()[0])


def question(job_file: JobFile, *, now_ms: int) -> Question:
    """Return what `surefoot plan` foretells for a cloud: the offers of now, and the prior."""
    local.check_provider(job_file)
    provider = open_ssh(job_file) if "ssh" in job_file.clouds else open_aws(job_file)
    try:
        return foretold(job_file, provider, now_ms=now_ms)
    finally:
        provider.close()


def foretold(job_file: JobFile, provider: Any, *, now_ms: int) -> Question:
    """Return the question for the offers that the provider has now."""
    from surefoot.report.futures import Drawn
    from surefoot.report.prospect import Question

    offers = tuple(provider.offerings())
    terms = markets.duration_terms(job_file, {o.pool for o in offers}, now_ms=now_ms)
    offers = tuple(o for o in offers if o.pool in terms.pools)
    history = History(now_ms=now_ms)
    beliefs = get_forecaster(terms.forecaster).fit(history, now_ms=now_ms)
    most = ceil(max(terms.throughput.ceiling, terms.num_nodes))
    forecasts = dict(predict_all(beliefs, terms.pools, now_ms=now_ms))
    return Question(
        job=terms,
        offers=offers,
        futures=Drawn(offers, forecasts, most),
        start_ms=now_ms,
        history=history,
        model=markets.costs_of(job_file),
    )
