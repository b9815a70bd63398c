"""The layer in front of moto: what EC2 does and moto does not, and VMs behind the instances."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from surefoot.core.market import Capacity, Pool
from surefoot.errors import ConfigError
from surefoot.providers.aws.listing import RUN_TAG, TOKEN_TAG
from surefoot.providers.notice import now_ms
from surefoot.testing.cloud import wire
from surefoot.testing.cloud.machines import Machines
from surefoot.testing.cloud.market import Books, Held, Refusal, Sale
from surefoot.testing.cloud.requests import Requests
from surefoot.testing.cloud.wire import Asked, Reply

ACCOUNT = "123456789012"
SHORTAGE = "InsufficientInstanceCapacity"
QUOTAS = {
    "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests": 640.0,
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances": 640.0,
    "All G and VT Spot Instance Requests": 0.0,
    "Running On-Demand G and VT instances": 8.0,
}


class Ec2:
    """A WSGI application. Attributes may be changed by tests at any time."""

    def __init__(self, pools: Mapping[Pool, Sale], machines: Machines) -> None:
        self.pools: dict[Pool, Sale] = {}
        self.books = Books()
        for pool, sale in pools.items():
            self.set(pool, sale)
        self.machines = machines
        self.refusals: list[Refusal] = []
        self.protected: set[str] = set()
        self.requests = Requests()
        self.calls: list[str] = []
        self.quotas = dict(QUOTAS)
        self.list_lag_ms = 0
        """New VMs are unknown to every other call for this long."""
        self.betrayals = 0
        """So many spot launches to come start an on-demand VM instead."""
        self.lock = threading.RLock()
        self._moto, self._backends = _moto()
        self._tokens: dict[str, tuple[Mapping[str, str], Reply, str]] = {}
        self._own: dict[str, Callable[[Asked], Reply]] = {
            "DescribeSpotPriceHistory": self._spot_prices,
            "DescribeSpotInstanceRequests": self.requests.describe,
            "CancelSpotInstanceRequests": self.requests.cancel,
            "DescribeInstanceTypeOfferings": self._types,
            "GetProducts": self._products,
            "ListServiceQuotas": self._list_quotas,
        }

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        asked = wire.read(environ, body)
        reply = self._answer(asked, environ, body)
        if reply.torn:  # the client sees its connection close without an answer
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        size = len(reply.body)
        headers = [("Content-Type", reply.kind), ("Content-Length", str(size))]
        start(f"{reply.status} {'OK' if reply.status < 300 else 'Error'}", headers)
        return [reply.body]

    # -- what happens to VMs ---------------------------------------------------------------------

    def set(self, pool: Pool, sale: Sale) -> None:
        """Let a pool sell on these terms from now on."""
        at_ms = now_ms()
        self.pools[pool] = sale
        self.books.price(pool, Capacity.SPOT, sale.spot_micro_usd_h, at_ms)
        self.books.price(pool, Capacity.ON_DEMAND, sale.on_demand_micro_usd_h, at_ms)

    def take(self, instance_id: str) -> None:
        """Take a VM back at once and in silence."""
        reason = "Server.SpotInstanceTermination"
        self._end(instance_id, reason, "Service initiated", silently=True)

    def shut_down(self, instance_id: str) -> None:
        """Note that a VM has shut itself down."""
        self._end(instance_id, "Client.InstanceInitiatedShutdown", "", silently=False)

    def _end(self, instance_id: str, code: str, reason: str, *, silently: bool) -> None:
        with self.lock:
            held = self.books.vms.get(instance_id)
            if held is None or held.ended_ms is not None:
                return
            held.ended_ms = now_ms()
            held.taken = code.startswith("Server.Spot")
            self.requests.close_of(instance_id)
            self.machines.end(instance_id, silently=silently)
            instance = self._backends[held.pool.region].get_instance(instance_id)
            if instance.state != "terminated":
                instance.terminate()
            moment = datetime.fromtimestamp(held.ended_ms / 1000, UTC)
            instance._reason = f"{reason or 'User initiated'} ({moment:%Y-%m-%d %H:%M:%S} GMT)"
            if code:
                instance.state_reason.code = code
                instance.state_reason.message = f"{code}: ended"

    # -- answering -------------------------------------------------------------------------------

    def _answer(self, asked: Asked, environ: dict[str, Any], body: bytes) -> Reply:
        with self.lock:
            self.calls.append(asked.action)
            lost = False
            for each in self.refusals:
                if each.hits(asked.action, asked.text):
                    if not each.done:
                        return wire.refusal(each.code, "as the test wished", each.status)
                    lost = True
                    break
            reply = self._act(asked, environ, body)
            return Reply(reply.status, reply.body, reply.kind, torn=True) if lost else reply

    def _act(self, asked: Asked, environ: dict[str, Any], body: bytes) -> Reply:
        if asked.action == "RunInstances" and asked.fields.get("DryRun") != "true":
            return self._run(asked, environ, body)
        if asked.action == "TerminateInstances":
            return self._terminate(asked, environ, body)
        if asked.action == "ModifyInstanceAttribute":
            self.protected.discard(asked.fields.get("InstanceId", ""))
        if asked.action in self._own:
            return self._own[asked.action](asked)
        reply = self._ask_moto(environ, body)
        if asked.action == "DescribeInstances":
            return self._hide_young(reply)
        return reply

    def _ask_moto(self, environ: dict[str, Any], body: bytes) -> Reply:
        seen: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> object:
            seen.update(status=int(status.split()[0]), headers=dict(headers))
            return lambda data: None

        again = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        data = b"".join(self._moto(again, start))
        return Reply(seen["status"], data, seen["headers"].get("Content-Type", wire.XML))

    def _run(self, asked: Asked, environ: dict[str, Any], body: bytes) -> Reply:
        token = asked.fields.get("ClientToken", "")
        if token in self._tokens:
            return self._again(asked, *self._tokens[token])
        zone, kind = asked.fields.get("Placement.AvailabilityZone"), asked.fields["InstanceType"]
        pool = Pool("aws", asked.region, zone or f"{asked.region}a", kind)
        spot = asked.fields.get("InstanceMarketOptions.MarketType") == "spot"
        capacity = Capacity.SPOT if spot else Capacity.ON_DEMAND
        if (refused := self._refuse_sale(asked, pool, capacity)) is not None:
            return refused
        if spot and self.betrayals > 0:
            self.betrayals -= 1
            capacity = Capacity.ON_DEMAND
            body = re.sub(rb"&InstanceMarketOptions[^&]*", b"", body)
        reply = self._ask_moto(environ, body)
        if reply.status != 200:
            return reply
        found = re.search(rb"<instanceId>(i-[0-9a-f]+)</instanceId>", reply.body)
        assert found is not None, reply.body
        instance_id = found[1].decode()
        request_id = self._begin(asked, instance_id, pool, capacity)
        if request_id:
            more = (
                found[0] + f"<spotInstanceRequestId>{request_id}</spotInstanceRequestId>".encode()
            )
            reply = Reply(200, reply.body.replace(found[0], more), reply.kind)
        if token:
            self._tokens[token] = (asked.fields, reply, instance_id)
        return reply

    def _again(
        self, asked: Asked, before: Mapping[str, str], reply: Reply, instance_id: str
    ) -> Reply:
        """Answer a launch whose token was used: same answer, or why not."""
        if dict(before) != dict(asked.fields):
            return wire.refusal("IdempotentParameterMismatch", "the parameters differ", 400)
        if self.books.vms[instance_id].ended_ms is not None:
            return wire.refusal("IdempotentInstanceTerminated", "its VM was terminated", 400)
        return reply

    def _refuse_sale(self, asked: Asked, pool: Pool, capacity: Capacity) -> Reply | None:
        sale = self.pools.get(pool)
        if sale is None:
            return wire.refusal("Unsupported", f"{pool.instance_type} is not sold there", 400)
        limit = sale.spot if capacity is Capacity.SPOT else sale.on_demand
        if limit is not None and self.books.running(pool, capacity) >= limit:
            return wire.refusal(SHORTAGE, f"no {pool.instance_type} in {pool.zone} now", 500)
        most = asked.fields.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        if capacity is Capacity.SPOT and most and float(most) * 1e6 < sale.spot_micro_usd_h:
            return wire.refusal("SpotMaxPriceTooLow", f"{most} is below the price", 400)
        return None

    def _begin(self, asked: Asked, instance_id: str, pool: Pool, capacity: Capacity) -> str:
        """Boot the VM of a new instance; return the id of its spot request, if it has one."""
        tags = _tags(asked)
        run = tags.get(RUN_TAG, "")
        request_id = ""
        if capacity is Capacity.SPOT:
            request_id = self.requests.made(run, pool.region, instance_id)
        script = base64.b64decode(asked.fields.get("UserData", "")).decode()
        address = self.machines.boot(instance_id, pool, capacity, script)
        instance = self._backends[pool.region].get_instance(instance_id)
        for card in instance.nics.values():
            card.private_ip_address = address
        launched_ms = round(instance.launch_time.replace(tzinfo=UTC).timestamp() * 1000)
        self.books.vms[instance_id] = Held(
            instance_id, tags.get(TOKEN_TAG, ""), run, pool, capacity, launched_ms, request_id
        )
        return request_id

    def _terminate(self, asked: Asked, environ: dict[str, Any], body: bytes) -> Reply:
        ids = asked.values("InstanceId")
        for each in ids:
            if self._is_young(each):
                return wire.refusal("InvalidInstanceID.NotFound", f"{each} does not exist", 400)
            if each in self.protected:
                text = f"The instance '{each}' may not be terminated: disableApiTermination"
                return wire.refusal("OperationNotPermitted", text, 400)
        ended = {i for i in ids if i in self.books.vms and self.books.vms[i].ended_ms is not None}
        if ended and ended == set(ids):
            return wire.answer(asked.action, "<instancesSet/>")
        reply = self._ask_moto(environ, body)
        if reply.status == 200:
            for each in ids:
                self._end(each, "", "User initiated", silently=False)
        return reply

    def _is_young(self, instance_id: str) -> bool:
        held = self.books.vms.get(instance_id)
        return held is not None and now_ms() - held.launched_ms < self.list_lag_ms

    def _hide_young(self, reply: Reply) -> Reply:
        """Take VMs out of a list that a part of the cloud has not heard of yet."""
        if not self.list_lag_ms:
            return reply
        text = reply.body.decode()
        for each in set(re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", text)):
            if self._is_young(each):
                text = re.sub(
                    rf"<item><reservationId>(?:(?!<reservationId>).)*?{each}.*?"
                    r"(?=<item><reservationId>|</reservationSet>)",
                    "",
                    text,
                    flags=re.DOTALL,
                )
        return Reply(reply.status, text.encode(), reply.kind)

    # -- answers that moto has not ---------------------------------------------------------------

    def _spot_prices(self, asked: Asked) -> Reply:
        types = asked.values("InstanceType")
        moment = datetime.fromtimestamp(now_ms() / 1000, UTC)
        rows = [
            {
                "instanceType": pool.instance_type,
                "productDescription": "Linux/UNIX",
                "spotPrice": f"{sale.spot_micro_usd_h / 1e6:.6f}",
                "timestamp": f"{moment:%Y-%m-%dT%H:%M:%S.000Z}",
                "availabilityZone": pool.zone,
            }
            for pool, sale in self.pools.items()
            if pool.region == asked.region and (not types or pool.instance_type in types)
        ]
        return wire.answer(asked.action, wire.items("spotPriceHistorySet", rows))

    def _types(self, asked: Asked) -> Reply:
        wanted = asked.filters().get("instance-type")
        rows = [
            {
                "instanceType": pool.instance_type,
                "locationType": "availability-zone",
                "location": pool.zone,
            }
            for pool in self.pools
            if pool.region == asked.region and (wanted is None or pool.instance_type in wanted)
        ]
        return wire.answer(asked.action, wire.items("instanceTypeOfferingSet", rows))

    def _products(self, asked: Asked) -> Reply:
        prices = {
            pool.instance_type: sale.on_demand_micro_usd_h
            for pool, sale in self.pools.items()
            if f'"{pool.instance_type}"' in asked.text and f'"{pool.region}"' in asked.text
        }
        return wire.price_list(prices)

    def _list_quotas(self, asked: Asked) -> Reply:
        rows = [{"QuotaName": name, "Value": value} for name, value in self.quotas.items()]
        return wire.json_answer({"Quotas": rows})


def _tags(asked: Asked) -> dict[str, str]:
    base = "TagSpecification.1.Tag"
    found, number = {}, 1
    while f"{base}.{number}.Key" in asked.fields:
        found[asked.fields[f"{base}.{number}.Key"]] = asked.fields[f"{base}.{number}.Value"]
        number += 1
    return found


def _moto() -> tuple[Any, Any]:
    """Return moto's application and its empty EC2 accounts. Raises ConfigError without moto."""
    try:
        from moto.ec2.models import ec2_backends
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            create_backend_app,
        )
    except ImportError as error:
        raise ConfigError(
            "the fake cloud needs moto", hint="pip install 'moto[server,ec2]' boto3"
        ) from error
    account = ec2_backends[ACCOUNT]
    for backend in list(account.values()):
        with contextlib.suppress(KeyError):
            backend.reset()
    return DomainDispatcherApplication(create_backend_app), account
