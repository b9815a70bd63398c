"""Callbacks for trainers that people have; each imports its library on first use only.

`surefoot.train.integrations.huggingface`, `.accelerate`, `.lightning`, `.torchtitan`, `.deepspeed`.
They do not re-form in place: on VMs they run with `engine: torchrun`.
"""
