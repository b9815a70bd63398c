"""Large models on paper: from parameters and hardware to checkpoint bytes, times and step time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.core.job import Work
from surefoot.errors import ConfigError
from surefoot.sim.model import CostModel

STATE_BYTES: Mapping[tuple[str, str], float] = {
    ("adam", "mixed"): 14,  # bf16 weights, fp32 weights, two fp32 moments
    ("adam", "fp32"): 12,
    ("adam", "bf16"): 6,
    ("adam8bit", "mixed"): 8,
    ("adam8bit", "bf16"): 4,
    ("sgd", "mixed"): 10,  # one momentum
    ("sgd", "fp32"): 8,
    ("adafactor", "mixed"): 6.1,
}
"""Bytes a parameter takes in a checkpoint, by (optimizer, precision); gradients are not saved."""

GRADIENT_BYTES: Mapping[str, float] = {"mixed": 2, "bf16": 2, "fp32": 4}

MEMORY_FOR_STATE = 0.7
"""Share of a GPU's memory for weights, optimizer and gradients; activations need the rest."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One VM: `gpus`, each with memory, peak dense bf16 speed and a link to the host."""

    name: str
    gpus: int
    memory_bytes: float
    flops: float
    host_link_bytes_s: float
    nic_bytes_s: float


MACHINES: Mapping[str, Machine] = {
    m.name: m
    for m in (
        Machine("p4d.24xlarge", 8, 40e9, 312e12, 20e9, 50e9),
        Machine("a2-ultragpu-8g", 8, 80e9, 312e12, 20e9, 12.5e9),
        Machine("p5.48xlarge", 8, 80e9, 989e12, 50e9, 400e9),
        Machine("a3-highgpu-8g", 8, 80e9, 989e12, 50e9, 125e9),
        Machine("a3-highgpu-1g", 1, 80e9, 989e12, 50e9, 6.25e9),
    )
}
"""Data sheets, rounded down: A100 312 and H100 989 TFLOP/s dense bf16; links one way."""


@dataclass(frozen=True, slots=True)
class Store:
    """Where checkpoints go: what one VM reaches, what all reach together, time per commit."""

    vm_bytes_s: float = 2e9
    total_bytes_s: float = 200e9
    commit_s: float = 1.0


@dataclass(frozen=True, slots=True)
class PaperModel:
    """A training job described by figures. Raises ConfigError, naming the field, if impossible.

    `shard_gpus`: GPUs that together hold one copy of the state (FSDP, TP and PP alike); 0 is
    all of them. More GPUs than that hold further copies (HSDP). `utilisation` is the share of
    the peak speed that training reaches (MFU).
    """

    parameters: float
    vms: int
    machine: Machine
    optimizer: str = "adam"
    precision: str = "mixed"
    shard_gpus: int = 0
    tokens_per_step: float = 4e6
    utilisation: float = 0.4
    store: Store = Store()
    notice_s: float = 120.0
    detect_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("parameters", "vms", "tokens_per_step", "utilisation"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"paper: {name} must be over 0, got {value!r}")
        if (self.optimizer, self.precision) not in STATE_BYTES:
            known = ", ".join(f"{o}/{p}" for o, p in STATE_BYTES)
            raise ConfigError(
                f"paper: no figures for {self.optimizer}/{self.precision}", hint=f"known: {known}"
            )
        if self.gpus % self.shards:
            raise ConfigError(
                f"paper: {self.gpus} GPUs are not a multiple of shard_gpus {self.shards}"
            )
        if self.gpu_bytes > MEMORY_FOR_STATE * self.machine.memory_bytes:
            held = MEMORY_FOR_STATE * self.machine.memory_bytes
            needed = math.ceil(self.gpu_bytes * self.shards / held)
            raise ConfigError(
                f"paper: the state takes {self.gpu_bytes / 1e9:.0f} GB a GPU, "
                f"{held / 1e9:.0f} GB are there",
                hint=f"shard it over at least {needed} GPUs",
            )

    @property
    def gpus(self) -> int:
        """GPUs of the whole fleet."""
        return self.vms * self.machine.gpus

    @property
    def shards(self) -> int:
        """GPUs that hold one copy of the state."""
        return self.shard_gpus or self.gpus

    @property
    def copies(self) -> int:
        """Whole copies of the state in the fleet."""
        return self.gpus // self.shards

    @property
    def gpu_bytes(self) -> float:
        """Bytes of state and gradients on each GPU."""
        each = STATE_BYTES[self.optimizer, self.precision] + GRADIENT_BYTES[self.precision]
        return self.parameters * each / self.shards

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes of one checkpoint."""
        return self.parameters * STATE_BYTES[self.optimizer, self.precision]

    @property
    def stall_s(self) -> float:
        """Time training stands still: every GPU copies its part of one copy to the host."""
        return self.checkpoint_bytes / self.gpus / self.machine.host_link_bytes_s

    @property
    def persist_s(self) -> float:
        """Time until the checkpoint is durable: all VMs write, within what the store takes."""
        rate = min(self.vms * self._vm_rate, self.store.total_bytes_s)
        return self.checkpoint_bytes / rate + self.store.commit_s

    @property
    def restore_s(self) -> float:
        """Time to load: one copy from the store, further copies from peers over the network."""
        holders = max(1, self.vms // self.copies)
        rate = min(holders * self._vm_rate, self.store.total_bytes_s)
        spread = self.checkpoint_bytes / holders / self.machine.nic_bytes_s
        return self.checkpoint_bytes / rate + (spread if self.copies > 1 else 0.0) + self.stall_s

    @property
    def step_s(self) -> float:
        """Time of one step: 6 FLOP a parameter and token, at the given utilisation."""
        speed = self.gpus * self.machine.flops * self.utilisation
        return 6 * self.parameters * self.tokens_per_step / speed

    @property
    def emergency_s(self) -> float:
        """Time from a notice to a durable checkpoint: notice seen, step finished, save."""
        return self.detect_s + self.step_s + self.stall_s + self.persist_s

    @property
    def fits_notice(self) -> bool:
        """Whether an emergency save is durable before the end of the notice."""
        return self.emergency_s <= self.notice_s

    @property
    def _vm_rate(self) -> float:
        return min(self.store.vm_bytes_s, self.machine.nic_bytes_s)

    def costs(self, *, boot_s: float = 240.0, reform_s: float = 30.0) -> CostModel:
        """Return the costs for the simulator."""
        return CostModel(
            boot_ms=round(boot_s * 1000),
            reform_ms=round(reform_s * 1000),
            detect_ms=round(self.detect_s * 1000),
            stall_ms=max(1, round(self.stall_s * 1000)),
            persist_ms=round(self.persist_s * 1000),
            restore_ms=round(self.restore_s * 1000),
            size_bytes=round(self.checkpoint_bytes),
            replicated=self.copies > 1,
        )

    def work(self, tokens: float | None = None) -> Work:
        """Return the job's work: `tokens` in all, open-ended without."""
        steps = None if tokens is None else math.ceil(tokens / self.tokens_per_step)
        return Work(total_steps=steps, step_ms=max(1, round(self.step_s * 1000)))

    def figures(self) -> dict[str, Any]:
        """Return what follows from the description, for people."""
        return {
            "gpus": self.gpus,
            "copies": self.copies,
            "checkpoint_gb": self.checkpoint_bytes / 1e9,
            "gpu_gb": self.gpu_bytes / 1e9,
            "step_s": self.step_s,
            "stall_s": self.stall_s,
            "persist_s": self.persist_s,
            "restore_s": self.restore_s,
            "emergency_s": self.emergency_s,
            "fits_notice": self.fits_notice,
        }


EXAMPLES: Mapping[str, PaperModel] = {
    "7b": PaperModel(7e9, 8, MACHINES["p4d.24xlarge"], shard_gpus=32),
    "70b": PaperModel(70e9, 64, MACHINES["p5.48xlarge"], shard_gpus=128),
    "405b": PaperModel(405e9, 1000, MACHINES["p5.48xlarge"], shard_gpus=800, tokens_per_step=16e6),
}
"""Models of three sizes on fleets of up to 1,000 VMs."""
