"""Hugging Face Trainer: `python huggingface.py CHECKPOINTS [STEPS]`; run it again to go on."""

import sys

from rows import Rows, tiny_llama
from transformers import Trainer, TrainingArguments

from surefoot.train.integrations.huggingface import SurefootCallback

surefoot = SurefootCallback(sys.argv[1], interval_s=20)
arguments = TrainingArguments(
    output_dir="out",
    max_steps=int(sys.argv[2]) if len(sys.argv) > 2 else 100,
    per_device_train_batch_size=8,
    save_strategy="no",
    report_to=[],
    logging_steps=10,
    learning_rate=3e-3,
)
trainer = Trainer(tiny_llama(), arguments, train_dataset=Rows(), callbacks=[surefoot])
trainer.train(resume_from_checkpoint=surefoot.newest())
print("done at step", trainer.state.global_step)
