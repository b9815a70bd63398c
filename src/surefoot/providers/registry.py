"""The clouds by name: built-in ones in a literal table, others through an entry-point group."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from surefoot.errors import ConfigError, NotBuiltError
from surefoot.providers.base import Provider

ENTRY_POINTS = "surefoot.providers"

Loader = Callable[[], Callable[..., Provider]]
"""Imports a provider's module (and so its SDK) and returns its class or factory."""


def _local() -> Callable[..., Provider]:
    from surefoot.providers.local.provider import LocalProvider

    return LocalProvider


def _aws() -> Callable[..., Provider]:
    from surefoot.providers.aws.compute import AwsProvider

    return AwsProvider


def _ssh() -> Callable[..., Provider]:
    from surefoot.providers.ssh.provider import SshProvider

    return SshProvider


def _not_built(name: str, what: str) -> Loader:
    def load() -> Callable[..., Provider]:
        raise NotBuiltError(
            f"the {name} provider is not built yet ({what})",
            hint="this version runs on infra: local",
        )

    return load


PROVIDERS: dict[str, Loader] = {
    "local": _local,
    "aws": _aws,
    "gcp": _not_built("gcp", "Compute Engine"),
    "azure": _not_built("azure", "Azure virtual machines"),
    "kubernetes": _not_built("kubernetes", "pods on preemptible nodes"),
    "slurm": _not_built("slurm", "a preemptible partition"),
    "skypilot": _not_built("skypilot", "clouds through SkyPilot"),
    "ssh": _ssh,
}


def provider_names() -> tuple[str, ...]:
    """Return all registered names, outsiders' included, sorted."""
    return tuple(sorted({*PROVIDERS, *(point.name for point in _outside())}))


def load_provider(name: str) -> Callable[..., Provider]:
    """Return the provider's class or factory; what it takes is its own affair.

    A built-in name cannot be taken over by an outsider. Raises ConfigError for an unknown name,
    NotBuiltError for a cloud that this version cannot use yet.
    """
    if name in PROVIDERS:
        return PROVIDERS[name]()
    found: Any = next((point for point in _outside() if point.name == name), None)
    if found is None:
        raise ConfigError(
            f"there is no provider {name!r}",
            hint=f"the known ones are: {', '.join(provider_names())}",
        )
    factory: Callable[..., Provider] = found.load()
    return factory


def _outside() -> tuple[Any, ...]:
    return tuple(entry_points(group=ENTRY_POINTS))
