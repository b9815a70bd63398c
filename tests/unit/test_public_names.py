"""The public names of the package: there, typed alike, and cheap until used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import surefoot


def test_every_public_name_can_be_imported() -> None:
    for name in surefoot.__all__:
        assert getattr(surefoot, name) is not None
    assert set(surefoot.__all__) == set(surefoot._HOMES)
    assert set(surefoot.__all__) <= set(dir(surefoot))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Strategy'"):
        _ = surefoot.Strategy


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    code = "import surefoot, sys; print({'torch', 'numpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
