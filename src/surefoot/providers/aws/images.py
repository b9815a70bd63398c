"""The image that a region's VMs boot: which AMI a setting means, and its root disk."""

from __future__ import annotations

from typing import Any

from surefoot.errors import ConfigError
from surefoot.providers.aws.client import Clients
from surefoot.providers.aws.errors import asking
from surefoot.providers.aws.settings import AwsSettings


class Images:
    """Looks each region's image up once."""

    def __init__(self, settings: AwsSettings, clients: Clients) -> None:
        self._settings, self._clients = settings, clients
        self._ids: dict[str, str] = {}
        self._devices: dict[str, str] = {}

    def id(self, region: str) -> str:
        """Return the AMI id. Raises ConfigError for one that is not set or not there."""
        if region not in self._ids:
            named = self._settings.image(region)
            self._ids[region] = self._parameter(region, named) or named
        return self._ids[region]

    def root_device(self, region: str) -> str:
        """Return the device name of the image's root disk."""
        if region not in self._devices:
            self._devices[region] = str(self.describe(region)["RootDeviceName"])
        return self._devices[region]

    def describe(self, region: str) -> dict[str, Any]:
        """Return AWS's description of the image. Raises ConfigError when it is not there."""
        image = self.id(region)
        with asking(f"image {image} in {region}"):
            found = self._clients.ec2(region).describe_images(ImageIds=[image])["Images"]
        if not found:
            raise ConfigError(f"aws: there is no image {image} in {region}")
        return dict(found[0])

    def _parameter(self, region: str, named: str) -> str:
        if not named.startswith("ssm:"):
            return ""
        name = named.removeprefix("ssm:")
        with asking(f"parameter {name} in {region}"):
            answer = self._clients.service("ssm", region).get_parameter(Name=name)
        return str(answer["Parameter"]["Value"])
