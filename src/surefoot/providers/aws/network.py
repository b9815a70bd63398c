"""The security group of a run: its VMs reach each other, and nobody from outside reaches them."""

from __future__ import annotations

from typing import Any

from surefoot.errors import RetryLaterError
from surefoot.providers.aws.client import Clients
from surefoot.providers.aws.errors import asking, code_of, translate
from surefoot.providers.aws.listing import RUN_TAG
from surefoot.providers.aws.settings import AwsSettings


class Groups:
    """Finds or makes the group of a run in a region, once; removes it after the run."""

    def __init__(self, settings: AwsSettings, clients: Clients) -> None:
        self._settings, self._clients = settings, clients
        self._known: dict[tuple[str, str], str] = {}

    def ids(self, run: str, region: str) -> tuple[str, ...]:
        """Return the ids of the groups that a VM of the run is put into."""
        own = self._settings.groups(region)
        if own:
            return own
        if (run, region) not in self._known:
            with asking(f"security group of {run} in {region}"):
                self._known[run, region] = self._make(run, region)
        return (self._known[run, region],)

    def forget(self, run: str, region: str) -> None:
        """Look the group up again (and make it if it is gone) at the next launch."""
        self._known.pop((run, region), None)

    def remove(self, run: str) -> None:
        """Delete the groups made for a run. Raises RetryLaterError while VMs still use them."""
        for region in self._settings.regions:
            if self._settings.groups(region):
                continue
            ec2 = self._clients.ec2(region)
            with asking(f"remove the security group of {run} in {region}"):
                for group in self._find(ec2, run):
                    _delete(ec2, group)
            self._known.pop((run, region), None)

    def _make(self, run: str, region: str) -> str:
        ec2 = self._clients.ec2(region)
        wish: dict[str, Any] = {
            "GroupName": group_name(run),
            "Description": "VMs of one Surefoot run, open to each other only",
            "TagSpecifications": [
                {"ResourceType": "security-group", "Tags": [{"Key": RUN_TAG, "Value": run}]}
            ],
        }
        vpc = self._vpc(ec2)
        if vpc:
            wish["VpcId"] = vpc
        try:
            group = str(ec2.create_security_group(**wish)["GroupId"])
        except Exception as error:
            if code_of(error) != "InvalidGroup.Duplicate":
                raise
            found = self._find(ec2, run)
            if not found:
                raise RetryLaterError(f"security group of {run}: made, not listed yet") from error
            group = found[0]
        _open_inside(ec2, group)
        return group

    def _find(self, ec2: Any, run: str) -> list[str]:
        filters = [
            {"Name": "group-name", "Values": [group_name(run)]},
            {"Name": f"tag:{RUN_TAG}", "Values": [run]},
        ]
        pages = ec2.get_paginator("describe_security_groups").paginate(Filters=filters)
        return [group["GroupId"] for page in pages for group in page["SecurityGroups"]]

    def _vpc(self, ec2: Any) -> str:
        """Return the VPC of the user's subnets; "" for the default one."""
        subnets = sorted(self._settings.subnets.items())
        region = ec2.meta.region_name
        here = [subnet for zone, subnet in subnets if zone.startswith(region)]
        if not here:
            return ""
        return str(ec2.describe_subnets(SubnetIds=here[:1])["Subnets"][0]["VpcId"])


def group_name(run: str) -> str:
    """Return the name of a run's group (AWS allows 255 characters and no `sg-` in front)."""
    return f"surefoot-{run}"[:255]


def _open_inside(ec2: Any, group: str) -> None:
    """Let members of the group reach each other; having done so before is no error."""
    permission = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    try:
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[permission])
    except Exception as error:
        if code_of(error) != "InvalidPermission.Duplicate":
            raise


def _delete(ec2: Any, group: str) -> None:
    try:
        ec2.delete_security_group(GroupId=group)
    except Exception as error:
        if code_of(error) in ("DependencyViolation", "InvalidGroup.InUse"):
            raise RetryLaterError(f"security group {group} is in use until its VMs end") from error
        if code_of(error) != "InvalidGroup.NotFound":
            raise translate(error, f"delete security group {group}") from error
