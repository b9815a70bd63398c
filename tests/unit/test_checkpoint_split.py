"""Several ranks make one checkpoint: disjoint parts, one commit, and one clear error for all."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.checkpoint import Checkpointer
from surefoot.checkpoint.catalog import Catalog
from surefoot.checkpoint.shards import shards_of
from surefoot.checkpoint.storage import LocalStorage
from surefoot.errors import CheckpointError, FencedError, SurefootError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def state_of(step: int) -> dict[str, Any]:
    torch.manual_seed(step)
    return {
        "big": torch.randn(1001, 300), "small": torch.randn(7), "scalar": torch.tensor(step),
        "odd": torch.randn(3, 5, 2).transpose(0, 2), "empty": torch.empty(0, 4), "step": step,
    }  # fmt: skip


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for k in b)


def on_all(world: int, act: Callable[[int], Any]) -> list[Any]:
    """Run `act(rank)` in one thread per rank; returns results or exceptions by rank."""
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = act(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def open_rank(path: Path, rank: int, world: int, **more: Any) -> Checkpointer:
    return Checkpointer(path, rank=rank, world=world, split=True, generation=1, **more)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_byte_is_written_once(world: int) -> None:
    leaves = {k: v for k, v in state_of(1).items() if isinstance(v, torch.Tensor)}
    found = [shards_of(leaves, rank, world) for rank in range(world)]
    for name, tensor in leaves.items():
        parts = [s for shards in found for s in shards if s.name == name]
        assert sum(s.view.numel() for s in parts) == tensor.numel()
        rows = [s.start[0] for s in parts if s.start]
        assert rows == sorted(set(rows))
    sizes = [sum(s.view.nbytes for s in shards) for shards in found]
    assert max(sizes) - min(sizes) <= 2 * 1200 + 64


@pytest.mark.parametrize(("world", "writer"), [(2, "thread"), (3, "process"), (4, "thread")])
def test_ranks_write_disjoint_parts_and_any_world_loads_them(
    tmp_path: Path, world: int, writer: str
) -> None:
    ranks = [open_rank(tmp_path, rank, world, writer=writer) for rank in range(world)]
    for step in (1, 2):
        handles = [r.save(step, state_of(step), metadata={"s": step}) for r in ranks]
        saved = [handle.wait(30) for handle in handles]
        assert len({s.folder for s in saved if s is not None}) == 1
    files = sorted(p.name for p in max(tmp_path.glob("step-*")).glob("*.bin"))
    assert files == [f"rank-{rank:05d}.bin" for rank in range(world)]
    for rank in ranks:
        rank.close()
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        step, state, metadata = checkpointer.load()
        assert step == 2 and metadata == {"s": 2} and same(state, state_of(2))
        into = {"big": torch.zeros(1001, 300)}
        checkpointer.load(into)
        assert torch.equal(into["big"], state_of(2)["big"])


def test_the_commit_waits_for_the_slowest_rank(tmp_path: Path) -> None:
    """CASES.md 55: not done before all are; a missing rank makes it never eligible."""
    first, second = (open_rank(tmp_path, rank, 2) for rank in range(2))
    handle = first.save(1, state_of(1))
    time.sleep(0.4)
    assert not handle.done and first.latest() is None
    second.save(1, state_of(1)).wait(20)
    handle.wait(20)
    assert first.latest() == 1


def test_a_rank_that_never_comes_ends_in_one_error(tmp_path: Path) -> None:
    first = open_rank(tmp_path, 0, 2, part_timeout_s=0.5)
    with pytest.raises(CheckpointError, match=r"missing: ranks \[1\]"):
        first.save(1, state_of(1)).wait(20)
    assert first.latest() is None and not list(tmp_path.glob("step-*"))


def test_an_error_on_one_rank_reaches_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES.md 44 and 51: void on all ranks, the one before untouched, the next one works."""
    ranks = [open_rank(tmp_path, rank, 3, writer="thread") for rank in range(3)]
    on_all(3, lambda r: ranks[r].save(1, state_of(1)).wait(20))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(ranks[2]._persister.storage, "write_data", full)
    errors = on_all(3, lambda r: ranks[r].save(2, state_of(2)).wait(20))
    assert all(isinstance(error, SurefootError) for error in errors), errors
    assert "rank 2" in str(errors[0]) and "rank 2" in str(errors[1])
    assert ranks[0].steps() == [1]  # a rank that was late may have left its part of the other
    monkeypatch.undo()
    handles = [ranks[r].save(2, state_of(2)) for r in range(3)]
    on_all(3, lambda r: handles[r].wait(60))
    assert ranks[1].steps() == [2, 1] and handles[0].tidied.wait(60)
    assert len(list(tmp_path.glob("step-*"))) == 2


def test_a_new_generation_ends_the_waiting_of_the_old_one(tmp_path: Path) -> None:
    first, second = (open_rank(tmp_path, rank, 3) for rank in range(2))  # the third is lost
    handles = [first.save(1, state_of(1)), second.save(1, state_of(1))]
    began = time.monotonic()
    on_all(2, lambda r: (first, second)[r].advance(2, rank=r, world=2))
    assert time.monotonic() - began < 15
    for handle in handles:
        with pytest.raises(SurefootError):
            handle.wait(1)
    results = on_all(2, lambda r: (first, second)[r].save(1, state_of(1)).wait(20))
    assert results[0] == results[1] or results[0].folder == results[1].folder
    assert first.steps() == [1]


def test_ranks_of_a_fenced_generation_stop(tmp_path: Path) -> None:
    old = open_rank(tmp_path, 1, 2)
    Checkpointer(tmp_path, generation=5)
    with pytest.raises(FencedError):
        old.save(1, state_of(1)).wait(20)


_DTENSOR = """
import sys, torch, torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
from surefoot.checkpoint import Checkpointer
rank, world, port, path, act = (int(x) if x.isdigit() else x for x in sys.argv[1:])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
mesh = DeviceMesh("cpu", list(range(world)))
full = {"a": torch.arange(70.0).reshape(10, 7), "b": torch.arange(9.0), "c": torch.arange(5)}
made = {"a": distribute_tensor(full["a"], mesh, [Shard(0)]), "c": full["c"],
        "b": distribute_tensor(full["b"], mesh, [Replicate()])}
with Checkpointer(path, rank=rank, world=world, split=True, read_only=act == "load") as c:
    if act == "save":
        c.save(3, made, blocking=True)
    else:
        into = {k: torch.zeros_like(v) for k, v in made.items()}
        into["a"] = distribute_tensor(torch.zeros(10, 7), mesh, [Shard(1)])
        assert c.load(into)[0] == 3
        for name in full:
            got = into[name].full_tensor() if name != "c" else into[name]
            assert torch.equal(got, full[name]), name
dist.barrier()
import os; os._exit(0)  # gloo's own threads now and then abort a normal exit
"""


_FSDP = """
import sys, numpy, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh
from surefoot.checkpoint import Checkpointer
rank, world, port, path, act = (int(x) if x.isdigit() else x for x in sys.argv[1:])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
mesh = DeviceMesh("cpu", list(range(world)))

def build(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(33, 17), torch.nn.BatchNorm1d(17), torch.nn.Linear(17, 5)]
    model = torch.nn.Sequential(*layers)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        model(torch.randn(8, 33)).square().mean().backward()
        optimizer.step(), optimizer.zero_grad(), schedule.step()
    return model, optimizer, schedule

def state(model, optimizer, schedule):
    return {"model": model.state_dict(), "optim": optimizer.state_dict(), "schedule": schedule}

def flat(tree):
    from surefoot.checkpoint.tree import flatten
    return {k: getattr(v, "_local_tensor", v).clone() for k, v in flatten(tree)[1].items()}

first = build(1)
with Checkpointer(path, rank=rank, world=world, split=True) as c:
    c.guard(first[1])
    before = flat(state(*first))
    handle = c.save(3, state(*first), metadata={"by": "fsdp"})
    first[0](torch.randn(8, 33)).square().mean().backward()
    first[1].step()  # the guard lets it write only after the copy
    handle.wait(60)
    second = state(*build(2))
    step, loaded, metadata = c.load(second)
    after = flat(second)
    assert step == 3 and metadata == {"by": "fsdp"} and after.keys() == before.keys()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    assert loaded["schedule"]["last_epoch"] == 3
    whole = second["model"]["0.weight"].full_tensor()
    if rank == 0:
        numpy.save(path + "/whole.npy", whole.numpy())
dist.barrier()
import os; os._exit(0)  # gloo's own threads now and then abort a normal exit
"""


def _run_ranks(world: int, path: Path, act: str, script: str = _DTENSOR) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-c", script]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([*command, str(rank), str(world), port, str(path), act], env=variables)
        for rank in range(world)
    ]
    assert [process.wait(100) for process in running] == [0] * world


def test_dtensors_are_saved_by_two_ranks_and_loaded_by_three_on_another_axis(
    tmp_path: Path,
) -> None:
    _run_ranks(2, tmp_path, "save")
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        state = checkpointer.load()[1]
    assert torch.equal(state["a"], torch.arange(70.0).reshape(10, 7))
    _run_ranks(3, tmp_path, "load")


def test_fsdp2_and_its_optimizer_are_saved_beside_training_and_load_without_it(
    tmp_path: Path,
) -> None:
    _run_ranks(2, tmp_path, "save", _FSDP)
    torch.manual_seed(5)
    layers = [torch.nn.Linear(33, 17), torch.nn.BatchNorm1d(17), torch.nn.Linear(17, 5)]
    plain = torch.nn.Sequential(*layers)
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        state = checkpointer.load({"model": plain.state_dict()})[1]
    assert torch.equal(plain[0].weight, torch.from_numpy(np.load(tmp_path / "whole.npy")))
    assert state["optim"]["state"][0]["exp_avg"].shape == (17, 33)


class _Counted(LocalStorage):
    """Local files that count the bytes read from them."""

    n_bytes = 0

    def source(self, key: str) -> Any:
        source, count = super().source(key), self

        class Counting:
            def read(self, offset: int, into: memoryview) -> int:
                count.n_bytes += len(into)
                return source.read(offset, into)

            def close(self) -> None:
                source.close()

        return Counting()


def test_a_rank_reads_the_chunks_of_its_own_part_alone(tmp_path: Path) -> None:
    """Every placement of two dimensions over four ranks, as each of them sees it."""
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    whole = torch.arange(3_000_000, dtype=torch.float32).reshape(1500, 2000)
    with Checkpointer(tmp_path) as checkpointer:
        n_bytes = checkpointer.save(1, {"w": whole}, blocking=True).saved.n_bytes
    for rank in (0, 2, 1, 3):  # one process that joins again and again under another rank
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
            for placements in itertools.product((Shard(0), Shard(1), Replicate()), repeat=2):
                part = _part(whole, mesh.get_coordinate(), placements)
                into = DTensor.from_local(
                    torch.zeros_like(part), mesh, placements, run_check=False,
                    shape=whole.shape, stride=whole.stride(),
                )  # fmt: skip
                storage = _Counted(tmp_path)
                Catalog(storage).load({"w": into})
                assert torch.equal(into._local_tensor, part), (rank, placements)
                rows = part.shape[0] / whole.shape[0]
                assert storage.n_bytes <= rows * n_bytes + 2 * (4 << 20)
        finally:
            dist.destroy_process_group()


def _part(whole: torch.Tensor, coordinate: Any, placements: Any) -> torch.Tensor:
    for at, placement in zip(coordinate, placements):
        if placement.is_shard():
            whole = whole.chunk(2, placement.dim)[at]
    return whole.contiguous()
