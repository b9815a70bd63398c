"""Models on paper: bytes and times that follow from parameters and data sheets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surefoot.core.job import Job, Throughput
from surefoot.core.market import Pool
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.errors import ConfigError
from surefoot.sim import simulate
from surefoot.sim.paper import EXAMPLES, MACHINES, PaperModel, Store

SEVEN = EXAMPLES["7b"]


def test_seven_billion_parameters_with_adam_take_98_gigabytes() -> None:
    assert SEVEN.checkpoint_bytes == pytest.approx(98e9)
    assert replace(SEVEN, precision="fp32").checkpoint_bytes == pytest.approx(84e9)


def test_times_follow_from_bytes_and_bandwidths() -> None:
    # 64 GPUs share 98 GB: 1.53 GB each over a link of 20 GB/s; 8 VMs write 2 GB/s each.
    assert SEVEN.stall_s == pytest.approx(98 / 64 / 20)
    assert SEVEN.persist_s == pytest.approx(98 / 16 + 1)
    assert SEVEN.step_s == pytest.approx(6 * 7e9 * 4e6 / (64 * 312e12 * 0.4))
    slow = replace(SEVEN, store=Store(total_bytes_s=1e9, commit_s=0))
    assert slow.persist_s == pytest.approx(98)


def test_more_vms_make_the_emergency_save_fit_the_notice() -> None:
    few = PaperModel(70e9, 8, MACHINES["p5.48xlarge"], store=Store(vm_bytes_s=0.5e9))
    many = replace(few, vms=64)
    assert not few.fits_notice
    assert many.fits_notice


def test_state_that_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(ConfigError, match="GB a GPU") as caught:
        PaperModel(70e9, 1, MACHINES["p4d.24xlarge"])
    assert "at least 40 GPUs" in caught.value.hint


@pytest.mark.parametrize("field", ["parameters", "vms", "tokens_per_step", "utilisation"])
def test_figures_of_zero_are_refused_by_name(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(SEVEN, **{field: 0})


def test_unknown_optimizer_and_uneven_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match="lion"):
        replace(SEVEN, optimizer="lion")
    with pytest.raises(ConfigError, match="multiple of shard_gpus"):
        replace(SEVEN, shard_gpus=48)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_fit_their_machines_and_simulate(name: str) -> None:
    model = EXAMPLES[name]
    pool = Pool("aws", "us-east-1", "a", model.machine.name)
    hour = 3_600_000
    record = PoolTrace(
        pool,
        (Step(0, model.vms),),
        (Step(0, 20_000_000),),
        (Step(0, 55_000_000),),
        (Reclaim(2 * hour, model.vms // 8, 0),),
    )
    trace = Trace("t", Semantics.SUPPLY, 0, 4 * hour, {pool: record})
    job = Job(
        name,
        model.vms,
        (pool,),
        Throughput(0, model.vms),
        work=model.work(),
        policy="greedy",
        forecaster="gamma_poisson",
    )
    outcome = simulate(job, trace, model=replace(model.costs(), jitter=0.0))
    figures = model.figures()
    assert outcome.counts.silent == model.vms // 8
    assert outcome.goodput.share is not None
    assert outcome.goodput.share > 0.85
    assert figures["gpu_gb"] < 0.7 * model.machine.memory_bytes / 1e9
