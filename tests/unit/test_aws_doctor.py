"""`surefoot doctor aws`: what would fail is found before anything is launched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aws_world import IMAGE, World, world_in
from typer.testing import CliRunner

from surefoot.cli.doctor import app
from surefoot.core.market import Capacity
from surefoot.providers.aws.check import Finding, check, covers
from surefoot.testing.cloud import Refusal

BOTH = frozenset({Capacity.SPOT, Capacity.ON_DEMAND})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_in(tmp_path, monkeypatch) as made:
        yield made


def found(world: World, vms: int = 4) -> dict[str, Finding]:
    return {f.name: f for f in check(world.aws, vms=vms, capacities=BOTH)}


def test_all_is_well_and_nothing_was_launched(world: World) -> None:
    all_of_it = found(world)
    assert [f for f in all_of_it.values() if f.ok is not True] == []
    assert {"credentials", "pools", "image in us-east-1", "spot prices"} <= set(all_of_it)
    assert "right to launch spot in us-west-2" in all_of_it
    assert world.cloud.held == [] and "CreateSecurityGroup" not in world.cloud.calls


def test_credentials_that_do_not_work_end_it(world: World) -> None:
    world.cloud.refuse(Refusal("GetCallerIdentity", "InvalidClientTokenId", status=403))
    (only,) = found(world).values()
    assert only.ok is False and "InvalidClientTokenId" in only.detail


def test_a_missing_permission_is_named_and_the_policy_pointed_to(world: World) -> None:
    refused = Refusal("RunInstances", "UnauthorizedOperation", match="DryRun=true", times=99)
    world.cloud.refuse(refused)
    right = found(world)["right to launch spot in us-east-1"]
    assert right.ok is False and "aws-iam-policy.json" in right.hint


def test_a_quota_of_nothing_fails_and_one_for_a_part_warns(world: World) -> None:
    quotas = world.cloud.ec2.quotas
    spot = next(name for name in quotas if "Standard" in name and "Spot" in name)
    quotas[spot] = 0.0
    title = "spot quota for m5.large in us-east-1"
    assert found(world)[title].ok is False
    quotas[spot] = 4.0
    warned = found(world)[title]
    assert warned.ok is None and "4 vCPUs, the whole fleet needs 8" in warned.detail


def test_an_image_or_key_that_is_not_there_fails(world: World) -> None:
    other = world.again(images={"*": "ami-00000000000000000"}, key_name="nobody")
    all_of_it = found(other)
    assert all_of_it["image in us-east-1"].ok is False
    assert all_of_it["key pair in us-east-1"].ok is False


def test_without_the_right_to_see_quotas_it_cannot_be_told(world: World) -> None:
    world.cloud.refuse(Refusal("ListServiceQuotas", "AccessDeniedException", times=9))
    assert found(world)["quotas in us-east-1"].ok is None


@pytest.mark.parametrize(
    ("quota", "kind", "capacity", "yes"),
    [
        ("All P4, P3 and P2 Spot Instance Requests", "p4d.24xlarge", Capacity.SPOT, True),
        ("All P4, P3 and P2 Spot Instance Requests", "p5.48xlarge", Capacity.SPOT, False),
        ("All P5 Spot Instance Requests", "p5.48xlarge", Capacity.SPOT, True),
        ("All G and VT Spot Instance Requests", "g5.xlarge", Capacity.SPOT, True),
        ("All Inf Spot Instance Requests", "inf2.xlarge", Capacity.SPOT, True),
        ("Running On-Demand P instances", "p4d.24xlarge", Capacity.ON_DEMAND, True),
        ("Running On-Demand P instances", "p4d.24xlarge", Capacity.SPOT, False),
        ("Running On-Demand High Memory instances", "m5.large", Capacity.ON_DEMAND, False),
        ("EC2-VPC Elastic IPs", "m5.large", Capacity.ON_DEMAND, False),
    ],
)
def test_quotas_are_matched_by_name(quota: str, kind: str, capacity: Capacity, yes: bool) -> None:
    assert covers(quota, kind, capacity) is yes


def test_the_command_prints_findings_and_an_exit_code(world: World, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: d\nnum_nodes: 2\nresources: {infra: aws/us-east-1, instance_type: m5.large}\n"
        "run: python train.py\ncheckpoint: {path: s3://bucket/d}\n"
        f"aws: {{image: {IMAGE}, endpoint_url: '{world.cloud.endpoint}'}}\n"
    )
    done = CliRunner().invoke(app, ["aws", str(job), "--json"])
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert body["ok"] is True and len(body["findings"]) >= 8
    world.cloud.refuse(Refusal("RunInstances", "UnauthorizedOperation", times=99))
    done = CliRunner().invoke(app, ["aws", str(job)])
    assert done.exit_code == 3 and "FAIL" in done.stdout
