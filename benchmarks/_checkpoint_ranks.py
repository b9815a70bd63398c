"""What a save costs two ranks that train together (FSDP2 over gloo), ours beside DCP's ways.

Every figure is the slowest rank's. All ranks take as many steps, until all say that it is durable.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from _common import Bars, table
from surefoot.checkpoint import Checkpointer

Save = Callable[[Path, int, dict[str, Any]], Callable[[], bool]]


def report_ranks(bars: Bars, root: Path, world: int, gb: float, rounds: int) -> None:
    """Run the ranks, print their table and claim the bar."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = root / "ranks.json"
    options = [str(x) for x in (world, port, gb, rounds, root, out)]
    running = [
        subprocess.Popen([sys.executable, __file__, str(rank), *options]) for rank in range(world)
    ]
    if [process.wait() for process in running] != [0] * world:
        raise SystemExit("a rank failed")
    import json

    rows = json.loads(out.read_text())
    bars.rows["ranks"] = rows
    middle = {
        name: {key: statistics.median(row[key] for row in found) for key in found[0]}
        for name, found in rows.items()
    }
    keys = list(next(iter(middle.values())))
    print(f"\n{world} ranks, {gb} GB of state in all")
    table(["engine", *keys], [[name, *row.values()] for name, row in middle.items()])
    mine, peers = middle["surefoot"], [middle[name] for name in middle if name != "surefoot"]
    best = min(peer["lost s"] for peer in peers)
    bars.at_most(f"{world} ranks: lost s / best peer that fsyncs", mine["lost s"] / best, 1 / 2)
    bars.at_most(f"{world} ranks: caller blocked in save, s", mine["blocked s"], 0.005)


class Training:
    """A sharded model with about `gb` of state over all ranks."""

    def __init__(self, gb: float) -> None:
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        torch.set_num_threads(1)
        width = 512
        layers = max(2, round(gb * 1e9 / 12 / (12 * width * width)))
        blocks = [
            torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        ]
        self.model = torch.nn.Sequential(*blocks)
        for block in self.model:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.batch = torch.randn(1, 8, width)
        self.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optim": self.optimizer.state_dict()}

    def step(self) -> float:
        began = time.perf_counter()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began


def _ours(training: Training, root: Path, rank: int, world: int) -> Save:
    checkpointer = Checkpointer(root / "ours", keep=1, rank=rank, world=world, split=True)
    checkpointer.guard(training.optimizer)

    def save(_: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        handle = checkpointer.save(step, state)
        return lambda: handle.done and handle.wait() is not None

    return save


def _dcp(way: str) -> Save:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    group = dist.new_group(backend="gloo")  # shared with the training's it aborts the job
    more: dict[str, Any] = {}
    if way == "process":
        stager = DefaultStager(StagingOptions(False, True, False, False))
        kind = AsyncCheckpointerType.PROCESS
        more = {"async_stager": stager, "async_checkpointer_type": kind}

    def save(path: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        if way == "save":
            dcp.save(state, checkpoint_id=path, process_group=group)
            return lambda: True
        answer = dcp.async_save(state, checkpoint_id=path, process_group=group, **more)
        future = getattr(answer, "upload_completion", answer)
        return lambda: future.done() and (future.result() or True)

    return save


def _measure(save: Save, training: Training, path: Path, number: int) -> dict[str, float]:
    os.sync()
    dist.barrier()
    before = [training.step() for _ in range(2)]
    state = training.state()
    began = time.perf_counter()
    done = save(path, number, state)
    blocked = time.perf_counter() - began
    steps = [training.step()]
    while not _all_say(done()):
        steps.append(training.step())
    durable = time.perf_counter() - began
    usual = statistics.median(before + [training.step() for _ in range(2)])
    lost = blocked + sum(steps) - usual * len(steps)
    row = torch.tensor([blocked, lost, durable, usual], dtype=torch.float64)
    dist.all_reduce(row, op=dist.ReduceOp.MAX)
    return dict(zip(("blocked s", "lost s", "durable s (whole steps)", "step s"), row.tolist()))


def _all_say(value: bool) -> bool:
    answer = torch.tensor([int(bool(value))])
    dist.all_reduce(answer, op=dist.ReduceOp.MIN)
    return bool(answer.item())


def _rank(rank: int, world: int, port: int, gb: float, rounds: int, root: Path, out: Path) -> None:
    import json

    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
    training = Training(gb)
    engines = {"surefoot": _ours(training, root, rank, world)}
    for name, way in (
        ("DCP save", "save"),
        ("DCP async (default)", "async"),
        ("DCP process, kept stager", "process"),
    ):
        engines[name] = _dcp(way)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, save in list(engines.items()):
            path = root / f"{name.replace(' ', '-')}-{number}"
            row = _measure(save, training, path, number)
            if number:
                rows[name].append(row)
            dist.barrier()
            if rank == 0:
                with contextlib.suppress(OSError):
                    shutil.rmtree(path)
    if rank == 0:
        out.write_text(json.dumps(rows))
    dist.barrier()
    for child in multiprocessing.active_children():  # DCP's writer
        child.terminate()
    sys.stdout.flush()
    os._exit(0)  # gloo's and DCP's own threads now and then abort a normal exit


if __name__ == "__main__":
    _rank(
        int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]),
        int(sys.argv[5]), Path(sys.argv[6]), Path(sys.argv[7]),
    )  # fmt: skip
