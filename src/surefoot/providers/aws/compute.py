"""The AWS provider: EC2 VMs launched, listed, ended and priced through boto3."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.units import usd
from surefoot.errors import (
    CapacityError,
    ConfigError,
    RetryLaterError,
    SurefootError,
)
from surefoot.providers.aws import request as requests
from surefoot.providers.aws.client import Clients
from surefoot.providers.aws.errors import Meaning, asking, code_of, meaning_of, translate
from surefoot.providers.aws.images import Images
from surefoot.providers.aws.listing import RUN_TAG, TOKEN_TAG, is_stopped, vm_of
from surefoot.providers.aws.network import Groups
from surefoot.providers.aws.prices import Prices
from surefoot.providers.aws.settings import AwsSettings
from surefoot.providers.aws.spot import SpotRequests
from surefoot.providers.base import LaunchRequest, Vm, VmState
from surefoot.providers.notice import now_ms as wall_ms

USED_BEFORE = frozenset({"IdempotentParameterMismatch", "IdempotentInstanceTerminated"})
"""The token was used: for a request that differs, or for a VM that has ended since."""

PROTECTED = "OperationNotPermitted"
GONE = "InvalidInstanceID.NotFound"
AT_ONCE = 100
"""VMs that one call ends."""
_ID = re.compile(r"i-[0-9a-f]{8,17}")


class AwsProvider:
    """Implements Provider over EC2 in the settings' regions.

    A pool in which AWS says that a type is not sold at all is not offered again. Raises only
    errors of `surefoot.errors`.
    """

    def __init__(self, settings: AwsSettings, *, now_ms: Callable[[], int] = wall_ms) -> None:
        self.settings = settings
        self.clients = Clients(settings)
        self._now_ms = now_ms
        self.prices = Prices(settings, self.clients, now_ms)
        self.groups = Groups(settings, self.clients)
        self.images = Images(settings, self.clients)
        self._spot = SpotRequests(settings, self.clients, now_ms)
        self._pools: tuple[Pool, ...] = ()
        self._never: dict[tuple[Pool, Capacity], str] = {}
        self._seen: dict[str, Vm] = {}
        """All that was launched or listed here, by instance id."""
        self._launched_ms: dict[str, int] = {}

    # -- the port --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Registered name."""
        return "aws"

    def offerings(self) -> Sequence[Offering]:
        """Return spot and on-demand offers with a fresh price in all pools that sell the types."""
        found = self.prices.offerings(self.pools())
        return tuple(o for o in found if (o.pool, o.capacity) not in self._never)

    def launch(self, request: LaunchRequest) -> Vm:
        """Launch one VM by RunInstances; the same token again returns the same VM.

        Raises CapacityError for a shortage, a price above the maximum, a type that is not sold
        there, an answer that is not known, and for a VM that is not of the kind asked for (which
        is ended at once). Raises RetryLaterError when the answer may have been lost.
        """
        what = f"{request.pool} {request.capacity.value}"
        self._check(request, what)
        region = request.pool.region
        wish = requests.run_instances(
            self.settings,
            request,
            image=self.images.id(region),
            groups=self.groups.ids(request.run, region),
        )
        if self.settings.volume_gb is not None:
            device = self.images.root_device(region)
            wish["BlockDeviceMappings"] = requests.disk(device, self.settings.volume_gb)
        launcher = self.clients.launcher(region)
        try:
            answer = launcher.run_instances(**wish)
        except Exception as error:
            return self._refused(request, what, error)
        return self._accepted(request, what, answer["Instances"][0])

    def terminate(self, instance_id: str) -> None:
        """End a VM and cancel its spot request. Ending an ended or unknown VM is no error.

        Raises ConfigError for a VM with termination protection (unless `unprotect` is set), and
        RetryLaterError for a VM that is too young to be known to all of AWS.
        """
        if not _ID.fullmatch(instance_id):
            return
        known = self._seen.get(instance_id)
        for region in (known.pool.region,) if known else self.settings.regions:
            self._terminate(instance_id, region)

    def list(self, run: str) -> Sequence[Vm]:
        """Return the run's VMs in all regions, in order of launch: all of them, or an error.

        Ended VMs are listed for about an hour. Stopped ones are terminated, requests left open
        are cancelled.
        """
        found = [
            (region, instance)
            for region in self.settings.regions
            for instance in self._instances(region, {RUN_TAG: run})
        ]
        vms = []
        for region, instance in found:
            vms.append(self._note(region, instance))
            if is_stopped(instance):
                with contextlib.suppress(SurefootError):  # the next look tries again
                    self._terminate(instance["InstanceId"], region)
        with contextlib.suppress(SurefootError):
            self._spot.sweep(run, self.settings.regions)
        return sorted(vms, key=lambda vm: (vm.launched_ms, vm.instance_id))

    def next_change_ms(self) -> int | None:
        """Return None: AWS does not say when prices or supply will change."""
        return None

    def close(self) -> None:
        """Close the connections; VMs keep running."""
        self.clients.close()

    # -- beyond the port -------------------------------------------------------------------------

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools that sell the settings' types, as AWS lists them; asked once."""
        if not self._pools:
            found = sorted(pool for region in self.settings.regions for pool in self._sold(region))
            if not found:
                raise ConfigError(
                    f"aws: {', '.join(self.settings.instance_types)} is not sold in "
                    f"{', '.join(sorted(self.settings.zones or self.settings.regions))}",
                    hint="check resources.infra and resources.instance_type",
                )
            self._pools = tuple(found)
        return self._pools

    def list_all(self) -> Sequence[Vm]:
        """Return all VMs with our tag in the settings' regions, whatever their run."""
        vms = [
            self._note(region, instance)
            for region in self.settings.regions
            for instance in self._matching(region, [{"Name": "tag-key", "Values": [RUN_TAG]}])
        ]
        return sorted(vms, key=lambda vm: (vm.launched_ms, vm.instance_id))

    def price_of(self, vm: Vm) -> int | None:
        """Return what a VM costs now, micro-dollars per hour; None for a price not known."""
        return self.prices.price(vm.pool, vm.capacity)

    def terminate_all(self, instance_ids: Sequence[str]) -> Mapping[str, SurefootError]:
        """End VMs, many in one call; return what stood in the way of each that goes on.

        A call that one VM makes fail (protected, unknown) is halved until that VM stands alone.
        """
        failed: dict[str, SurefootError] = {}
        places: dict[str, list[str]] = {}
        for each in filter(_ID.fullmatch, dict.fromkeys(instance_ids)):
            known = self._seen.get(each)
            for region in (known.pool.region,) if known else self.settings.regions:
                places.setdefault(region, []).append(each)
        for region, ids in places.items():
            for at in range(0, len(ids), AT_ONCE):
                failed |= self._terminate_many(ids[at : at + AT_ONCE], region)
        return failed

    def tidy(self, run: str) -> None:
        """After a run: cancel open requests and remove its security groups.

        Raises RetryLaterError while VMs of the run still exist.
        """
        self._spot.sweep(run, self.settings.regions)
        self.groups.remove(run)

    @property
    def trouble(self) -> tuple[str, ...]:
        """What could not be asked lately, for people: price list, spot prices of a region."""
        never = [f"{pool} {capacity.value}: {why}" for (pool, capacity), why in self._never.items()]
        asked = [f"{what}: {why}" for what, why in self.prices.trouble.items()]
        return tuple(sorted(asked) + sorted(never))

    # -- launching -------------------------------------------------------------------------------

    def _check(self, request: LaunchRequest, what: str) -> None:
        pool = request.pool
        never = self._never.get((pool, request.capacity))
        if never is not None:
            raise CapacityError(never)
        if pool not in self.pools():
            raise ConfigError(f"{what}: not among the pools of this run")
        if request.capacity is Capacity.RESERVED:
            raise ConfigError(f"{what}: reservations are not bought, only used")
        most, price = request.max_price_micro_usd_h, self.prices.price(pool, request.capacity)
        if most is not None and price is None and request.capacity is Capacity.ON_DEMAND:
            raise CapacityError(f"{what}: no price is known, so none can be held to the maximum")
        if most is not None and price is not None and price > most:
            raise CapacityError(
                f"{what}: ${usd(price):g}/h is above the maximum price of ${usd(most):g}/h"
            )

    def _refused(self, request: LaunchRequest, what: str, error: Exception) -> Vm:
        """Return the VM that the token stands for already, or raise what the refusal means."""
        code = code_of(error)
        if code in USED_BEFORE:
            return self._known(request, what, code)
        if code and meaning_of(code) is Meaning.NEVER_HERE:
            self._never[request.pool, request.capacity] = str(translate(error, what))
        if code == "InvalidGroup.NotFound":
            # Somebody removed the run's group, or it is too new: the next try makes it again.
            self.groups.forget(request.run, request.pool.region)
            raise RetryLaterError(f"{what}: the run's security group is not known yet") from error
        raise translate(error, what) from error

    def _known(self, request: LaunchRequest, what: str, code: str) -> Vm:
        wanted = {RUN_TAG: request.run, TOKEN_TAG: request.token}
        region = request.pool.region
        found = list(self._instances(region, wanted))
        if not found and code == "IdempotentInstanceTerminated":
            # AWS forgets ended VMs after an hour: the token is spent, and no VM is left of it.
            raise CapacityError(f"{what}: the VM of {request.token} has ended")
        if not found:
            raise RetryLaterError(f"{what}: {request.token} was launched, but is not listed yet")
        vm = self._note(region, found[0])
        if (vm.pool, vm.capacity) != (request.pool, request.capacity):
            raise ConfigError(f"{what}: {request.token} was used before, for another kind of VM")
        return vm

    def _accepted(self, request: LaunchRequest, what: str, instance: dict[str, Any]) -> Vm:
        """Return the VM that AWS made, if it is one of the kind asked for."""
        region = request.pool.region
        vm = replace(self._note(region, instance), token=request.token, run=request.run)
        self._launched_ms[vm.instance_id] = self._now_ms()
        if (vm.pool, vm.capacity) == (request.pool, request.capacity):
            return vm
        if vm.state is not VmState.ENDED:
            self._terminate(vm.instance_id, region)
        raise CapacityError(
            f"{what}: AWS started {vm.pool} {vm.capacity.value} instead ({vm.instance_id}), "
            "which was ended at once"
        )

    # -- ending ----------------------------------------------------------------------------------

    def _terminate(self, instance_id: str, region: str) -> None:
        ec2 = self.clients.ec2(region)
        try:
            ec2.terminate_instances(InstanceIds=[instance_id])
        except Exception as error:
            code = code_of(error)
            if code == PROTECTED:
                self._unprotect(instance_id, region, error)
                return
            if code != GONE:
                raise translate(error, f"end {instance_id}") from error
            self._check_age(instance_id, error)
        self._spot.cancel_of(instance_id, region)

    def _terminate_many(self, ids: Sequence[str], region: str) -> dict[str, SurefootError]:
        if len(ids) == 1:
            try:
                self._terminate(ids[0], region)
            except SurefootError as error:
                return {ids[0]: error}
            return {}
        try:
            with asking(f"end {len(ids)} VMs in {region}"):
                try:
                    self.clients.ec2(region).terminate_instances(InstanceIds=list(ids))
                except Exception as error:
                    if code_of(error) not in (PROTECTED, GONE):
                        raise
                    half = len(ids) // 2
                    parts = (ids[:half], ids[half:])
                    first, rest = (self._terminate_many(part, region) for part in parts)
                    return first | rest
            self._spot.cancel_all(ids, region)
        except SurefootError as error:
            return dict.fromkeys(ids, error)
        return {}

    def _check_age(self, instance_id: str, error: Exception) -> None:
        """Raise RetryLaterError for a VM that is unknown only because it is so young."""
        age_ms = self._now_ms() - self._launched_ms.get(instance_id, 0)
        if age_ms <= self.settings.list_lag_ms:
            raise RetryLaterError(f"end {instance_id}: not known to all of AWS yet") from error

    def _unprotect(self, instance_id: str, region: str, error: Exception) -> None:
        if not self.settings.unprotect:
            raise ConfigError(
                f"{instance_id} is protected against termination and goes on costing "
                f"{self._rate(instance_id)}",
                hint="switch its protection off in the console, or set aws: {unprotect: true}",
            ) from error
        with asking(f"unprotect and end {instance_id}"):
            ec2 = self.clients.ec2(region)
            off = {"Value": False}
            ec2.modify_instance_attribute(InstanceId=instance_id, DisableApiTermination=off)
            ec2.terminate_instances(InstanceIds=[instance_id])
        self._spot.cancel_of(instance_id, region)

    def _rate(self, instance_id: str) -> str:
        vm = self._seen.get(instance_id)
        price = None if vm is None else self.prices.price(vm.pool, vm.capacity)
        return "money" if price is None else f"${usd(price):g}/h"

    # -- looking ---------------------------------------------------------------------------------

    def _instances(self, region: str, tags: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the instances with these tags; raises when any page of the answer fails."""
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
        yield from self._matching(region, filters)

    def _matching(self, region: str, filters: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        with asking(f"list VMs in {region}"):
            pages = list(
                self.clients.ec2(region)
                .get_paginator("describe_instances")
                .paginate(
                    Filters=[*filters], PaginationConfig={"PageSize": self.settings.page_size}
                )
            )
        for page in pages:
            for reservation in page["Reservations"]:
                yield from reservation["Instances"]

    def _sold(self, region: str) -> Iterator[Pool]:
        types = sorted(self.settings.instance_types)
        with asking(f"instance types of {region}"):
            pages = list(
                self.clients.ec2(region)
                .get_paginator("describe_instance_type_offerings")
                .paginate(
                    LocationType="availability-zone",
                    Filters=[{"Name": "instance-type", "Values": types}],
                )
            )
        for page in pages:
            for row in page["InstanceTypeOfferings"]:
                zone, name = row["Location"], row["InstanceType"]
                if name in types and (not self.settings.zones or zone in self.settings.zones):
                    yield Pool("aws", region, zone, name)

    def _note(self, region: str, instance: dict[str, Any]) -> Vm:
        vm = vm_of(region, instance)
        self._seen[vm.instance_id] = vm
        self._spot.note(instance)
        return vm
