"""The shipped IAM policy allows every call that is made, and little else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aws_world import IMAGE, B, World, world_in

from surefoot.core.market import Capacity
from surefoot.errors import ConfigError
from surefoot.providers.aws.check import check

POLICY = Path(__file__).resolve().parents[2] / "docs/reference/aws-iam-policy.json"
PREFIX = {"service-quotas": "servicequotas"}
WITHOUT_A_CALL = {"ec2:CreateTags", "iam:PassRole", "iam:CreateServiceLinkedRole"}
"""Asked for by AWS itself when a launch is tagged, has a role, or is the account's first spot."""


def statements() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(POLICY.read_text())["Statement"]
    return found


def actions(statement: dict[str, Any]) -> set[str]:
    named = statement["Action"]
    return {named} if isinstance(named, str) else set(named)


def recorded(world: World) -> set[str]:
    made: set[str] = set()

    def note(model: Any, **_: object) -> None:
        service = model.service_model.service_name
        made.add(f"{PREFIX.get(service, service)}:{model.name}")

    world.aws.clients.session.events.register("before-call", note)
    return made


def use_everything(world: World) -> None:
    aws, cloud = world.aws, world.cloud
    ec2 = aws.clients.ec2("us-east-1")
    subnet = ec2.describe_subnets()["Subnets"][0]
    aws.settings.subnets[subnet["AvailabilityZone"]] = subnet["SubnetId"]  # type: ignore[index]
    aws.offerings()
    vm, protected = world.ask("t1"), world.ask("t2", B, capacity=Capacity.ON_DEMAND)
    cloud.protect(protected.instance_id)
    cloud.leave_open("run-a", "us-east-1")
    aws.list("run-a")
    for each in (vm, protected):
        aws.terminate(each.instance_id)
    aws.tidy("run-a")
    list(check(aws, vms=4, capacities=frozenset({Capacity.SPOT, Capacity.ON_DEMAND})))
    with pytest.raises(ConfigError):
        world.again(images={"*": "ssm:/no/such/image"}).ask("t9")


def test_every_call_that_is_made_is_allowed_and_every_allowed_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "unprotect": True,
        "volume_gb": 20,
        "key_name": "mine",
        "subnets": {},
        "images": {"us-east-1": IMAGE, "us-west-2": "ssm:/aws/service/x"},
    }
    with world_in(tmp_path, monkeypatch, **settings) as world:
        made = recorded(world)
        world.aws.clients.ec2("us-east-1").create_key_pair(KeyName="mine")
        use_everything(world)
    made -= {"ec2:CreateKeyPair"}  # by the test
    allowed = set().union(*map(actions, statements()))
    assert made <= allowed, f"not in the policy: {sorted(made - allowed)}"
    assert allowed - made <= WITHOUT_A_CALL, f"never made: {sorted(allowed - made)}"


def test_nothing_is_allowed_by_a_star() -> None:
    for statement in statements():
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in actions(statement))


def test_what_ends_or_changes_things_is_bound_to_our_tag() -> None:
    ending = {
        "ec2:TerminateInstances",
        "ec2:CancelSpotInstanceRequests",
        "ec2:ModifyInstanceAttribute",
        "ec2:AuthorizeSecurityGroupIngress",
        "ec2:DeleteSecurityGroup",
    }
    for statement in statements():
        if actions(statement) & ending:
            assert statement["Condition"]["Null"] == {"aws:ResourceTag/surefoot-run": "false"}
            ending -= actions(statement)
    assert not ending
