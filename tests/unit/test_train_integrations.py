"""Trainers that people have, on a tiny Llama: a resumed run is bitwise the unbroken one.

CASES 72, 73, 74, 76, 94: each id once, no batch skipped in later epochs, schedule and moments go
on, and the same line starts and restarts a run.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from surefoot.errors import CheckpointError, ConfigError
from surefoot.train.integrations import rng
from surefoot.train.integrations.keeper import Keeper, library

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/trainers"

STEPS, STOPS = 24, (7, 10, 13)
"""Ten batches make an epoch: stops within the first, between two, and within the second."""


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 64, (8,), generator=torch.Generator().manual_seed(index))
        ids[0] = index
        return {"input_ids": ids, "labels": ids.clone()}


def llama() -> Any:
    transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.1,
    )
    return transformers.LlamaForCausalLM(config)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("SUREFOOT_")]:
        monkeypatch.delenv(name)


def hugging_face(path: Path, out: Path, seen: list[int], *, stop: int = 0, term: int = 0) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")
    pytest.importorskip("accelerate", reason="needs the extra `hf`")
    from surefoot.train.integrations.huggingface import SurefootCallback

    class Breaks(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if term and state.global_step == term:
                os.kill(os.getpid(), signal.SIGTERM)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if stop and state.global_step == stop:
                control.should_training_stop = True

    class Model(type(llama())):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
            seen.extend(input_ids[:, 0].tolist())
            return super().forward(input_ids=input_ids, labels=labels, **more)

    model = llama()
    model.__class__ = Model
    surefoot = SurefootCallback(path)
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        logging_strategy="no",
        learning_rate=1e-2,
        warmup_steps=4,
        use_cpu=True,
        disable_tqdm=True,
    )
    callbacks = [surefoot, Breaks()]
    trainer = transformers.Trainer(model, arguments, train_dataset=Rows(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=surefoot.newest())
    return model.state_dict()


def test_hugging_face_trainer_resumes_bitwise_equal(tmp_path: Path) -> None:
    ids: list[int] = []
    whole = hugging_face(tmp_path / "whole", tmp_path / "out", ids)
    assert sorted(ids[:40]) == list(range(40)), "an epoch is each row once"
    for stop in STOPS:
        parts: list[int] = []
        hugging_face(tmp_path / str(stop), tmp_path / "out", parts, stop=stop)
        assert same(whole, hugging_face(tmp_path / str(stop), tmp_path / "out", parts)), stop
        assert parts == ids
    parts = []
    hugging_face(tmp_path / "term", tmp_path / "out", parts, term=5)
    assert len(parts) == 6 * 4, "SIGTERM ends training after the step it came in"
    assert same(whole, hugging_face(tmp_path / "term", tmp_path / "out", parts))
    assert parts == ids


def accelerated(path: Path, seen: list[int], total: int) -> Any:
    accelerate = pytest.importorskip("accelerate", reason="needs the extra `hf`")
    from surefoot.train.integrations.accelerate import SurefootLoop

    accelerator, model = accelerate.Accelerator(cpu=True), llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k))
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    with SurefootLoop(accelerator, path) as loop:
        for _, batch in loop.steps(loader, total=total):
            seen.extend(batch["input_ids"][:, 0].tolist())
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(model).state_dict()


def test_accelerate_loop_resumes_bitwise_equal(tmp_path: Path) -> None:
    ids: list[int] = []
    whole = accelerated(tmp_path / "whole", ids, STEPS)
    assert sorted(ids[40:80]) == list(range(40)), "nothing is skipped in the second epoch"
    for stop in STOPS:
        parts: list[int] = []
        accelerated(tmp_path / str(stop), parts, stop)
        assert same(whole, accelerated(tmp_path / str(stop), parts, STEPS)), stop
        assert parts == ids


def lightened(path: Path, seen: list[int], total: int, loader: Any = None) -> Any:
    lightning = pytest.importorskip("lightning", reason="needs the extra `lightning`")
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
    from surefoot.train.integrations.lightning import SurefootLightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = llama()

        def training_step(self, batch: Any, number: int) -> Any:
            seen.extend(batch["input_ids"][:, 0].tolist())
            return self.net(**batch).loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k))
            plan = {"scheduler": scheduler, "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": plan}

    surefoot, module = SurefootLightning(path), Module()
    trainer = lightning.Trainer(
        max_steps=total,
        callbacks=[surefoot],
        plugins=[surefoot.plugin],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = loader or stateful.StatefulDataLoader(Rows(), batch_size=4, shuffle=True)
    trainer.fit(module, loader, ckpt_path=surefoot.newest())
    return module.state_dict()


@pytest.mark.filterwarnings("ignore")
def test_lightning_resumes_bitwise_equal(tmp_path: Path) -> None:
    ids: list[int] = []
    whole = lightened(tmp_path / "whole", ids, STEPS)
    for stop in STOPS:
        parts: list[int] = []
        lightened(tmp_path / str(stop), parts, stop)
        assert same(whole, lightened(tmp_path / str(stop), parts, STEPS)), stop
        assert parts == ids


@pytest.mark.filterwarnings("ignore")
def test_lightning_with_a_loader_that_cannot_tell_its_place_is_refused(tmp_path: Path) -> None:
    """CASE 72."""
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    with pytest.raises(ConfigError, match="repeat batches"):
        lightened(tmp_path / "plain", [], 3, loader)


class Order:
    """A loader in the manner of torchtitan's: its state is pickled bytes."""

    def __init__(self) -> None:
        self.place = 0

    def next(self) -> torch.Tensor:
        self.place += 1
        return torch.randn(4, 8)

    def state_dict(self) -> dict[str, Any]:
        return {"dp_rank_0": b"\x00" + str(self.place).encode(), "world_size": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["world_size"] == 1
        self.place = int(state["dp_rank_0"][1:])


class Titan:
    """The attributes and calls of torchtitan's Trainer that its checkpointer touches."""

    def __init__(self, total: int) -> None:
        torch.manual_seed(3)
        self.model_parts = [nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 1))]
        parameters = [p for part in self.model_parts for p in part.parameters()]
        self.optimizers = torch.optim.AdamW(parameters, lr=0.01)
        self.lr_schedulers = torch.optim.lr_scheduler.LambdaLR(
            self.optimizers, lambda k: 1 / (1 + k)
        )
        self.dataloader, self.step, self.total = Order(), 0, total
        self.checkpointer: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])

    def train(self) -> list[torch.Tensor]:
        self.checkpointer.load(step=-1)
        while self.step < self.total:
            self.step += 1
            x = self.dataloader.next()
            self.model_parts[1](self.model_parts[0](x)).square().mean().backward()
            self.checkpointer.maybe_wait_for_staging()
            self.optimizers.step()
            self.lr_schedulers.step()
            self.optimizers.zero_grad()
            self.checkpointer.save(self.step, last_step=self.step == self.total)
        self.checkpointer.close()
        return [p.detach().clone() for part in self.model_parts for p in part.parameters()]


def test_torchtitan_checkpointer_resumes_bitwise_equal(tmp_path: Path) -> None:
    """Against the interface of BaseCheckpointManager in torchtitan 0.3, not torchtitan itself."""
    from surefoot.train.integrations.torchtitan import SurefootTitan

    def run(name: str, total: int) -> list[torch.Tensor]:
        trainer = Titan(total)
        trainer.checkpointer = SurefootTitan.of(trainer, tmp_path / name)
        return trainer.train()

    whole = run("whole", 20)
    run("broken", 9)
    assert all(torch.equal(a, b) for a, b in zip(whole, run("broken", 20), strict=True))


class Engine:
    """save_checkpoint and load_checkpoint as DeepSpeed 0.19 documents them."""

    def __init__(self) -> None:
        self.weight = 0.0

    def save_checkpoint(
        self, save_dir: str, tag: str | None = None, client_state: Any = None
    ) -> bool:
        folder = Path(save_dir, str(tag))
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"weight": self.weight, **client_state}, folder / "model.pt")
        Path(save_dir, "latest").write_text(str(tag))
        return True

    def load_checkpoint(self, load_dir: str, tag: str | None = None) -> tuple[Any, Any]:
        latest = Path(load_dir, "latest")
        if not latest.exists():
            return None, {}
        folder = Path(load_dir, latest.read_text())
        state = torch.load(folder / "model.pt", weights_only=False)
        self.weight = state.pop("weight")
        return str(folder), state


def test_deepspeed_carries_step_place_and_random_numbers_as_client_state(tmp_path: Path) -> None:
    """Against DeepSpeed's documented calls, not DeepSpeed itself."""
    from surefoot.train.integrations.deepspeed import SurefootDeepSpeed

    def run(name: str, total: int) -> tuple[float, list[int]]:
        torch.manual_seed(4)
        engine, steps = Engine(), []
        with SurefootDeepSpeed(engine, tmp_path / name) as surefoot:
            given = surefoot.resume()
            assert given == ({} if not surefoot.step else {"epoch": surefoot.step // 4})
            for step in range(surefoot.step, total):
                engine.weight += torch.rand(()).item()
                steps.append(step)
                surefoot.after_step(step + 1, epoch=(step + 1) // 4)
            surefoot.save(epoch=surefoot.step // 4)
        return engine.weight, steps

    whole, _ = run("whole", 12)
    run("broken", 5)
    again, steps = run("broken", 12)
    assert again == whole and steps == list(range(5, 12))
    (tmp_path / "other/step-1").mkdir(parents=True)
    Engine().save_checkpoint(str(tmp_path / "other"), "step-1", {})
    with pytest.raises(CheckpointError, match="not saved by Surefoot"):
        SurefootDeepSpeed(Engine(), tmp_path / "other").resume()


def test_agent_asks_and_is_answered_through_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, answer = tmp_path / "save", tmp_path / "saved"
    monkeypatch.setenv("SUREFOOT_SAVE_FILE", str(request))
    monkeypatch.setenv("SUREFOOT_SAVED_FILE", str(answer))
    keeper = Keeper(tmp_path / "ckpt", interval_s=1e-9)
    assert keeper.due(1) is None, "the agent says when the interval is over"
    request.write_text(json.dumps({"reason": "notice", "left_ms": 5000}))
    assert keeper.due(2) == "emergency"
    keeper.save(2, {"x": torch.ones(3)}, kind="emergency")
    keeper.close()
    assert answer.read_text().strip() == "2" and not request.exists()
    loaded = keeper.load()
    assert loaded is not None and loaded[0] == 2


def test_live_engine_and_missing_libraries_are_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no_such_trainer is not installed") as found:
        library("no_such_trainer", extra="'surefoot[hf]'")
    assert found.value.hint == "pip install 'surefoot[hf]'"
    monkeypatch.setenv("SUREFOOT_AGENT", "/run/agent.sock")
    with pytest.raises(ConfigError, match="re-form") as found:
        Keeper(tmp_path)
    assert "engine: torchrun" in found.value.hint


def test_random_numbers_go_on_where_they_were() -> None:
    import random

    import numpy as np

    state = rng.take()
    first = (random.random(), np.random.rand(), torch.rand(2).tolist())
    rng.put(state)
    assert (random.random(), np.random.rand(), torch.rand(2).tolist()) == first


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("huggingface", "accelerate"),
        ("accelerate_loop", "accelerate"),
        ("lightning_module", "torchdata"),
    ],
)
def test_example_runs_and_goes_on(
    name: str,
    needs: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for library_name in ("transformers", needs, name.partition("_")[0].replace("face", "face_hub")):
        pytest.importorskip(library_name, reason="needs the extras `hf` and `lightning`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for steps in ("3", "6"):
        monkeypatch.setattr("sys.argv", [name, str(tmp_path / "ckpt"), steps])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "done at step 6" in capsys.readouterr().out
    keeper = Keeper(tmp_path / "ckpt")
    found = keeper.load()
    keeper.close()
    assert found is not None and found[0] == 6
