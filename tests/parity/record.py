"""Record the journals that `test_recorded_runs.py` replays: live runs on VMs in namespaces.

Needs root and iproute2, and about two minutes a seed: `python tests/parity/record.py [SEED...]`.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from surefoot.controller import Store
from surefoot.controller.store.codec import encode_event
from surefoot.core.event import MetricSeen

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
POLICIES = {1: "hybrid", 2: "greedy", 3: "hybrid"}
JOB = """\
name: parity
num_nodes: 3
resources: {{infra: local, instance_type: p3.2xlarge}}
workdir: .
run: STEPS=$SUREFOOT_STEPS BATCH=6 python train.py
steps: 100
step_time: 500ms
throughput: {{floor: 2, ceiling: 3}}
policy: {policy}
forecaster: gamma_poisson
checkpoint: {{interval: {{min: 2s, max: 20s}}}}
local: {{trace: market.yaml, vms: namespace, pace: 4}}
out: out
"""


def market(seed: int) -> str:
    """Return a market of one pool with a loss told, one not told, and a drought, by seed."""
    rng = np.random.default_rng([seed, 10])
    told, silent = rng.integers(20, 32), rng.integers(36, 48)
    drought = int(rng.integers(52, 62))
    back, left = drought + int(rng.integers(12, 25)), int(rng.integers(0, 2))
    return f"""\
name: parity-{seed}
duration: 300s
pools:
  - pool: local/east/east-a/p3.2xlarge
    notice: 8s
    boot: 6s
    supply: {{0s: 3, {drought}s: {left}, {back}s: 3}}
    spot: 0.97
    on_demand: 3.06
    reclaims:
      - {{at: {told}s, count: 1}}
      - {{at: {silent}s, count: 1, notice: 0s}}
"""


def record(seed: int) -> None:
    """Run one job live, and keep its journal and its market."""
    with tempfile.TemporaryDirectory(prefix="surefoot-parity-") as name:
        place = Path(name)
        shutil.copy(ROOT / "examples/gpt/train.py", place)
        (place / "market.yaml").write_text(market(seed))
        (place / "job.yaml").write_text(JOB.format(policy=POLICIES[seed]))
        command = [Path(sys.executable).parent / "surefoot", "run", "job.yaml", "--yes", "--json"]
        subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
        store = Store(place / "out/journal.db")
        events = [event for _, event in store.events(store.runs()[0].run)]
        store.close()
    (HERE / "live" / f"{seed}.market.yaml").write_text(market(seed))
    job = JOB.format(policy=POLICIES[seed]).replace("market.yaml", f"{seed}.market.yaml")
    (HERE / "live" / f"{seed}.job.yaml").write_text(job)
    rows = [encode_event(event) for event in events if not isinstance(event, MetricSeen)]
    text = "".join(json.dumps([kind, body]) + "\n" for kind, body in rows)
    (HERE / "live" / f"{seed}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    for chosen in [int(text) for text in sys.argv[1:]] or list(POLICIES):
        record(chosen)
