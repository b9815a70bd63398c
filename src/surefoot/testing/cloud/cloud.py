"""The fake cloud itself: a server that boto3 talks to, and the faults a test may ask for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from surefoot.core.market import Capacity, Pool
from surefoot.providers.notice import now_ms
from surefoot.testing.cloud.ec2 import Ec2
from surefoot.testing.cloud.machines import Machines
from surefoot.testing.cloud.market import Held, Refusal, Sale

PULSE_S = 0.1
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
"""Environment that boto3 needs to talk to it: any key is taken."""


class FakeCloud:
    """EC2, its price lists and its metadata service, on loopback; one at a time in a process.

    moto keeps the state; a layer in front of it adds what moto lacks: capacity and prices by
    pool, idempotency, spot requests, reclaims, faults, and VMs that boot (`vms`: namespace needs
    root; process; none). Use as a context manager. Needs the extra `testing-cloud`.
    """

    def __init__(
        self, pools: Mapping[Pool, Sale], *, folder: Path, vms: str = "none", port: int = 0
    ) -> None:
        self.machines = Machines(vms, folder)
        self.ec2 = Ec2(pools, self.machines)
        self._server = _serve(self.ec2, port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()
        self._timers: list[threading.Timer] = []
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __enter__(self) -> FakeCloud:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        """The URL to give to boto3 as `endpoint_url`."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def held(self) -> list[Held]:
        """Every VM there ever was, by the cloud's own record."""
        return list(self.ec2.books.vms.values())

    @property
    def running(self) -> list[Held]:
        """The VMs that cost money now."""
        return [vm for vm in self.held if vm.ended_ms is None]

    @property
    def calls(self) -> list[str]:
        """The actions that were asked, in order."""
        return self.ec2.calls

    def bill(self, run: str = "", *, first_hour_free: bool = False) -> int:
        """Return what the cloud would charge by now, micro-dollars (see `Books.bill`)."""
        return self.ec2.books.bill(now_ms(), run, first_hour_free=first_hour_free)

    # -- faults ----------------------------------------------------------------------------------

    def refuse(self, refusal: Refusal) -> None:
        """Let coming requests fail."""
        self.ec2.refusals.append(refusal)

    def reclaim(self, instance_id: str, *, notice_s: float = 0.0) -> None:
        """Take a spot VM back: a notice in its metadata, then power off in silence."""
        if notice_s <= 0:
            self.ec2.take(instance_id)
            return
        self.machines.announce(instance_id, now_ms() + round(notice_s * 1000))
        timer = threading.Timer(notice_s, self.ec2.take, (instance_id,))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def sell(self, pool: Pool, **changes: int | None) -> None:
        """Change what a pool sells from now on: fields of `Sale`."""
        with self.ec2.lock:
            changed: Any = replace(self.ec2.pools[pool], **changes)  # type: ignore[arg-type]
            self.ec2.set(pool, changed)

    def protect(self, instance_id: str) -> None:
        """Protect a VM against termination, as a user may in the console."""
        self.ec2.protected.add(instance_id)

    def leave_open(self, run: str, region: str, *, visible_after_ms: int = 0) -> str:
        """Leave a spot request of a run open, listed only after a while; return its id."""
        return self.ec2.requests.leave_open(run, region, visible_after_ms=visible_after_ms)

    def close(self) -> None:
        """End all VMs and stop serving."""
        if self._closing.is_set():
            return
        self._closing.set()
        for timer in self._timers:
            timer.cancel()
        self._watcher.join()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.machines.close()

    def _watch(self) -> None:
        while not self._closing.wait(PULSE_S):
            for instance_id in self.machines.stopped():
                self.ec2.shut_down(instance_id)


def spot_running(cloud: FakeCloud) -> list[Held]:
    """Return the spot VMs that run now, oldest first."""
    spot = [vm for vm in cloud.running if vm.capacity is Capacity.SPOT]
    return sorted(spot, key=lambda vm: vm.launched_ms)


def _serve(app: Ec2, port: int) -> Any:
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing: a test's output is not an access log."""

    return make_server("127.0.0.1", port, app, threaded=True, request_handler=Quiet)
