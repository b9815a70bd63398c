"""The training script of the storm test: a tiny GPT in float32 with dropout, clipping and AdamW."""

import hashlib
import json
import os

import torch
import torch.nn.functional as F
from torch import nn

from surefoot.train import Session

SAMPLES, BATCH, CONTEXT, WIDTH = 203, 16, 12, 32
TOTAL = int(os.environ.get("RIG_TOTAL", "300"))
STOP = int(os.environ.get("RIG_STOP", TOTAL))


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        random = torch.Generator().manual_seed(3)
        self.text = torch.randint(0, 64, (SAMPLES, CONTEXT + 1), generator=random)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.text[index, :-1], self.text[index, 1:]


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(64, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        places = torch.arange(x.shape[1])
        return self.head(self.body(self.token(x) + self.place(places), mask, is_causal=True))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, TOTAL)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, shuffle=True)
    log = open(os.environ["RIG_LOG"], "a", buffering=1)  # noqa: SIM115
    deterministic = os.environ.get("RIG_DETERMINISTIC", "1") == "1"
    with Session(
        model=model,
        optimizer=optimizer,
        dataloader=loader,
        scheduler=scheduler,
        seed=1,
        deterministic=deterministic,
    ) as session:
        for step, (x, y) in session.steps(total=STOP):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            stepped = session.stepped
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            session.log(loss=loss)
            if stepped:
                log.write(json.dumps({"step": step, "digest": digest(model)}) + "\n")
        bits = digest(model, optimizer)
        log.write(json.dumps({"final": bits, "lr": scheduler.get_last_lr()}) + "\n")


def digest(model, optimizer=None):
    """Return a hash of every bit of the weights, and of the optimizer's state."""
    tensors = list(model.state_dict().values())
    if optimizer is not None:
        for state in optimizer.state_dict()["state"].values():
            tensors += [state[name] for name in sorted(state)]
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    main()
