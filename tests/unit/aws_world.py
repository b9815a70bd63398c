"""One small AWS for the unit tests: a fake cloud without VMs, and a provider on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from surefoot.core.market import Capacity, Pool
from surefoot.providers.base import LaunchRequest, Vm

pytest.importorskip("moto", reason="the fake AWS needs moto[server,ec2]")
pytest.importorskip("boto3", reason="the AWS provider needs boto3")

from surefoot.providers.aws.compute import AwsProvider
from surefoot.providers.aws.settings import AwsSettings
from surefoot.testing.cloud import FakeCloud, Sale
from surefoot.testing.cloud.cloud import CREDENTIALS

IMAGE = "ami-12c6146b"
A, B = (Pool("aws", "us-east-1", f"us-east-1{zone}", "m5.large") for zone in "ab")
FAR = Pool("aws", "us-west-2", "us-west-2a", "m5.large")
SALES = {
    A: Sale(None, 40_000, 100_000),
    B: Sale(None, 50_000, 100_000),
    FAR: Sale(None, 30_000, 110_000),
}


class Time:
    """A clock that a test moves; epoch ms, begins at the true time."""

    def __init__(self) -> None:
        from surefoot.providers.notice import now_ms

        self._now_ms, self.ahead_ms = now_ms, 0

    def __call__(self) -> int:
        return self._now_ms() + self.ahead_ms


class World:
    """The cloud, the provider, the clock."""

    def __init__(self, cloud: FakeCloud, **changes: Any) -> None:
        self.cloud, self.time = cloud, Time()
        values: dict[str, Any] = {
            "regions": ("us-east-1", "us-west-2"),
            "instance_types": ("m5.large",),
            "images": {"*": IMAGE},
            "endpoint_url": cloud.endpoint,
        }
        self.settings = AwsSettings(**(values | changes))
        self.aws = AwsProvider(self.settings, now_ms=self.time)

    def ask(self, token: str, pool: Pool = A, **changes: Any) -> Vm:
        values: dict[str, Any] = {"run": "run-a", "capacity": Capacity.SPOT}
        return self.aws.launch(LaunchRequest(token=token, pool=pool, **(values | changes)))

    def again(self, **changes: Any) -> World:
        """Return the same cloud with a new provider."""
        return World(self.cloud, **changes)


@contextmanager
def world_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Iterator[World]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with FakeCloud(SALES, folder=folder) as cloud:
        world = World(cloud, **changes)
        yield world
        world.aws.close()
