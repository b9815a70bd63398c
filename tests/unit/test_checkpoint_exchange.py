"""Other formats in and out, the numpy-only reader, and the command line."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from surefoot.checkpoint import Checkpointer, exchange, reader
from surefoot.checkpoint.checksum import crc32c
from surefoot.cli.checkpoints import app
from surefoot.errors import CheckpointError, ConfigError, CorruptError, SurefootError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def state_of() -> dict[str, object]:
    torch.manual_seed(3)
    model = torch.nn.Linear(64, 33)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 64)).sum().backward()
    optimizer.step()
    extra = {"half": torch.randn(5).bfloat16(), "flag": torch.tensor([True, False])}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "extra": extra}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path / "run") as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state_of(), metadata={"note": "ü"}, blocking=True)
    return tmp_path / "run"


# -- the reader --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 15, 4096, 65_535, 65_536, 1_000_003])
def test_the_readers_checksum_is_crc32c(n: int) -> None:
    data = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)
    assert reader.crc32c(data) == crc32c(data.tobytes())
    assert reader.crc32c(np.frombuffer(b"123456789", dtype=np.uint8)) == 0xE3069283


def test_a_reader_of_under_150_lines_needs_only_numpy(saved: Path) -> None:
    source = Path(reader.__file__)
    assert len(source.read_text().splitlines()) < 150
    folder = max(saved.glob("step-*"))
    script = (
        "import sys, runpy; sys.modules['torch'] = sys.modules['surefoot'] = None\n"
        "m = runpy.run_path(sys.argv[1]); from pathlib import Path\n"
        "step, state, meta = m['read'](Path(sys.argv[2]))\n"
        "print(step, meta['note'], float(state['model']['weight'].astype('f8').sum()))"
    )
    command = [sys.executable, "-c", script, str(source), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    expected = state_of()["model"]["weight"].double().sum().item()
    step, note, total = done.stdout.split()
    assert (step, note) == ("2", "ü") and float(total) == pytest.approx(expected, rel=1e-12)


def test_the_reader_agrees_with_the_engine_and_refuses_damage(saved: Path) -> None:
    folder = max(saved.glob("step-*"))
    state = reader.read(folder)[1]
    with Checkpointer(saved, read_only=True) as checkpointer:
        mine = checkpointer.load()[1]
    assert (state["model"]["bias"] == mine["model"]["bias"].numpy()).all()
    assert (state["extra"]["half"] == mine["extra"]["half"].view(torch.uint16).numpy()).all()
    assert state["optimizer"]["param_groups"] == mine["optimizer"]["param_groups"]
    for name in ("rank-00000.bin", "manifest.json"):
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[:99] + bytes([raw[99] ^ 1]) + raw[100:])
        with pytest.raises(reader.DamagedError):
            reader.read(folder)
        (folder / name).write_bytes(raw)


# -- other formats -----------------------------------------------------------------------------


def test_safetensors_go_out_and_come_in(tmp_path: Path, saved: Path) -> None:
    state = state_of()
    target = tmp_path / "model.safetensors"
    assert exchange.write_safetensors(state, target, only="model") == 2
    back = exchange.import_checkpoint(target)
    assert back.keys() == {"weight", "bias"}
    assert torch.equal(back["weight"], state["model"]["weight"])
    raw = target.read_bytes()
    for cut in (4, 20, len(raw) - 1):
        target.write_bytes(raw[:cut])
        with pytest.raises(CorruptError):
            exchange.import_checkpoint(target)


def test_real_safetensors_reads_ours(tmp_path: Path) -> None:
    torch_side = pytest.importorskip("safetensors.torch")
    exchange.write_safetensors(state_of(), tmp_path / "a.safetensors")
    back = torch_side.load_file(tmp_path / "a.safetensors")
    assert torch.equal(back["extra.half"], state_of()["extra"]["half"])


def test_dcp_goes_out_and_comes_in_without_running_code(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = state_of()
    exchange.write_dcp(state, tmp_path / "dcp")
    back = exchange.import_checkpoint(tmp_path / "dcp")
    assert torch.equal(back["model"]["weight"], state["model"]["weight"])
    mine, theirs = state["optimizer"], back["optimizer"]
    assert torch.equal(theirs["state"]["0"]["exp_avg"], mine["state"][0]["exp_avg"])
    assert theirs["param_groups"] == mine["param_groups"]
    into = {"model": {"weight": torch.zeros(33, 64)}}
    dcp.load(into, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert torch.equal(into["model"]["weight"], state["model"]["weight"])


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch " + os.environ["SUREFOOT_EVIL"],)


def test_a_tampered_foreign_checkpoint_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "it ran"
    monkeypatch.setenv("SUREFOOT_EVIL", f"'{flag}'")
    folder = tmp_path / "dcp"
    exchange.write_dcp(state_of(), folder)
    whole = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(CheckpointError, match="not plain data"):
        exchange.import_checkpoint(folder)
    (folder / ".metadata").write_bytes(whole)
    for shard in folder.glob("*.distcp"):
        shard.write_bytes(pickle.dumps(_Evil()) + shard.read_bytes())
    with pytest.raises(SurefootError):
        exchange.import_checkpoint(folder)
    pickled = tmp_path / "model.pt"
    pickled.write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(ConfigError, match="neither"):
        exchange.import_checkpoint(pickled)
    assert not flag.exists()


# -- the command line --------------------------------------------------------------------------


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_list_verify_inspect_tell_the_truth(saved: Path) -> None:
    rows = json.loads(run("list", str(saved), "--json"))["checkpoints"]
    assert [(row["step"], row["state"]) for row in rows] == [(2, "whole"), (1, "whole")]
    assert "whole" in run("list", str(saved))
    assert "good" in run("verify", str(saved))
    body = json.loads(run("inspect", str(saved), "--json"))
    assert body["metadata"] == {"note": "ü"} and body["tensors"]["model.bias"] == "float32[33]"
    data = max(saved.glob("step-*")) / "rank-00000.bin"
    os.truncate(data, 0)
    assert "BAD" in run("verify", str(saved), code=1)
    assert json.loads(run("list", str(saved), "--json"))["checkpoints"][0]["state"] == "damaged"


def test_diff_names_what_differs(saved: Path) -> None:
    assert "0 tensors differ" in run("diff", str(saved), "1", "2")
    with Checkpointer(saved) as checkpointer:
        state = state_of()
        state["model"]["bias"].data.add_(1)
        checkpointer.save(3, state, blocking=True)
    found = json.loads(run("diff", str(saved), "2", "3", "--json", code=1))
    assert [row["tensor"] for row in found["differences"]] == ["model.bias"]


def test_export_writes_other_formats(saved: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "out.safetensors")
    run("export", str(saved), target, "--only", "model")
    assert exchange.import_checkpoint(Path(target)).keys() == {"weight", "bias"}
    assert isinstance(
        CliRunner().invoke(app, ["export", str(saved), target]).exception, ConfigError
    )
    run("export", str(saved), str(tmp_path / "dcp"), "--to", "dcp")
    assert (tmp_path / "dcp" / ".metadata").exists()


def test_prune_asks_first(saved: Path) -> None:
    assert "would delete" in run("prune", str(saved), "--keep", "1")
    assert len(list(saved.glob("step-*"))) == 2
    assert json.loads(run("prune", str(saved), "--keep", "1", "--yes", "--json"))["done"] is True
    with Checkpointer(saved, read_only=True) as checkpointer:
        assert checkpointer.steps() == [2]


def test_a_missing_path_is_one_clear_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["list", str(tmp_path / "nowhere")])
    assert isinstance(result.exception, ConfigError)
