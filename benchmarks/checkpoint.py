"""What a save costs training, beside every engine that is installed, in one interleaved run.

Training (GPT-2 shapes, AdamW, one thread) runs in the same process. For each engine in turn: one
step baseline, a save, then steps until it is durable. stall = the caller blocked, in save and in
waiting before the optimizer; lost = stall plus what the steps took longer than the baseline.
Peers that are not installed are named and left out; torch.save and safetensors get an fsync.

    python benchmarks/checkpoint.py [--quick] [--gb 1.5] [--rounds 3] [--busy | --alone |
        --cadence | --ranks 2 | --store URL]
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from _checkpoint_alone import report_alone, report_cadence
from _checkpoint_ranks import report_ranks
from _checkpoint_store import report_store
from _common import Bars, options, table
from surefoot.checkpoint import Checkpointer


@dataclass
class Engine:
    """One way to save. `save` starts it and returns `done()`; `gate` runs before the optimizer."""

    name: str
    save: Callable[[Path, int, dict[str, Any]], Callable[[], bool]]
    load: Callable[[Path, int], Any]
    gate: Callable[[], Any] = contextlib.nullcontext
    fsyncs: bool = True
    close: Callable[[], None] = lambda: None
    rows: list[dict[str, float]] = field(default_factory=list)


class Training:
    """A model of about `gb` of state, and steps that a checkpoint may disturb."""

    def __init__(self, gb: float) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        width = 768
        layers = max(2, round(gb * 1e9 / 12 / (12 * width * width)))
        blocks = [
            torch.nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        ]
        self.model = torch.nn.Sequential(*blocks)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.batch = torch.randn(2, 16, width)
        for _ in range(2):
            self.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optim": self.optimizer.state_dict()}

    def step(self, gate: Callable[[], Any] = contextlib.nullcontext) -> tuple[float, float]:
        """Return (seconds of the step, of which waiting at the gate)."""
        began = time.perf_counter()
        self.model(self.batch).square().mean().backward()
        waiting = time.perf_counter()
        with gate():
            waited = time.perf_counter() - waiting
            self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began, waited


# -- engines ---------------------------------------------------------------------------------------


def ours(training: Training, root: Path) -> Engine:
    checkpointer = Checkpointer(root / "ours", keep=1)
    checkpointer.guard(training.optimizer)

    def save(_: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        handle = checkpointer.save(step, state)

        def done() -> bool:
            return handle.done and handle.wait() is not None

        return done

    return Engine(
        "surefoot",
        save,
        lambda path, step: checkpointer.load(step=step)[1],
        close=checkpointer.close,
    )


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def torch_save(training: Training, root: Path) -> Engine:
    def save(path: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        torch.save(state, path)
        _fsync(path)
        return lambda: True

    return Engine("torch.save", save, lambda path, step: torch.load(path))


def safetensors(training: Training, root: Path) -> Engine | None:
    if importlib.util.find_spec("safetensors") is None:
        return None
    from safetensors.torch import load_file, save_file

    def save(path: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        flat = {f"m.{k}": v.detach() for k, v in state["model"].items()}
        for number, values in state["optim"]["state"].items():
            flat.update({f"o.{number}.{k}": v for k, v in values.items()})
        save_file(flat, path)
        _fsync(path)
        return lambda: True

    return Engine("safetensors", save, lambda path, step: load_file(path))


def _dcp_load(training: Training) -> Callable[[Path, int], Any]:
    import torch.distributed.checkpoint as dcp

    def load(path: Path, step: int) -> Any:
        state = training.state()
        dcp.load(state, checkpoint_id=path, no_dist=True)
        return state

    return load


def dcp_save(training: Training, root: Path) -> Engine:
    import torch.distributed.checkpoint as dcp

    def save(path: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        dcp.save(state, checkpoint_id=path, no_dist=True)
        return lambda: True

    return Engine("DCP save", save, _dcp_load(training))


def dcp_async(training: Training, root: Path) -> Engine:
    import torch.distributed.checkpoint as dcp

    def save(path: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        future = dcp.async_save(state, checkpoint_id=path, no_dist=True)
        return lambda: future.done() and future.result() is not None

    return Engine("DCP async (default)", save, _dcp_load(training))


def dcp_process(training: Training, root: Path) -> Engine:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    _alone()
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=True,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
    )

    def save(path: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        answer = dcp.async_save(
            state,
            checkpoint_id=path,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=stager,
        )
        future = getattr(answer, "upload_completion", answer)
        return lambda: future.done() and (future.result() or True)

    return Engine("DCP process, kept stager", save, _dcp_load(training), close=stager.close)


def _alone() -> None:
    """DCP's process mode wants a process group, be it of one."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def torchsnapshot(training: Training, root: Path) -> Engine | None:
    try:
        from torchsnapshot import Snapshot, StateDict
    except ImportError:
        return None

    def save(path: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        flat = {f"{a}": StateDict(**{"s": b}) for a, b in state.items()}
        pending = Snapshot.async_take(str(path), flat)
        return lambda: pending.done() and pending.wait() is not None

    def load(path: Path, step: int) -> Any:
        flat = {a: StateDict(**{"s": b}) for a, b in training.state().items()}
        Snapshot(str(path)).restore(flat)
        return flat

    return Engine("torchsnapshot async", save, load, fsyncs=False)


def torch_checkpointing(training: Training, root: Path) -> Engine | None:
    try:
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.config import AsyncCheckpointSaverConfig
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
    except ImportError:
        return None
    saver = AsyncCheckpointSaverConfig()
    saver.staging_config.use_pinned_memory = False
    saver.staging_config.use_non_blocking_copy = False
    storage = LocalFileSystemStorageConfig(use_direct_io=False)  # its default fails on ext4
    manager = CheckpointManager.Config(save=saver, storage_config=storage).build()

    def save(path: Path, step: int, state: dict[str, Any]) -> Callable[[], bool]:
        future = manager.save(str(path), state)
        return lambda: future is None or (future.done() and (future.result() or True))

    return Engine(
        "torch_checkpointing",
        save,
        lambda path, step: manager.load(str(path), into=training.state()),
        gate=manager.lock,
        fsyncs=False,
        close=manager.close,
    )


MAKERS = [
    ours, torch_save, safetensors, dcp_save, dcp_async, dcp_process, torchsnapshot,
    torch_checkpointing,
]  # fmt: skip


# -- measuring -------------------------------------------------------------------------------------


def measure(engine: Engine, training: Training, path: Path, step: int) -> dict[str, float]:
    """Return stall, lost and durable seconds of one save."""
    os.sync()
    before = [training.step()[0] for _ in range(2)]
    state = training.state()
    began = time.perf_counter()
    done = engine.save(path, step, state)
    blocked = time.perf_counter() - began
    durable = blocked if done() else 0.0
    waited, steps = 0.0, []
    while not durable or not steps:
        took, at_gate = training.step(engine.gate)
        waited += at_gate
        steps.append(took)
        if not durable and done():
            durable = time.perf_counter() - began
    after = [training.step()[0] for _ in range(2)]
    usual = statistics.median(before + after)
    extra = sum(steps) - usual * len(steps)
    return {
        "blocked": blocked,
        "stall": blocked + waited,
        "lost": blocked + extra,
        "durable": durable,
        "step": usual,
    }


def busy(*, on: bool) -> Callable[[], None]:
    """Keep the second core busy with another process; returns how to stop it."""
    if not on:
        return lambda: None
    import subprocess

    code = "import torch; torch.set_num_threads(1)\na=torch.randn(900,900)\nwhile True: a@a"
    load = subprocess.Popen([sys.executable, "-c", code])

    def stop() -> None:
        load.kill()
        load.wait()

    return stop


def report(bars: Bars, engines: list[Engine], *, is_busy: bool) -> None:
    """Print the table and claim the bars that compare engines."""
    median: dict[str, dict[str, float]] = {}
    lines = []
    for engine in engines:
        keys = engine.rows[0]
        middle = {k: statistics.median(r[k] for r in engine.rows) for k in keys}
        median[engine.name] = middle
        lines.append([engine.name, *(middle[k] for k in keys), "yes" if engine.fsyncs else "NO"])
    print()
    table(
        ["engine", "blocked s", "stall s", "lost s", "durable s", "step s", "load s", "fsync"],
        lines,
    )
    bars.rows["engines"] = {e.name: e.rows for e in engines}
    mine = median["surefoot"]
    peers = [e for e in engines if e.name != "surefoot"]
    best = min(median[e.name]["lost"] for e in peers)
    if is_busy:
        bars.at_most("busy: lost s / best peer's", mine["lost"] / best, 1 / 5)
        return
    bars.at_most("caller blocked in save, s", mine["blocked"], 0.005)
    if "DCP async (default)" in median:
        dcp = median["DCP async (default)"]["lost"]
        bars.at_most("quiet: lost s / DCP async default's", mine["lost"] / dcp, 1 / 10)
    best = min(median[e.name]["lost"] for e in peers if e.fsyncs)
    bars.at_most("quiet: lost s / best peer that fsyncs", mine["lost"] / best, 1 / 2)


def main() -> int:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=1.5, help="state size, GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="keep the second core busy")
    parser.add_argument("--cadence", action="store_true", help="only: a save every 20 s, and idle")
    parser.add_argument("--only", default="", help="engines whose names begin so, comma-separated")
    parser.add_argument("--ranks", type=int, default=1, help="2: only FSDP2 over two processes")
    parser.add_argument("--alone", action="store_true", help="only: ours against raw I/O")
    parser.add_argument("--store", default="", help="only compare with raw obstore on this URL")
    arguments = parser.parse_args()
    gb, rounds = (0.4, 2) if arguments.quick else (arguments.gb, arguments.rounds)
    if arguments.store:
        bars = Bars("checkpoint-store")
        report_store(bars, arguments.store, gb, rounds)
        return bars.finish(arguments.json)
    root = Path(tempfile.mkdtemp(prefix="surefoot-bench-"))
    stop = busy(on=arguments.busy)
    bars = Bars("checkpoint")
    try:
        if arguments.ranks > 1:
            report_ranks(bars, root, arguments.ranks, gb, rounds)
            return bars.finish(arguments.json)
        training = Training(gb)
        if arguments.cadence:
            report_cadence(bars, training, root, 2 * rounds, 20.0)
            return bars.finish(arguments.json)
        if arguments.alone:
            report_alone(bars, training, root, rounds)
            return bars.finish(arguments.json)
        engines = [engine for make in MAKERS if (engine := make(training, root)) is not None]
        missing = len(MAKERS) - len(engines)
        only = tuple(arguments.only.split(","))
        engines = [engine for engine in engines if engine.name.startswith(only)]
        print(f"{gb} GB of state, {rounds} rounds; {missing} peers are not installed")
        run_rounds(engines, training, root, rounds)
        report(bars, engines, is_busy=arguments.busy)
        if not arguments.busy:
            report_alone(bars, training, root, rounds)
    finally:
        stop()
        shutil.rmtree(root, ignore_errors=True)
    return bars.finish(arguments.json)


def run_rounds(engines: list[Engine], training: Training, root: Path, rounds: int) -> None:
    """Measure each engine once a round, round 0 for warming up; a peer that fails drops out."""
    for number in range(rounds + 1):
        for engine in list(engines):
            path = root / f"{engine.name.replace(' ', '-')}-{number}"
            try:
                row = measure(engine, training, path, number)
                began = time.perf_counter()
                engine.load(path, number)
                row["load"] = time.perf_counter() - began
            except Exception as error:
                if engine.name == "surefoot":
                    raise
                print(f"{engine.name} failed and is left out: {error!r:.300}")
                engines.remove(engine)
                continue
            if number:
                engine.rows.append(row)
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True) if path.is_file() else None
    for engine in engines:
        engine.close()


if __name__ == "__main__":
    sys.exit(main())
