"""Accelerate: `accelerate launch accelerate_loop.py CHECKPOINTS [STEPS]`; run it again to go on."""

import sys

import torch
from accelerate import Accelerator
from rows import Rows, tiny_llama

from surefoot.train.integrations.accelerate import SurefootLoop

accelerator, model = Accelerator(), tiny_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
total = int(sys.argv[2]) if len(sys.argv) > 2 else 100
with SurefootLoop(accelerator, sys.argv[1], interval_s=20) as loop:
    for step, batch in loop.steps(loader, total=total):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step} loss {loss.item():.4f}")
    print("done at step", loop.step)
