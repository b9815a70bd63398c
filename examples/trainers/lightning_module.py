"""Lightning: `python lightning_module.py CHECKPOINTS [STEPS]`; run it again to go on."""

import sys

import lightning
import torch
from rows import Rows, tiny_llama
from torchdata.stateful_dataloader import StatefulDataLoader

from surefoot.train.integrations.lightning import SurefootLightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = tiny_llama()

    def training_step(self, batch, number):
        return self.net(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


surefoot = SurefootLightning(sys.argv[1], interval_s=20)
trainer = lightning.Trainer(
    max_steps=int(sys.argv[2]) if len(sys.argv) > 2 else 100,
    callbacks=[surefoot],
    plugins=[surefoot.plugin],
    enable_checkpointing=False,
    logger=False,
)
loader = StatefulDataLoader(Rows(), batch_size=8, shuffle=True)
trainer.fit(Module(), loader, ckpt_path=surefoot.newest())
print("done at step", trainer.global_step)
