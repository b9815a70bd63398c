"""What must hold before AWS is asked for a VM: looked at without launching or spending anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from surefoot.core.market import Capacity, Pool
from surefoot.core.units import usd
from surefoot.errors import SurefootError
from surefoot.providers.aws import request as requests
from surefoot.providers.aws.compute import AwsProvider
from surefoot.providers.aws.errors import asking, code_of, translate
from surefoot.providers.base import LaunchRequest

DRY_RUN = "DryRunOperation"
"""The error with which AWS says that a dry run would have worked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `ok` None: could not be told, which need not be bad."""

    name: str
    ok: bool | None
    detail: str
    hint: str = ""


def check(aws: AwsProvider, *, vms: int, capacities: frozenset[Capacity]) -> Iterator[Finding]:
    """Yield findings, the first ones first: credentials, pools, image, key, prices, quotas, rights.

    `vms` is how many the job may hold at once. Stops after credentials that do not work.
    """
    who = _tried("credentials", lambda: _who(aws))
    yield who
    if not who.ok:
        return
    pools = _tried("pools", lambda: ", ".join(map(str, aws.pools())))
    yield pools
    for region in aws.settings.regions:
        yield _tried(f"image in {region}", partial(_image, aws, region))
        if aws.settings.key_name:
            yield _tried(f"key pair in {region}", partial(_key, aws, region))
    if pools.ok:
        yield from _prices(aws, capacities)
        yield from _quotas(aws, vms, capacities)
        yield from _rights(aws, capacities)


def _tried(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, look())
    except SurefootError as error:
        return Finding(name, False, str(error), error.hint)


def _who(aws: AwsProvider) -> str:
    with asking("who am I"):
        sts = aws.clients.service("sts", aws.settings.regions[0])
        return str(sts.get_caller_identity()["Arn"])


def _image(aws: AwsProvider, region: str) -> str:
    found = aws.images.describe(region)
    return f"{found['ImageId']} ({found.get('Name') or 'no name'}, {found.get('Architecture')})"


def _key(aws: AwsProvider, region: str) -> str:
    name = aws.settings.key_name
    with asking(f"key pair {name} in {region}"):
        aws.clients.ec2(region).describe_key_pairs(KeyNames=[name])
    return name


def _prices(aws: AwsProvider, capacities: frozenset[Capacity]) -> Iterator[Finding]:
    try:
        offers = {(o.pool, o.capacity): o for o in aws.offerings()}
    except SurefootError as error:
        yield Finding("prices", False, str(error), error.hint)
        return
    for capacity in sorted(capacities, key=lambda c: c.value):
        mine = [o for (_, c), o in offers.items() if c is capacity]
        known = [f"{o.pool} ${usd(o.price_micro_usd_h):g}/h" for o in mine]
        missing = [str(pool) for pool in aws.pools() if (pool, capacity) not in offers]
        hint = "give the price in the job file: aws: {on_demand: {TYPE: 12.34}}" if missing else ""
        if capacity is Capacity.SPOT:
            hint = ""
        text = ", ".join(known) or "none is known"
        text += f"; unknown, so never bought: {', '.join(missing)}" if missing else ""
        yield Finding(f"{capacity.value} prices", bool(known), text, hint)
    for line in aws.trouble:
        yield Finding("prices", None, line)


def _quotas(aws: AwsProvider, vms: int, capacities: frozenset[Capacity]) -> Iterator[Finding]:
    """Compare the vCPUs of the whole fleet with the account's limits, by family of types."""
    for region in aws.settings.regions:
        try:
            limits = _limits(aws, region)
            cores = _cores(aws, region)
        except SurefootError as error:
            yield Finding(f"quotas in {region}", None, str(error), error.hint)
            continue
        for name, each in sorted(cores.items()):
            for capacity in sorted(capacities, key=lambda c: c.value):
                title = f"{capacity.value} quota for {name} in {region}"
                yield _quota(title, limits, name, capacity, vms * each)


def _quota(
    title: str, limits: dict[str, float], name: str, capacity: Capacity, wanted: int
) -> Finding:
    found = {quota: limit for quota, limit in limits.items() if covers(quota, name, capacity)}
    if not found:
        return Finding(title, None, "AWS lists no quota for this family")
    quota, limit = min(found.items(), key=lambda item: item[1])
    text = f"{quota}: {limit:g} vCPUs, the whole fleet needs {wanted}"
    if limit >= wanted:
        return Finding(title, True, text)
    hint = f"ask AWS to raise {quota!r} in Service Quotas, or allow fewer VMs"
    # A fleet that fits in part can still train: only no VM at all is a refusal for sure.
    return Finding(title, False if limit < 1 else None, text, hint)


def covers(quota: str, instance_type: str, capacity: Capacity) -> bool:
    """Return whether an EC2 quota, by its name, limits VMs of a type bought in this way."""
    spot = quota.endswith("Spot Instance Requests")
    on_demand = quota.startswith("Running On-Demand") and quota.endswith("instances")
    if not (spot if capacity is Capacity.SPOT else on_demand):
        return False
    family = re.match(r"([a-z]+)(\d*)", instance_type.lower())
    if family is None:
        return False
    letters, number = family[1], family[2]
    named = {word.lower() for word in re.findall(r"\b[A-Za-z]{1,4}\d*\b", quota)}
    return bool(named & {letters, letters + number} - {"all", "and", "spot"})


def _limits(aws: AwsProvider, region: str) -> dict[str, float]:
    with asking(f"quotas in {region}"):
        pages = (
            aws.clients.service("service-quotas", region)
            .get_paginator("list_service_quotas")
            .paginate(ServiceCode="ec2")
        )
        return {q["QuotaName"]: float(q["Value"]) for page in pages for q in page["Quotas"]}


def _cores(aws: AwsProvider, region: str) -> dict[str, int]:
    here = sorted({pool.instance_type for pool in aws.pools() if pool.region == region})
    with asking(f"instance types in {region}"):
        found = aws.clients.ec2(region).describe_instance_types(InstanceTypes=here)
    return {t["InstanceType"]: int(t["VCpuInfo"]["DefaultVCpus"]) for t in found["InstanceTypes"]}


def _rights(aws: AwsProvider, capacities: frozenset[Capacity]) -> Iterator[Finding]:
    """Ask AWS for a dry run of a launch in one pool of every region, and of an end."""
    seen: set[str] = set()
    for pool in aws.pools():
        if pool.region in seen:
            continue
        seen.add(pool.region)
        for capacity in sorted(capacities, key=lambda c: c.value):
            title = f"right to launch {capacity.value} in {pool.region}"
            yield _dry(title, partial(_dry_launch, aws, pool, capacity))


def _dry_launch(aws: AwsProvider, pool: Pool, capacity: Capacity) -> None:
    request = LaunchRequest("doctor", "doctor", pool, capacity)
    wish = requests.run_instances(
        aws.settings,
        request,
        image=aws.images.id(pool.region),
        groups=aws.settings.groups(pool.region),
    )
    if not wish["SecurityGroupIds"]:
        del wish["SecurityGroupIds"]  # the run's own group is made with its first VM
    aws.clients.launcher(pool.region).run_instances(**wish, DryRun=True)


def _dry(title: str, call: Callable[[], Any]) -> Finding:
    try:
        call()
    except SurefootError as error:
        return Finding(title, False, str(error), error.hint)
    except Exception as error:
        if code_of(error) == DRY_RUN:
            return Finding(title, True, "a dry run would have worked")
        found = translate(error, "dry run")
        if not isinstance(found, SurefootError):
            raise
        hint = "give the role the policy of docs/reference/aws-iam-policy.json"
        return Finding(title, False, str(found), hint)
    return Finding(title, None, "AWS did not treat the dry run as one")
