"""Providers by name."""

from __future__ import annotations

import importlib.metadata

import pytest

from surefoot.errors import ConfigError, NotBuiltError
from surefoot.providers import registry
from surefoot.providers.local.provider import LocalProvider


def test_finds_the_local_provider() -> None:
    assert registry.load_provider("local") is LocalProvider


@pytest.mark.parametrize("name", ["gcp", "azure", "kubernetes", "slurm", "skypilot"])
def test_a_cloud_that_is_not_built_says_so_by_name(name: str) -> None:
    with pytest.raises(NotBuiltError, match=name) as error:
        registry.load_provider(name)
    assert error.value.hint


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="lokal") as error:
        registry.load_provider("lokal")
    assert "local" in error.value.hint and "aws" in error.value.hint


def test_outsiders_register_by_entry_point_but_not_over_a_built_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def point(name: str) -> importlib.metadata.EntryPoint:
        return importlib.metadata.EntryPoint(name, "collections:OrderedDict", "surefoot.providers")

    monkeypatch.setattr(registry, "entry_points", lambda group: [point("acme"), point("local")])
    assert "acme" in registry.provider_names()
    assert registry.load_provider("acme").__name__ == "OrderedDict"
    assert registry.load_provider("local") is LocalProvider
