"""A plain PyTorch loop; the four marked lines are all that Surefoot adds to it."""

import os
import sys

import torch
from torch import nn

from surefoot.train import Session  # added


class Digits(torch.utils.data.Dataset):
    """Points in a plane, and whether they lie in the unit circle."""

    def __init__(self, count=512):
        self.x = torch.rand(count, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
        self.y = (self.x.norm(dim=1) < 0.8).float()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def main(total):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = torch.utils.data.DataLoader(Digits(), batch_size=32, shuffle=True)
    criterion = nn.BCEWithLogitsLoss()
    loss = torch.zeros(())
    with Session(model=model, optimizer=optimizer, dataloader=loader) as session:  # added
        for step, (x, y) in session.steps(total=total):  # added, for `in enumerate(loader)`
            optimizer.zero_grad()
            loss = criterion(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)  # added; may be left out
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
    print(f"done: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else int(os.environ.get("STEPS", "200")))
