"""Connections to AWS, one per service and region; boto3 is imported when the first is opened."""

from __future__ import annotations

import importlib
from typing import Any

from surefoot.errors import ConfigError
from surefoot.providers.aws.errors import asking
from surefoot.providers.aws.settings import AwsSettings

CONNECT_S, READ_S = 10, 60
PRICING_REGION = "us-east-1"
"""The price list is served from few regions, for all of them."""


class Clients:
    """Opens boto3 clients lazily and keeps them.

    Launches are never repeated by the SDK: it would try again, for seconds, what is a shortage,
    and the controller repeats a launch whose answer was lost with the same token by itself.
    """

    def __init__(self, settings: AwsSettings) -> None:
        self._settings = settings
        self._open: dict[tuple[str, str, bool], Any] = {}
        self._session: Any = None

    @property
    def session(self) -> Any:
        """The boto3 session. Raises ConfigError without boto3, AuthError for a bad profile."""
        if self._session is None:
            try:
                boto3 = importlib.import_module("boto3")
            except ImportError as error:
                raise ConfigError(
                    "AWS needs boto3, which is not installed", hint="pip install 'surefoot[aws]'"
                ) from error
            with asking("open an AWS session"):
                self._session = boto3.Session(profile_name=self._settings.profile or None)
        return self._session

    def ec2(self, region: str) -> Any:
        """Return the client for everything but launches."""
        return self._client("ec2", region, once=False)

    def launcher(self, region: str) -> Any:
        """Return the client for launches, which makes a single attempt."""
        return self._client("ec2", region, once=True)

    def service(self, name: str, region: str) -> Any:
        """Return the client of another service."""
        return self._client(name, region, once=False)

    def close(self) -> None:
        """Close all connections."""
        for client in self._open.values():
            client.close()
        self._open.clear()

    def _client(self, service: str, region: str, *, once: bool) -> Any:
        key = (service, region, once)
        if key not in self._open:
            config = importlib.import_module("botocore.config")
            attempts = {"total_max_attempts": 1 if once else 2, "mode": "standard"}
            with asking(f"open {service} in {region}"):
                self._open[key] = self.session.client(
                    service,
                    region_name=region,
                    endpoint_url=self._settings.endpoint_url or None,
                    config=config.Config(
                        retries=attempts,
                        connect_timeout=CONNECT_S,
                        read_timeout=READ_S,
                        user_agent_extra="surefoot",
                    ),
                )
        return self._open[key]
