"""The training script of the elastic benchmark, for Session, torchrun and torchft: one tiny model.

`visits[i]` grows by exactly 1 whenever sample i counts in an optimizer step. BATCH divides by
every world up to 4, so that the peers' plain means are exact too.
Call it with: ours | torchrun | torchft
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

SAMPLES, BATCH = 240, 12
STEP_S = float(os.environ.get("ELASTIC_STEP_S", "0.05"))
BALLAST_MB = int(os.environ.get("ELASTIC_MB", "16"))
FOLDER = Path(os.environ.get("ELASTIC_FOLDER", "."))
NAME = os.environ.get("SUREFOOT_TOKEN", "vm")


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self.x[index]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.visits = nn.Parameter(torch.zeros(SAMPLES))
        self.register_buffer("ballast", torch.zeros(BALLAST_MB << 18))


def build() -> tuple[Model, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    net = {"params": model.net.parameters(), "lr": 0.05, "momentum": 0.9}
    return model, torch.optim.SGD([net, {"params": [model.visits], "lr": 1.0}], lr=0.05)


def loss_of(model: Model, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    loss = (model.net(x).squeeze(1) - x[:, 0] * x[:, 1]).pow(2).mean()
    return loss - BATCH * model.visits[ids].mean()


class Log:
    """One line a step, with the machine's monotonic time, which all VMs here share."""

    def __init__(self) -> None:
        self._out = (FOLDER / f"{NAME}.jsonl").open("a", buffering=1)

    def step(self, step: int, rank: int, world: int, *, stepped: bool = True) -> None:
        row = {"t": time.monotonic(), "vm": NAME, "step": step, "rank": rank, "world": world}
        self._out.write(json.dumps({**row, "stepped": stepped, "pid": os.getpid()}) + "\n")


def ours() -> None:
    from surefoot.train import Session

    model, optimizer = build()
    loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, shuffle=True)
    log = Log()
    total = int(os.environ.get("ELASTIC_TOTAL", "1000000"))
    with Session(model=model, optimizer=optimizer, dataloader=loader, seed=1) as session:
        for step, (ids, x) in session.steps(total=total):
            loss_of(model, ids, x).backward()
            stepped = session.stepped
            optimizer.step()
            optimizer.zero_grad()
            log.step(step, session.rank, session.world, stepped=stepped)
            if stepped:
                time.sleep(STEP_S)


def part_of(rows: Rows, step: int, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    at = step * BATCH % SAMPLES
    size = BATCH // world
    ids = torch.arange(at + rank * size, at + (rank + 1) * size)
    return ids, rows.x[ids]


def torchrun() -> None:
    import torch.distributed as dist

    limit_s = float(os.environ.get("ELASTIC_PG_TIMEOUT", "1800"))
    dist.init_process_group("gloo", timeout=timedelta(seconds=limit_s))
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = build()
    rows, log, file, step = Rows(), Log(), FOLDER / "torchrun.pt", 0
    if file.exists():
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = int(saved["step"])
    replica = nn.parallel.DistributedDataParallel(Net(model))
    while True:
        ids, x = part_of(rows, step, rank, world)
        replica(ids, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step(step, rank, world)
        step += 1
        if rank == 0 and step % 20 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step}, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
        time.sleep(STEP_S)


def torchft() -> None:
    from torch.distributed import TCPStore
    from torchft import Manager, Optimizer, ProcessGroupGloo

    model, optimizer = build()
    address = os.environ["SUREFOOT_ADDRESS"]
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=3)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=3),
        quorum_timeout=timedelta(seconds=20),
        connect_timeout=timedelta(seconds=5),
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=store.port,
        replica_id=NAME,
        hostname=address,
    )
    params = list(model.parameters())
    fault_tolerant = Optimizer(manager, optimizer)
    rows, log = Rows(), Log()
    while True:
        step = manager.current_step()
        fault_tolerant.zero_grad()
        world = max(1, manager.num_participants())
        rank = manager.participating_rank() or 0
        ids, x = part_of(rows, step, rank, world if BATCH % world == 0 else 1)
        loss_of(model, ids, x).backward()
        # its DistributedDataParallel fails with torch 2.13 (no Future._fut): average by hand
        for work in [manager.allreduce(p.grad) for p in params if p.grad is not None]:
            work.wait()
        fault_tolerant.step()
        log.step(step, rank, world, stepped=manager.current_step() > step)
        time.sleep(STEP_S)


class Net(nn.Module):
    """The loss as a forward pass, for wrappers that reduce what forward touched."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return loss_of(self.model, ids, x)


if __name__ == "__main__":
    {"ours": ours, "torchrun": torchrun, "torchft": torchft}[sys.argv[1]]()
