"""What all tests share: in CI random examples are the same each time, elsewhere they are not."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from surefoot.testing import postgres as rig

# A change must not be blocked by an example that it did not bring; people's runs look further.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server that lives as long as the tests."""
    why = rig.absent()
    if why is not None:
        pytest.skip(why)
    pytest.importorskip("psycopg")
    with rig.server() as url:
        yield url
