"""A controller in its own process that leads one run on the fake AWS; may be killed any time."""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from surefoot.cli.local import SETTINGS
from surefoot.controller.clock import RealClock
from surefoot.controller.hub import Hub
from surefoot.controller.loop import Controller
from surefoot.controller.store import Store
from surefoot.core.forecast import get_forecaster
from surefoot.core.job import IntervalRule, Job, Limits, Throughput, Work
from surefoot.core.market import Pool
from surefoot.core.policy import get_policy
from surefoot.providers.aws.compute import AwsProvider
from surefoot.providers.aws.settings import AwsSettings
from surefoot.providers.local.namespaces import NamespaceHost

WORKER = Path(__file__).with_name("train_worker.py")
PACE = 30.0
"""Samples per second of one VM: the batch of 12 makes 2.5 steps a second each."""


def job_of(terms: dict[str, Any]) -> Job:
    pools = tuple(Pool.parse(text) for text in terms["pools"])
    return Job(
        name="story",
        num_nodes=terms["nodes"],
        pools=pools,
        throughput=Throughput(float(terms["nodes"]), float(terms["nodes"])),
        limits=Limits(budget_micro_usd=50_000_000, max_price_micro_usd_h=20_000_000),
        interval=IntervalRule(min_ms=1_500, max_ms=10_000),
        work=Work(total_steps=terms["steps"], step_ms=100),
    )


def hub_of(host: NamespaceHost, folder: Path, clock: RealClock) -> tuple[Hub, dict[str, str]]:
    """Open the hub where the agents of an earlier controller look for it."""
    file = folder / "hub.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    listener = host.listen(known.get("port", 0))
    address, port = listener.getsockname()[:2]
    secret = known.get("secret") or secrets.token_urlsafe(16)
    draft = file.with_suffix(".tmp")
    draft.write_text(json.dumps({"secret": secret, "port": port}))
    draft.replace(file)
    boot = {"SUREFOOT_HUB": f"{address}:{port}", "SUREFOOT_SECRET": secret}
    return Hub(listener, secret, clock), boot


def main(folder: Path) -> str:
    terms = json.loads((folder / "terms.json").read_text())
    clock = RealClock()
    hub, boot = hub_of(NamespaceHost(Path(terms["cloud"])), folder, clock)
    boot |= {
        "SUREFOOT_COMMAND": f"RIG_LOG=$SUREFOOT_VM_DIR/steps.jsonl {sys.executable} {WORKER}",
        "SUREFOOT_WORKDIR": "",
        "SUREFOOT_CHECKPOINT": str(folder / "checkpoints"),
        "SUREFOOT_KEEP": "3",
        "SUREFOOT_NOTICE": "aws",
        "SUREFOOT_ENVS": json.dumps({"RIG_TOTAL": str(terms["steps"]), "OMP_NUM_THREADS": "1"}),
        "SUREFOOT_LEASE_S": "30",
        "SUREFOOT_PACE": str(PACE),
    }
    settings = AwsSettings(
        ("us-east-1",),
        (terms["type"],),
        images={"*": "ami-12c6146b"},
        endpoint_url=terms["endpoint"],
        python=sys.executable,
        refresh_ms=500,
        list_lag_ms=3_000,
    )
    provider = AwsProvider(settings)
    controller = Controller(
        job_of(terms),
        provider,
        agents=hub,
        store=Store(folder / "journal.sqlite"),
        clock=clock,
        policy=get_policy("hybrid"),
        forecaster=get_forecaster("gamma_poisson"),
        run=terms["run"],
        boot=boot,
        settings=SETTINGS,
    )
    outcome = controller.run()
    provider.tidy(terms["run"])
    return outcome


if __name__ == "__main__":
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "testing")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "testing")
    print(main(Path(sys.argv[1])))
