"""A plain DDP script as people have them: torchrun's environment, its own checkpoints.

It imports nothing of the launcher's. `visits` in the weights counts the steps that led to them.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TOTAL, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
STEP_S = float(sys.argv[3]) if len(sys.argv) > 3 else 0.1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1).double()
        self.visits = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return self.net(x).squeeze(1), self.visits


def newest():
    found = sorted(FOLDER.glob("step-*.pt"), key=lambda p: int(p.stem.split("-")[1]))
    return found[-1] if found else None


def save(step, model, optimizer):
    path = FOLDER / f"step-{step}.pt"
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def wanted(request):
    """Rank 0 looks whether a save is asked for; all get to know."""
    flag = torch.tensor([float(request.exists())])
    dist.broadcast(flag, 0)
    return bool(flag.item())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    plain = Model()
    optimizer = torch.optim.SGD(
        [{"params": plain.net.parameters(), "lr": 0.01}, {"params": [plain.visits], "lr": 1.0}]
    )
    done = 0
    if newest() is not None:
        state = torch.load(newest(), weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    model = DistributedDataParallel(plain)
    request = Path(os.environ["SUREFOOT_SAVE_FILE"])
    print(f"rank {rank} of {world} begins at step {done}", flush=True)
    for step in range(done, TOTAL):
        x = torch.randn(12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))[
            rank::world
        ]
        y, visits = model(x)
        loss = (y - x[:, 0]).pow(2).mean()
        (loss - visits.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(STEP_S)
        if rank == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
        if wanted(request) or step + 1 == TOTAL:
            if rank == 0:
                save(step + 1, plain, optimizer)
                request.unlink(missing_ok=True)
            dist.barrier()
    if rank == 0:
        (FOLDER / "end.json").write_text(
            json.dumps({"step": TOTAL, "visits": plain.visits.item(), "world": world})
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
