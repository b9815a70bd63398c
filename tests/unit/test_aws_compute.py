"""The AWS provider against a fake EC2: launches, lists, ends, and all that can go wrong."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from aws_world import FAR, A, B, World, world_in

from surefoot.core.market import Capacity, Pool
from surefoot.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    QuotaError,
    RetryLaterError,
    ThrottledError,
)
from surefoot.providers.base import LaunchRequest, VmState
from surefoot.testing.cloud import Refusal


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world_in(tmp_path, monkeypatch) as made:
        yield made


def test_one_call_launches_tags_and_closes_the_door(world: World) -> None:
    seen: list[dict[str, object]] = []
    events = world.aws.clients.session.events
    events.register(
        "provide-client-params.ec2.RunInstances", lambda params, **_: seen.append(params)
    )
    world.ask("run-a-1", boot={"SUREFOOT_TOKEN": "run-a-1"}, max_price_micro_usd_h=90_000)
    (wish,) = seen
    kinds = {tag["ResourceType"]: tag["Tags"] for tag in wish["TagSpecifications"]}  # type: ignore
    assert set(kinds) == {"instance", "volume", "spot-instances-request"}
    for tags in kinds.values():
        assert {"Key": "surefoot-run", "Value": "run-a"} in tags
        assert {"Key": "surefoot-token", "Value": "run-a-1"} in tags
    assert wish["MetadataOptions"]["HttpTokens"] == "required"  # type: ignore[index]
    assert wish["InstanceInitiatedShutdownBehavior"] == "terminate"
    options = wish["InstanceMarketOptions"]["SpotOptions"]  # type: ignore[index]
    assert options["SpotInstanceType"] == "one-time" and options["MaxPrice"] == "0.090000"
    assert (wish["MinCount"], wish["MaxCount"]) == (1, 1)
    assert len(str(wish["ClientToken"])) == 64
    assert "CreateTags" not in world.cloud.calls


def test_the_sdk_does_not_repeat_a_hopeless_launch(world: World) -> None:
    shortage = "InsufficientInstanceCapacity"
    world.cloud.refuse(Refusal("RunInstances", shortage, times=9, status=500))
    with pytest.raises(CapacityError, match=shortage):
        world.ask("t1")
    assert world.cloud.calls.count("RunInstances") == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UnfulfillableCapacity", CapacityError),
        ("SpotMaxPriceTooLow", CapacityError),
        ("MaxSpotInstanceCountExceeded", QuotaError),
        ("VcpuLimitExceeded", QuotaError),
        ("RequestLimitExceeded", ThrottledError),
        ("UnauthorizedOperation", AuthError),
        ("NeverHeardOf", CapacityError),
    ],
)
def test_refusals_of_a_launch_leave_no_vm(world: World, code: str, kind: type) -> None:
    world.cloud.refuse(Refusal("RunInstances", code))
    with pytest.raises(kind, match=code):
        world.ask("t1")
    assert world.cloud.running == [] and world.aws.list("run-a") == []


def test_a_type_that_is_not_sold_there_is_not_asked_for_or_offered_again(world: World) -> None:
    world.cloud.refuse(Refusal("RunInstances", "Unsupported"))
    for token in ("t1", "t2"):
        with pytest.raises(CapacityError, match="not sold"):
            world.ask(token)
    assert world.cloud.calls.count("RunInstances") == 1
    offered = {(o.pool, o.capacity) for o in world.aws.offerings()}
    assert (A, Capacity.SPOT) not in offered
    assert {(A, Capacity.ON_DEMAND), (B, Capacity.SPOT)} <= offered
    assert any("us-east-1a" in line for line in world.aws.trouble)


def test_a_lost_answer_and_a_repeated_launch_are_one_vm(world: World) -> None:
    world.cloud.refuse(Refusal("RunInstances", done=True))
    with pytest.raises(RetryLaterError):
        world.ask("t1")
    assert len(world.cloud.running) == 1, "it worked, though nobody was told"
    vm = world.ask("t1")
    assert [held.instance_id for held in world.cloud.running] == [vm.instance_id]


def test_another_pool_needs_another_token_and_an_ended_vm_gives_no_second(world: World) -> None:
    vm = world.ask("t1")
    with pytest.raises(ConfigError, match="used before"):
        world.ask("t1", B)
    assert world.ask("t2", B).pool == B
    world.aws.terminate(vm.instance_id)
    assert world.ask("t1").state is VmState.ENDED
    assert world.ask("t3").state is not VmState.ENDED


def test_a_token_whose_vm_is_not_listed_yet_is_asked_again_later(world: World) -> None:
    world.ask("t1", boot={"A": "1"})
    world.cloud.ec2.list_lag_ms = 60_000
    with pytest.raises(RetryLaterError, match="not listed yet"):
        world.ask("t1", boot={"A": "2"})
    world.cloud.ec2.list_lag_ms = 0
    assert world.ask("t1", boot={"A": "2"}).token == "t1"
    assert len(world.cloud.running) == 1


def test_an_on_demand_vm_that_nobody_asked_for_is_ended_at_once(world: World) -> None:
    world.cloud.ec2.betrayals = 1
    with pytest.raises(CapacityError, match="on_demand instead"):
        world.ask("t1")
    (betrayal,) = world.cloud.held
    assert betrayal.capacity is Capacity.ON_DEMAND and world.cloud.running == []


def test_a_pool_outside_of_the_settings_is_refused_without_a_call(world: World) -> None:
    nowhere = Pool("aws", "us-east-1", "us-east-1z", "m5.large")
    with pytest.raises(ConfigError, match="not among"):
        world.ask("t1", nowhere)
    assert "RunInstances" not in world.cloud.calls


def test_lists_every_page_of_every_region_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world_in(tmp_path, monkeypatch, page_size=5) as world:
        asked = [world.ask(f"t{i}", FAR if i % 3 == 0 else A).instance_id for i in range(18)]
        assert sorted(vm.instance_id for vm in world.aws.list("run-a")) == sorted(asked)
        assert world.cloud.calls.count("DescribeInstances") >= 5
        world.cloud.refuse(Refusal("DescribeInstances", "InternalError", times=9, after=1))
        with pytest.raises(RetryLaterError):
            world.aws.list("run-a")


def test_a_reclaimed_vm_is_told_from_one_that_shut_down(world: World) -> None:
    taken, left = world.ask("t1"), world.ask("t2")
    world.cloud.reclaim(taken.instance_id)
    world.cloud.ec2.shut_down(left.instance_id)
    by_token = {vm.token: vm for vm in world.aws.list("run-a")}
    assert all(vm.state is VmState.ENDED for vm in by_token.values())
    assert by_token["t1"].preempted and not by_token["t2"].preempted
    for vm in by_token.values():
        assert vm.ended_ms is not None and vm.ended_ms >= vm.launched_ms - 1_000


def test_a_protected_vm_does_not_keep_the_others_alive_and_says_what_it_costs(world: World) -> None:
    vms = [world.ask(f"t{i}") for i in range(5)]
    world.aws.offerings()
    world.cloud.protect(vms[2].instance_id)
    for vm in vms:
        if vm is not vms[2]:
            world.aws.terminate(vm.instance_id)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"protected .* \$0\.04/h") as error:
            world.aws.terminate(vms[2].instance_id)
        assert "unprotect" in error.value.hint
    assert [held.token for held in world.cloud.running] == ["t2"]
    again = world.again(unprotect=True)
    again.aws.terminate(vms[2].instance_id)
    assert world.cloud.running == []


def test_a_vm_too_young_to_be_known_is_not_forgotten(world: World) -> None:
    vm = world.ask("t1")
    world.cloud.ec2.list_lag_ms = 60_000
    with pytest.raises(RetryLaterError):
        world.aws.terminate(vm.instance_id)
    world.cloud.ec2.list_lag_ms = 0
    world.aws.terminate(vm.instance_id)
    assert world.cloud.running == []


def test_ending_what_is_unknown_or_no_id_of_aws_is_no_error(world: World) -> None:
    for name in ("i-0123456789abcdef0", "local-0001-aa", ""):
        world.aws.terminate(name)


def test_a_new_controller_ends_a_vm_in_whatever_region_it_is(world: World) -> None:
    vm = world.ask("t1", FAR)
    world.again().aws.terminate(vm.instance_id)
    assert world.cloud.running == []


def test_ending_a_vm_cancels_its_request(world: World) -> None:
    vm = world.ask("t1")
    world.aws.terminate(vm.instance_id)
    assert [row.state for row in world.cloud.ec2.requests.rows.values()] != ["active"]


def test_open_requests_are_cancelled_also_when_they_show_up_late(world: World) -> None:
    early = world.cloud.leave_open("run-a", "us-east-1")
    late = world.cloud.leave_open("run-a", "us-west-2", visible_after_ms=10**9)
    other = world.cloud.leave_open("run-b", "us-east-1")
    states = world.cloud.ec2.requests.rows
    world.aws.list("run-a")
    assert states[early].state == "cancelled" and states[late].state == "open"
    states[late].visible_ms = 0
    world.time.ahead_ms = 31_000
    world.aws.list("run-a")
    assert states[late].state == "cancelled"
    assert states[other].state == "open", "another run's request is not ours to end"


def test_throttled_lists_say_so(world: World) -> None:
    world.cloud.refuse(Refusal("DescribeInstances", "RequestLimitExceeded", times=9, status=503))
    with pytest.raises(ThrottledError):
        world.aws.list("run-a")


def test_a_run_gets_a_group_of_its_own_and_it_goes_with_the_run(world: World) -> None:
    world.ask("t1")
    world.ask("t2", B)
    world.again().ask("t3")
    assert world.cloud.calls.count("CreateSecurityGroup") == 2, "the second found it there"
    ec2 = world.aws.clients.ec2("us-east-1")
    named = [{"Name": "group-name", "Values": ["surefoot-run-a"]}]
    (group,) = ec2.describe_security_groups(Filters=named)["SecurityGroups"]
    (rule,) = group["IpPermissions"]
    assert rule["UserIdGroupPairs"][0]["GroupId"] == group["GroupId"] and not rule["IpRanges"]
    for vm in world.aws.list("run-a"):
        world.aws.terminate(vm.instance_id)
    world.aws.tidy("run-a")
    assert ec2.describe_security_groups(Filters=named)["SecurityGroups"] == []


def test_the_users_own_groups_are_used_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world_in(tmp_path, monkeypatch) as plain:
        ec2 = plain.aws.clients.ec2("us-east-1")
        own = ec2.create_security_group(GroupName="own", Description="own")["GroupId"]
        world = plain.again(security_groups={"*": (own,)})
        world.ask("t1")
        world.aws.tidy("run-a")
        assert plain.cloud.calls.count("CreateSecurityGroup") == 1


def test_user_data_reaches_the_vm_as_written(world: World) -> None:
    vm = world.ask("t1", boot={"SUREFOOT_COMMAND": "echo 'a b' \"$HOME\" {x}"})
    told = world.aws.clients.ec2("us-east-1").describe_instance_attribute(
        InstanceId=vm.instance_id, Attribute="userData"
    )
    script = base64.b64decode(told["UserData"]["Value"]).decode()
    assert script.startswith("#!/bin/sh\n") and "{x}" in script


def test_reservations_cannot_be_bought(world: World) -> None:
    with pytest.raises(ConfigError):
        world.aws.launch(LaunchRequest("t", "run-a", A, Capacity.RESERVED))


def test_looking_costs_few_calls_however_many_vms_there_are(world: World) -> None:
    for number in range(12):
        world.ask(f"t{number}")
    world.cloud.calls.clear()
    for look in range(30):  # five minutes at the controller's pace, two regions
        world.time.ahead_ms = look * 10_000
        world.aws.offerings()
        world.aws.list("run-a")
    calls = world.cloud.calls
    assert calls.count("DescribeInstances") == 2 * 30
    assert calls.count("DescribeSpotPriceHistory") == calls.count("DescribeSpotInstanceRequests")
    assert len(calls) <= 2 * (30 + 10 + 10) + 6, "0.4 calls a second; AWS refills 10 and more"


def test_case_108_five_are_ended_in_few_calls_and_a_protected_one_is_told_apart(
    world: World,
) -> None:
    vms = [world.ask(f"t{i}").instance_id for i in range(5)]
    world.aws.offerings()
    world.cloud.protect(vms[2])
    for _ in range(2):  # every cycle says it again
        failed = world.aws.terminate_all([*vms, "no id", vms[0]])
        assert set(failed) == {vms[2]}
        assert "protected" in str(failed[vms[2]]) and "$0.04/h" in str(failed[vms[2]])
        assert [held.instance_id for held in world.cloud.running] == [vms[2]]


def test_many_vms_are_ended_in_one_call(world: World) -> None:
    vms = [world.ask(f"t{i}", FAR if i % 2 else A).instance_id for i in range(12)]
    assert world.aws.terminate_all(vms) == {}
    assert world.cloud.running == []
    assert world.cloud.calls.count("TerminateInstances") == 2, "one in each region"


def test_case_107_ten_pages_of_vms_are_all_seen_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world_in(tmp_path, monkeypatch, page_size=5, regions=("us-east-1",)) as world:
        ec2 = world.aws.clients.ec2("us-east-1")
        tags = [{"Key": "surefoot-run", "Value": "run-a"}]
        asked = {"MinCount": 4, "MaxCount": 4, "ImageId": "ami-12c6146b"}
        kinds = [{"ResourceType": "instance", "Tags": tags}]
        seen: list[str] = []
        for _ in range(50):
            made = ec2.run_instances(**asked, InstanceType="m5.large", TagSpecifications=kinds)
            seen += [instance["InstanceId"] for instance in made["Instances"]]
        before = world.cloud.calls.count("DescribeInstances")
        assert {vm.instance_id for vm in world.aws.list("run-a")} == set(seen)
        assert world.cloud.calls.count("DescribeInstances") - before >= 10
        world.cloud.refuse(Refusal("DescribeInstances", "InternalError", times=9, after=5))
        with pytest.raises(RetryLaterError):
            world.aws.list("run-a")
