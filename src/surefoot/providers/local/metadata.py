"""The metadata service of local VMs: speaks the AWS protocol (IMDSv2), one server for all VMs."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from surefoot.providers.notice import now_ms

MAX_TOKEN_TTL_S = 21_600
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a VM can learn about itself. `address` is where its requests come from."""

    instance_id: str
    instance_type: str
    region: str
    zone: str
    address: str = ""
    is_spot: bool = True


@dataclass(slots=True)
class _Vm:
    """One VM's side of the service."""

    identity: Identity
    tokens: dict[str, int] = field(default_factory=dict)
    """Session tokens and the epoch ms at which each expires."""
    action: str = ""
    gone_ms: int | None = None
    rebalance_ms: int | None = None
    faults: list[int] = field(default_factory=list)
    """HTTP statuses with which the next requests fail."""


class MetadataServer:
    """Serves on a listening socket, which it owns, until closed.

    A VM is known by the address it calls from, or by the prefix /vm/ID in the path. Session
    tokens live `token_life_ms` at most, whatever the client asks for (to rehearse expiry).
    """

    def __init__(
        self, listener: socket.socket, *, token_life_ms: int = MAX_TOKEN_TTL_S * 1000
    ) -> None:
        self._vms: dict[str, _Vm] = {}
        self._lock = threading.Lock()
        self._token_life_ms = token_life_ms
        self._server = _Server(listener, self._answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The TCP port that it listens on."""
        return self._server.server_address[1]

    def endpoint(self, instance_id: str) -> str:
        """Return the URL for a VM that shares its address with others."""
        host = self._server.server_address[0]
        return f"http://{host!s}:{self.port}/vm/{instance_id}"

    def add(self, identity: Identity) -> None:
        """Serve a VM from now on."""
        with self._lock:
            self._vms[identity.instance_id] = _Vm(identity)

    def remove(self, instance_id: str) -> None:
        """Stop serving a VM; unknown ids are ignored."""
        with self._lock:
            self._vms.pop(instance_id, None)

    def announce(self, instance_id: str, *, gone_ms: int, action: str = "terminate") -> None:
        """Tell a VM that it will be taken at `gone_ms` (epoch); unknown ids are ignored."""
        with self._lock:
            if vm := self._vms.get(instance_id):
                vm.action, vm.gone_ms = action, gone_ms

    def is_announced(self, instance_id: str) -> bool:
        """Return whether a VM has been told that it will be taken."""
        with self._lock:
            vm = self._vms.get(instance_id)
            return vm is not None and vm.gone_ms is not None

    def recommend_rebalance(self, instance_id: str) -> None:
        """Tell a VM that it is at elevated risk; unknown ids are ignored."""
        with self._lock:
            if vm := self._vms.get(instance_id):
                vm.rebalance_ms = now_ms()

    def fail(self, instance_id: str, *statuses: int) -> None:
        """Answer the VM's next requests with these HTTP statuses, one each (a fault)."""
        with self._lock:
            self._vms[instance_id].faults.extend(statuses)

    def close(self) -> None:
        """Stop serving and close the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: _Request) -> None:
        with self._lock:
            vm = self._find(request)
            if vm is None:
                return request.reply(404, "no such VM")
            if vm.faults:
                return request.reply(vm.faults.pop(0), "injected fault")
            if request.command == "PUT":
                return self._new_token(vm, request)
            if request.command != "GET":
                return request.reply(405, "")
            if not _is_authorized(vm, request):
                return request.reply(401, "")
            body = _body_of(vm, request.path.removeprefix("/latest/").rstrip("/"))
            return request.reply(404, "Not Found") if body is None else request.reply(200, body)

    def _find(self, request: _Request) -> _Vm | None:
        """Return the caller; a /vm/ID prefix is taken off the request's path."""
        if request.path.startswith("/vm/"):
            name, _, rest = request.path.removeprefix("/vm/").partition("/")
            request.path = "/" + rest
            return self._vms.get(name)
        caller = request.client_address[0]
        found = (vm for vm in self._vms.values() if vm.identity.address == caller)
        return next(found, None)

    def _new_token(self, vm: _Vm, request: _Request) -> None:
        if request.path != "/latest/api/token":
            return request.reply(405, "")
        asked = request.headers.get(TTL_HEADER, "")
        if not asked.isdecimal() or not 1 <= int(asked) <= MAX_TOKEN_TTL_S:
            return request.reply(400, "bad ttl")
        token = secrets.token_urlsafe(32)
        now = now_ms()
        vm.tokens = {known: until for known, until in vm.tokens.items() if until > now}
        vm.tokens[token] = now + min(int(asked) * 1000, self._token_life_ms)
        return request.reply(200, token, {TTL_HEADER: asked})


def _is_authorized(vm: _Vm, request: _Request) -> bool:
    return vm.tokens.get(request.headers.get(TOKEN_HEADER, ""), 0) > now_ms()


def _body_of(vm: _Vm, path: str) -> str | None:
    """Return the text at a path below /latest/, None for what is not there."""
    me = vm.identity
    match path:
        case "meta-data/spot/instance-action" if vm.gone_ms is not None:
            return json.dumps({"action": vm.action, "time": _iso(vm.gone_ms)})
        case "meta-data/spot/termination-time" if vm.gone_ms is not None:
            return _iso(vm.gone_ms)
        case "meta-data/events/recommendations/rebalance" if vm.rebalance_ms is not None:
            return json.dumps({"noticeTime": _iso(vm.rebalance_ms)})
        case "dynamic/instance-identity/document":
            return json.dumps(
                {
                    "instanceId": me.instance_id,
                    "instanceType": me.instance_type,
                    "region": me.region,
                    "availabilityZone": me.zone,
                    "privateIp": me.address,
                }
            )
        case _:
            return {
                "meta-data/instance-id": me.instance_id,
                "meta-data/instance-type": me.instance_type,
                "meta-data/placement/region": me.region,
                "meta-data/placement/availability-zone": me.zone,
                "meta-data/instance-life-cycle": "spot" if me.is_spot else "on-demand",
                "meta-data/local-ipv4": me.address or None,
            }.get(path)


def _iso(at_ms: int) -> str:
    """Return an instant as AWS writes it: whole seconds, rounded down (so never too late)."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Request(BaseHTTPRequestHandler):
    """One HTTP request; what to answer is the server's business."""

    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"
    timeout = 30
    server: _Server

    def do_GET(self) -> None:
        self.server.answer(self)

    def do_PUT(self) -> None:
        self.server.answer(self)

    def do_POST(self) -> None:
        self.server.answer(self)

    def reply(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: the controller's terminal is not a web server's log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, answer: Callable[[_Request], None]) -> None:
        super().__init__(listener.getsockname()[:2], _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_address = listener.getsockname()
        self.answer = answer

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that vanish in the middle of a request: VMs are killed all the time."""
