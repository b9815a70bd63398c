"""A byte-level GPT that learns to write Python, from the source of the standard library.

Plain PyTorch; the lines marked `surefoot` are all that preemptible VMs ask for. Run it alone with
`python train.py`, or on spot VMs with `surefoot run job.yaml`.
"""

import os
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from surefoot.train import Session  # surefoot

STEPS = int(os.environ.get("STEPS", "300"))
BATCH = int(os.environ.get("BATCH", "16"))  # of all VMs together, however many there are
CONTEXT, WIDTH, HEADS, LAYERS = 64, 224, 4, 4
MAX_BYTES = 8_000_000


class Text(torch.utils.data.Dataset):
    """Windows of CONTEXT + 1 bytes over files of the standard library; every 10th is held out."""

    def __init__(self, held_out):
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        chosen = [f for i, f in enumerate(files) if (i % 10 == 9) == held_out]
        raw = bytearray(b"".join(f.read_bytes() for f in chosen)[:MAX_BYTES])
        self.bytes = torch.frombuffer(raw, dtype=torch.uint8)

    def __len__(self):
        return (len(self.bytes) - 1) // CONTEXT

    def __getitem__(self, index):
        window = self.bytes[index * CONTEXT : (index + 1) * CONTEXT + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        batch, time, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, time, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.token(x) + self.place(places))))


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def validate(model, held_out):
    """Mean loss over a fixed, spread-out sample of the held-out files."""
    picks = torch.linspace(0, len(held_out) - 1, 64).long().tolist()
    x, y = (torch.stack(part) for part in zip(*(held_out[i] for i in picks)))
    return loss_of(model, x, y).item()


def main():
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, max(2, STEPS), pct_start=0.1)
    held_out = Text(held_out=True)
    loader = torch.utils.data.DataLoader(Text(held_out=False), batch_size=BATCH, shuffle=True)

    with Session(  # surefoot
        model=model, optimizer=optimizer, dataloader=loader, scheduler=scheduler
    ) as session:
        for step, (x, y) in session.steps(total=STEPS):  # surefoot
            if session.is_main and step % 100 == 0:
                session.log(val_loss=validate(model, held_out))  # surefoot
            loss = loss_of(model, x, y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            session.log(loss=loss, tokens=x.numel())  # surefoot
            if session.is_main and step == STEPS - 1:
                session.log(val_loss=validate(model, held_out))  # surefoot


if __name__ == "__main__":
    main()
