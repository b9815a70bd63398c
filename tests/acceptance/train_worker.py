"""The training script of the acceptance tests: a float64 model that counts its own visits.

`visits[i]` grows by exactly 1 whenever sample i counts in an optimizer step, so that the weights
themselves tell whether a sample was repeated or skipped.
"""

import json
import os
import time
from pathlib import Path

import torch
from torch import nn

from surefoot.train import Session

SAMPLES, BATCH = 101, 12
TOTAL = int(os.environ.get("RIG_TOTAL", "400"))


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(
            SAMPLES, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
        )

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, self.x[index]


class Stream(torch.utils.data.IterableDataset):
    """The same rows from front to back, and a place in them."""

    def __init__(self):
        self.rows, self.at = Rows(), 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        while self.at < SAMPLES:
            self.at += 1
            yield self.rows[self.at - 1]
        self.at = 0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        self.visits = nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))


def hang_once(step):
    """Hang in the step that RIG_HANG names, in one VM, once."""
    vm, _, at = os.environ.get("RIG_HANG", "").partition(":")
    marker = Path(os.environ.get("SUREFOOT_VM_DIR", "")) / "hung"
    if at == str(step) and vm == os.environ["SUREFOOT_TOKEN"] and not marker.exists():
        marker.touch()
        time.sleep(1000)


def main():
    torch.manual_seed(int.from_bytes(os.urandom(4), "big"))  # built apart: must be made equal
    torch.set_num_threads(1)
    if os.environ.get("RIG_SAME_START"):
        torch.manual_seed(5)
    model = Model()
    optimizer = torch.optim.SGD(
        [
            {"params": model.net.parameters(), "lr": 0.05, "momentum": 0.9},
            {"params": [model.visits], "lr": 1.0},
        ],
        lr=0.05,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda s: 1 / (1 + s / 100), lambda s: 1.0]
    )
    streamed = bool(os.environ.get("RIG_STREAM"))
    loader = torch.utils.data.DataLoader(
        Stream() if streamed else Rows(), batch_size=BATCH, shuffle=None if streamed else True
    )
    micro_batch = int(os.environ.get("RIG_MICRO") or 0) or None
    log = open(os.environ["RIG_LOG"], "a", buffering=1)  # noqa: SIM115
    with Session(
        model=model, optimizer=optimizer, dataloader=loader, scheduler=scheduler, seed=1,
        micro_batch=micro_batch,
    ) as session:  # fmt: skip
        for step, (ids, x) in session.steps(total=TOTAL):
            hang_once(step)
            loss = (model.net(x).squeeze(1) - x[:, 0] * x[:, 1]).pow(2).mean()
            count = min(BATCH, SAMPLES - BATCH * (step % -(-SAMPLES // BATCH)))
            (loss - count * model.visits[ids].mean()).backward()
            stepped = session.stepped
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            session.log(loss=loss)
            row = {
                "t": time.monotonic(),
                "pid": os.getpid(),
                "step": step,
                "ids": ids.tolist(),
                "loss": loss.item(),
                "stepped": stepped,
                "rank": session.rank,
                "world": session.world,
            }
            log.write(json.dumps(row) + "\n")
        state = {name: value.tolist() for name, value in model.state_dict().items()}
        state["lr"] = [group["lr"] for group in optimizer.param_groups]
        log.write(json.dumps({"final": state, "rank": session.rank, "pid": os.getpid()}) + "\n")


if __name__ == "__main__":
    main()
