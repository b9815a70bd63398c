"""How one launch is put to AWS: every parameter of RunInstances, from the request and settings."""

from __future__ import annotations

import hashlib
from typing import Any

from surefoot.core.market import Capacity
from surefoot.core.units import usd
from surefoot.providers.aws.boot import user_data
from surefoot.providers.aws.listing import RUN_TAG, TOKEN_TAG
from surefoot.providers.aws.settings import AwsSettings
from surefoot.providers.base import LaunchRequest


def run_instances(
    settings: AwsSettings, request: LaunchRequest, *, image: str, groups: tuple[str, ...]
) -> dict[str, Any]:
    """Return the parameters of RunInstances for one VM, tagged by the call that makes it.

    A VM that shuts itself down is terminated; its disks go with it; metadata needs a session
    token (IMDSv2). Spot is one-time: AWS never starts a second VM for the same request.
    """
    wish: dict[str, Any] = {
        "ImageId": image,
        "InstanceType": request.pool.instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": client_token(request),
        "UserData": user_data(settings, request.boot),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 2,  # one more than the VM itself: containers ask too
        },
        "Placement": _placement(settings, request),
        "SecurityGroupIds": list(groups),
        "TagSpecifications": tags(request),
    }
    if request.capacity is Capacity.SPOT:
        wish["InstanceMarketOptions"] = _spot(request)
    subnet = settings.subnets.get(request.pool.zone)
    if subnet:
        wish["SubnetId"] = subnet
    if settings.key_name:
        wish["KeyName"] = settings.key_name
    if settings.instance_profile:
        kind = "Arn" if settings.instance_profile.startswith("arn:") else "Name"
        wish["IamInstanceProfile"] = {kind: settings.instance_profile}
    return wish


def disk(device: str, volume_gb: int) -> list[dict[str, Any]]:
    """Return the root disk's mapping; it is deleted with its VM."""
    volume = {"VolumeSize": volume_gb, "VolumeType": "gp3", "DeleteOnTermination": True}
    return [{"DeviceName": device, "Ebs": volume}]


def client_token(request: LaunchRequest) -> str:
    """Return AWS's idempotency token: 64 characters that no other request of ours has."""
    return hashlib.sha256(f"{request.run}\n{request.token}".encode()).hexdigest()


def tags(request: LaunchRequest) -> list[dict[str, Any]]:
    """Return the tags of all that a launch makes."""
    mine = [
        {"Key": RUN_TAG, "Value": request.run},
        {"Key": TOKEN_TAG, "Value": request.token},
        {"Key": "Name", "Value": request.token},
    ]
    kinds = ["instance", "volume"]
    if request.capacity is Capacity.SPOT:
        kinds.append("spot-instances-request")
    return [{"ResourceType": kind, "Tags": mine} for kind in kinds]


def _placement(settings: AwsSettings, request: LaunchRequest) -> dict[str, str]:
    place = {"AvailabilityZone": request.pool.zone}
    if settings.placement_group:
        place["GroupName"] = settings.placement_group
    return place


def _spot(request: LaunchRequest) -> dict[str, Any]:
    terms = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    if request.max_price_micro_usd_h is not None:
        terms["MaxPrice"] = f"{usd(request.max_price_micro_usd_h):.6f}"
    return {"MarketType": "spot", "SpotOptions": terms}
