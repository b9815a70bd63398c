"""A Llama small enough for any machine, randomly initialised, and rows for it to learn."""

import torch


class Rows(torch.utils.data.Dataset):
    """Counting modulo 64, from a different start in each row."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = (torch.arange(32) + index) % 64
        return {"input_ids": ids, "labels": ids.clone()}


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    return LlamaForCausalLM(config)
