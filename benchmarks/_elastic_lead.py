"""The controller of the elastic benchmark as a process of its own, so that it can be killed.

Leads a job of on-demand VMs on the local provider. Reads one command a line from standard input
(kill|poweroff|cut|uncut TOKEN, notice TOKEN MS, save, stop) and prints one JSON line an event.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
import time
from pathlib import Path

from surefoot.controller.clock import RealClock
from surefoot.controller.hub import Hub
from surefoot.controller.loop import Controller
from surefoot.controller.settings import Settings
from surefoot.controller.store import Store
from surefoot.core.event import Event
from surefoot.core.forecast import get_forecaster
from surefoot.core.job import IntervalRule, Job, Throughput, Work
from surefoot.core.policy import get_policy
from surefoot.core.wire import SaveNow
from surefoot.providers.local.provider import LocalProvider
from surefoot.traces import read_trace

RUN = "elastic"
SETTINGS = Settings(list_lag_ms=3_000, drain_limit_ms=15_000, stop_limit_ms=20_000)

MARKET = """
name: plenty
duration: 24h
pools:
  - pool: local/r/z/p3.2xlarge
    notice: 10s
    boot: 2s
    supply: {0s: 16}
    spot: {0s: 1.0}
    on_demand: 3.0
"""


class Lead:
    """Owns the provider and the controller until the run is over."""

    def __init__(self, folder: Path, *, nodes: int, vms: str) -> None:
        market = folder / "market.yaml"
        market.write_text(MARKET)
        trace = read_trace(market)
        self.provider = LocalProvider(trace, state_dir=folder / "vms", vms=vms)
        self.clock = RealClock()
        hub_file = folder / "hub.json"
        port = json.loads(hub_file.read_text())["port"] if hub_file.exists() else 0
        listener = self.provider.listen(port)
        hub_file.write_text(json.dumps({"port": listener.getsockname()[1]}))
        self.hub = Hub(listener, "bench-secret", self.clock)
        worker = Path(__file__).with_name("_elastic_worker.py")
        boot = {
            "SUREFOOT_HUB": self.provider.hub_address(listener),
            "SUREFOOT_SECRET": "bench-secret",
            "SUREFOOT_COMMAND": f"exec {shlex.quote(sys.executable)} {worker} ours",
            "SUREFOOT_CHECKPOINT": str(folder / "checkpoints"),
            "SUREFOOT_KEEP": "3",
            "SUREFOOT_NOTICE": "aws",
            "SUREFOOT_LEASE_S": "120",
            "SUREFOOT_ENVS": json.dumps(
                {k: v for k, v in os.environ.items() if k.startswith("ELASTIC_")}
            ),
        }
        job = Job(
            name=RUN,
            num_nodes=nodes,
            pools=trace.pools,
            throughput=Throughput(nodes, nodes),
            interval=IntervalRule(fixed_ms=int(os.environ.get("ELASTIC_SAVE_MS", "2000"))),
            work=Work(step_ms=100),
            policy="on-demand",
        )
        self.controller = Controller(
            job,
            self.provider,
            agents=self.hub,
            store=Store(folder / "journal.db"),
            clock=self.clock,
            policy=get_policy("on-demand"),
            forecaster=get_forecaster("climatology"),
            run=RUN,
            boot=boot,
            settings=SETTINGS,
            on_event=(self.tell,),
        )

    def tell(self, event: Event) -> None:
        """Print what happened."""
        said = {"t": time.monotonic(), "event": type(event).__name__, "what": str(event)[:300]}
        print(json.dumps(said), flush=True)

    def obey(self) -> None:
        """Take commands until standard input ends (own thread)."""
        for line in sys.stdin:
            verb, *rest = line.split()
            if verb == "stop":
                self.controller.request_stop()
            elif verb == "save":
                for token in self.hub.connected():
                    self.hub.send(token, SaveNow("benchmark"))
            else:
                self._inflict(verb, *rest)
        self.controller.request_stop()  # whoever asked for the run is gone

    def _inflict(self, verb: str, token: str, *more: str) -> None:
        found = [vm for vm in self.provider.list(RUN) if vm.token == token]
        if found and verb == "notice":
            self.provider.reclaim(found[0].instance_id, notice_ms=int(more[0]))
        elif found:
            getattr(self.provider, verb)(found[0].instance_id)

    def lead(self) -> None:
        """Take turns until the run is over."""
        threading.Thread(target=self.obey, daemon=True).start()
        try:
            while (wake_ms := self.controller.turn()) is not None:
                left_s = (wake_ms - self.clock.now_ms()) / 1000
                self.hub.wait(min(max(0.0, left_s), 0.25))
        finally:
            self.controller.close()
            self.hub.close()
            self.provider.close(kill=True)


if __name__ == "__main__":
    Lead(Path(sys.argv[1]), nodes=int(sys.argv[2]), vms=sys.argv[3]).lead()
