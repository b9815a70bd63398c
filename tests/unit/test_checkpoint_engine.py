"""The Checkpointer on a local path: round trips, fencing, retention, isolation, clear errors."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.checkpoint import Checkpointer
from surefoot.errors import AuthError, CheckpointError, CorruptError, FencedError, NoSpaceError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 5)
    )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 300)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def copy_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_training_state_comes_back_bit_exact(tmp_path: Path) -> None:
    model, optimizer = build()
    train(model, optimizer)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state_of(model, optimizer), metadata={"epoch": 3}).wait()
        step, state, metadata = checkpointer.load()
    assert (step, metadata) == (1, {"epoch": 3})
    assert_same(state["model"], model.state_dict())
    fresh_model, fresh_optimizer = build()
    fresh_model.load_state_dict(state["model"])
    fresh_optimizer.load_state_dict(state["optimizer"])
    torch.manual_seed(1)
    train(model, optimizer)
    torch.manual_seed(1)
    train(fresh_model, fresh_optimizer)
    assert_same(model.state_dict(), fresh_model.state_dict())


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64]
)
def test_every_dtype_and_odd_shape_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    base = torch.randn(6, 7).to(dtype)
    state = {
        "scalar": base[0, 0],
        "empty": base[:0],
        "strided": base.t(),
        "slice": base[1:, ::2],
        "expanded": base[:1].expand(4, 7),
    }
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state, blocking=True)
        loaded = checkpointer.load()[1]
    assert_same(loaded, state)


def test_plain_values_keep_their_types(tmp_path: Path) -> None:
    state = {
        "text": "ü", "none": None, "yes": True, "n": 3, "x": 0.1, "inf": float("inf"),
        "nested": [1, (2, [3.5])], 5: {"seven": 7}, "blob": b"\x00\xff",
        "python": random.getstate(), "numpy": np.random.default_rng(0).bit_generator.state,
        "array": np.arange(6).reshape(2, 3), "torch": torch.get_rng_state(),
    }  # fmt: skip
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state, blocking=True)
        loaded = checkpointer.load()[1]
    assert (loaded.pop("array") == state.pop("array")).all()
    assert torch.equal(loaded.pop("torch"), state.pop("torch"))
    assert loaded == state
    random.setstate(loaded["python"])


def test_what_only_pickle_could_store_is_refused_by_name(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for bad in (object(), {1, 2}, torch.float32, lambda: None):
            with pytest.raises(CheckpointError, match=r"state\[extra\.thing\]"):
                checkpointer.save(0, {"extra": {"thing": bad}})
        with pytest.raises(CheckpointError, match="metadata"):
            checkpointer.save(0, {}, metadata={"bad": object()})
        assert checkpointer.latest() is None


def test_metadata_that_is_not_json_is_refused_by_name(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for odd in (object(), float("nan"), {"deep": [{1, 2}]}, torch.ones(1)):
            with pytest.raises(CheckpointError, match=r"metadata\['odd'\]"):
                checkpointer.save(1, {"w": torch.ones(1)}, metadata={"fine": [1], "odd": odd})
        assert checkpointer.latest() is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.Adagrad, {}), (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.Adafactor, {}), (torch.optim.LBFGS, {}),
    ],
)  # fmt: skip
def test_every_kind_of_optimizer_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, kind: Any, options: dict[str, Any]
) -> None:
    def work(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for step in range(steps):
            batch = torch.full((2, 3), 1.0 + step)

            def loss(batch: torch.Tensor = batch) -> torch.Tensor:
                optimizer.zero_grad()
                value = model(batch).square().sum()
                value.backward()
                return value

            optimizer.step(loss)

    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    optimizers = [kind(model.parameters(), **options) for model in models]
    work(models[0], optimizers[0], 3)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, {"m": models[0], "o": optimizers[0]}, blocking=True)
        _, state, _ = checkpointer.load()
    models[1].load_state_dict(state["m"])
    optimizers[1].load_state_dict(state["o"])
    for model, optimizer in zip(models, optimizers):
        work(model, optimizer, 2)
    assert_same(models[1].state_dict(), models[0].state_dict())


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    weight = torch.randn(500, 500)
    with Checkpointer(tmp_path) as checkpointer:
        saved = checkpointer.save(0, {"a": weight, "b": weight}, blocking=True).saved
        loaded = checkpointer.load()[1]
    assert saved is not None and saved.n_bytes < 1.1 * weight.nbytes
    assert loaded["a"].data_ptr() == loaded["b"].data_ptr()


def test_loading_into_a_state_fills_its_tensors_in_place(tmp_path: Path) -> None:
    model, optimizer = build()
    train(model, optimizer)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"model": model.state_dict()}, blocking=True)
        other, _ = build()
        checkpointer.load({"model": other.state_dict()})
        assert_same(other.state_dict(), model.state_dict())
        with pytest.raises(CheckpointError, match=r"float32\[2\]"):
            checkpointer.load({"model": {"0.weight": torch.zeros(2)}})
        with pytest.raises(CheckpointError, match=r"model\.extra"):
            checkpointer.load({"model": {"extra": torch.zeros(2)}})


def test_optimizer_steps_right_after_save_do_not_change_what_is_saved(tmp_path: Path) -> None:
    """CASES.md 56: with the guard the copy overlaps; without it save returns after the copy."""
    for guarded in (True, False):
        model, optimizer = build()
        train(model, optimizer)
        with Checkpointer(tmp_path / str(guarded)) as checkpointer:
            if guarded:
                checkpointer.guard(optimizer)
            before = copy_of(model)
            handle = checkpointer.save(1, state_of(model, optimizer))
            for _ in range(10):
                train(model, optimizer)
            handle.wait()
            assert_same(checkpointer.load()[1]["model"], before)


def test_a_forgotten_barrier_fails_the_save_and_never_stores_a_mixture(tmp_path: Path) -> None:
    state = {"w": torch.zeros(40_000_000)}
    with Checkpointer(tmp_path, overlap=True) as checkpointer:
        handle = checkpointer.save(1, state)
        state["w"].add_(1)
        with pytest.raises(CheckpointError, match="barrier"):
            handle.wait()
        assert checkpointer.latest() is None
        assert checkpointer.failures == 1
        checkpointer.save(2, state, blocking=True)
        assert checkpointer.failures == 0


def test_a_newer_writer_fences_the_older_one(tmp_path: Path) -> None:
    older = Checkpointer(tmp_path, generation=1)
    older.save(1, {"a": torch.ones(2)}, blocking=True)
    newer = Checkpointer(tmp_path, generation=2)
    with pytest.raises(FencedError, match="generation 2"):
        older.save(2, {"a": torch.ones(2)}, blocking=True)
    with pytest.raises(FencedError):
        older.save(3, {"a": torch.ones(2)})
    newer.save(2, {"a": torch.zeros(2)}, blocking=True)
    assert newer.steps() == [2, 1]
    with pytest.raises(FencedError):
        Checkpointer(tmp_path, generation=1)
    newer.close()
    with pytest.raises(FencedError):
        older.close()
    assert len([p for p in tmp_path.iterdir() if p.name.startswith("step-")]) == 2


def test_advance_takes_the_path_back_in_a_newer_generation(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, generation=1) as checkpointer:
        checkpointer.save(1, {"a": torch.ones(2)}, blocking=True)
        with Checkpointer(tmp_path, generation=2) as other:
            other.save(2, {"a": torch.ones(2)}, blocking=True)
        checkpointer.advance(3, rank=0, world=2)
        checkpointer.save(3, {"a": torch.ones(2)}, blocking=True)
        assert checkpointer.steps() == [3, 2, 1]
        checkpointer.advance(4, rank=1)
        assert checkpointer.save(4, {"a": torch.ones(2)}).wait() is None


def test_retention_goes_by_step_number(tmp_path: Path) -> None:
    """CASES.md 47: 10000 is newer than 9900, whatever the names and times say."""
    with Checkpointer(tmp_path, keep=3) as checkpointer:
        for step in range(9_000, 10_101, 100):
            checkpointer.save(step, {"a": torch.ones(2)}, blocking=True)
            for folder in tmp_path.glob("step-*"):
                os.utime(folder, (0, 0))
        assert checkpointer.steps() == [10_100, 10_000, 9_900]
    assert len(list(tmp_path.glob("step-*"))) == 3


def test_emergency_saves_count_in_retention(tmp_path: Path) -> None:
    """CASES.md 50 and 66: forty preemptions fill no disk; the highest step wins."""
    for n in range(40):
        with Checkpointer(tmp_path, keep=4, generation=n) as checkpointer:
            kind = "emergency" if n % 2 else "periodic"
            checkpointer.save(n, {"a": torch.full((2,), n)}, kind=kind)
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        assert checkpointer.steps() == [39, 38, 37, 36]
        assert checkpointer.load()[1]["a"][0] == 39
    assert len(list(tmp_path.glob("step-*"))) == 4
    assert len(list((tmp_path / "log").iterdir())) < 20


def test_strangers_and_links_are_left_alone(tmp_path: Path) -> None:
    """CASES.md 45 and 67: a link, a file, a hidden folder and a name with blanks."""
    (tmp_path / "latest").symlink_to("step_300_gone")
    (tmp_path / "step-000000000099-deadbeef-000001").symlink_to("latest")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "my old run").mkdir()
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"a": torch.ones(2)}, blocking=True)
        assert checkpointer.steps() == [2]
    names = {p.name for p in tmp_path.iterdir()}
    assert {"latest", "notes.txt", ".hidden", "my old run"} < names


def test_odd_path_names_work(tmp_path: Path) -> None:
    for name in ("with blank", "ü~[x]'\"", "new\nline"):
        with Checkpointer(tmp_path / name) as checkpointer:
            checkpointer.save(1, {"a": torch.ones(2)}, blocking=True)
            assert checkpointer.load()[0] == 1


def test_keep_one_never_leaves_nothing(tmp_path: Path) -> None:
    """CASES.md 48: with keep=1 the old one goes only after the new one is committed."""
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        checkpointer.save(1, {"a": torch.ones(2)}, blocking=True)
        with pytest.raises(CheckpointError):
            checkpointer.save(2, {"a": object()})
        assert checkpointer.latest() == 1
    with pytest.raises(CheckpointError, match="at least 1"):
        Checkpointer(tmp_path, keep=0)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "no-manifest"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, damage: str
) -> None:
    """CASES.md 41, 42, 45: incomplete or damaged means not eligible, with a clear report."""
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"w": torch.full((100_000,), step)}, blocking=True)
    newest = max(tmp_path.glob("step-*"))
    _damage(newest, damage)
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        with pytest.warns(UserWarning, match="step 2 is set aside"):
            step, state, _ = checkpointer.load({"w": torch.zeros(100_000, dtype=torch.int64)})
        assert step == 1 and bool((state["w"] == 1).all())
        assert newest.name in checkpointer.reports[0]
    with Checkpointer(tmp_path, read_only=True) as checkpointer, pytest.raises(CorruptError):
        checkpointer.verify(2)


def _damage(folder: Path, kind: str) -> None:
    data, manifest = folder / "rank-00000.bin", folder / "manifest.json"
    match kind:
        case "flip":
            raw = bytearray(data.read_bytes())
            raw[len(raw) // 2] ^= 4
            data.write_bytes(raw)
        case "truncate":
            os.truncate(data, data.stat().st_size - 4096)
        case "remove":
            data.unlink()
        case "manifest":
            raw = bytearray(manifest.read_bytes())
            raw[len(raw) // 3] ^= 1
            manifest.write_bytes(raw)
        case "no-manifest":
            manifest.unlink()


def test_when_none_is_good_load_refuses_by_name(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(10)}, blocking=True)
    _damage(next(tmp_path.glob("step-*")), "flip")
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        with pytest.raises(CorruptError, match=r"rank-00000\.bin: chunk 0"):
            checkpointer.load()
        assert checkpointer.latest() is None


def test_an_empty_path_has_no_latest_and_load_says_so(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "not yet", read_only=True) as checkpointer:
        assert checkpointer.latest() is None
        with pytest.raises(CheckpointError, match="there is no checkpoint"):
            checkpointer.load()
    assert not (tmp_path / "not yet").exists()


def test_a_lost_log_hides_nothing(tmp_path: Path) -> None:
    """CASES.md 46 and 63: checkpoints copied without the log are found, and never deleted."""
    import shutil

    with Checkpointer(tmp_path / "a") as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, {"w": torch.full((10,), step)}, blocking=True)
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("log"))
    with Checkpointer(tmp_path / "b", keep=1) as checkpointer:
        assert checkpointer.load()[0] == 3
        checkpointer.save(4, {"w": torch.ones(10)}, blocking=True)
        assert checkpointer.steps() == [4, 3, 2, 1]


def test_leftovers_of_a_dead_writer_are_swept_and_a_full_disk_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES.md 44, 51, 52: the write error decides; what was begun is removed."""
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(10)}, blocking=True)
        writer = next(tmp_path.glob("step-*")).name.split("-")[2]
    (tmp_path / f"step-000000000009-{writer}-000009").mkdir()
    (tmp_path / "step-000000000009-00c0ffee-000009").mkdir()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(2, {"w": torch.ones(10)}, blocking=True)
    assert len(list(tmp_path.glob("step-000000000009*"))) == 1, "a stranger's is left alone"


def test_no_space_and_no_right_say_what_to_do(tmp_path: Path) -> None:
    from surefoot.checkpoint.storage import typed

    full = typed(OSError(28, "No space left on device"), str(tmp_path))
    assert isinstance(full, NoSpaceError) and "GB free" in str(full) and full.hint
    denied = typed(PermissionError(13, "Permission denied"), str(tmp_path))
    assert isinstance(denied, AuthError) and denied.hint


def test_a_save_in_flight_is_finished_at_exit(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, torch; from surefoot.checkpoint import Checkpointer;"
        "Checkpointer(sys.argv[1]).save(5, {'w': torch.ones(3_000_000)})"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    with warnings.catch_warnings(), Checkpointer(tmp_path, read_only=True) as checkpointer:
        assert checkpointer.latest() == 5


def test_too_little_room_is_said_at_the_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES.md 53: needed and free bytes, counting retention and one in flight."""
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with Checkpointer(tmp_path, keep=2) as checkpointer:
        with pytest.warns(UserWarning, match=r"2 checkpoints and one in flight need 0\.01 GB more"):
            checkpointer.save(1, {"w": torch.ones(1_000_000)}, blocking=True)
        checkpointer.save(2, {"w": torch.ones(1_000_000)}, blocking=True)
        assert len(checkpointer.reports) == 1


def test_memory_as_storage_is_said_at_the_first_save() -> None:
    """CASES.md 70: what does not outlive the machine is no place for checkpoints."""
    from surefoot.checkpoint.preflight import file_system_of, problems
    from surefoot.checkpoint.storage import LocalStorage

    if file_system_of(Path("/dev/shm")) != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    found = problems(LocalStorage(Path("/dev/shm/surefoot-not-made")), 1, 1)
    assert "goes with the VM" in found[0]


def test_the_margin_before_a_deadline_comes_from_measured_saves(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.margin_s(10) is None
        saved = checkpointer.save(1, {"w": torch.ones(1_000_000)}, blocking=True).saved
        assert saved is not None
        assert checkpointer.margin_s(10) == pytest.approx(10 - saved.persist_s)
        assert checkpointer.margin_s(0) < 0


def test_a_file_system_without_hard_links_still_fences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    older = Checkpointer(tmp_path, generation=1)
    older.save(1, {"a": torch.ones(2)}, blocking=True)
    newer = Checkpointer(tmp_path, generation=2)
    with pytest.raises(FencedError):
        older.save(2, {"a": torch.ones(2)}, blocking=True)
    newer.save(3, {"a": torch.ones(2)}, blocking=True)
    assert newer.steps() == [3, 1]


def test_a_state_with_nan_never_pushes_out_a_good_one(tmp_path: Path) -> None:
    """CASES.md 68: the save is void, the last finite one is kept."""
    good = {"w": torch.ones(100), "huge": torch.full((9,), 3e38), "n": torch.arange(3)}
    with Checkpointer(tmp_path, keep=1, finite_only=True) as checkpointer:
        checkpointer.save(1, good, blocking=True)
        for dtype, value in ((torch.float32, "nan"), (torch.bfloat16, "inf")):
            bad = {**good, "w": torch.full((100,), float(value), dtype=dtype)}
            with pytest.raises(CheckpointError, match=r"state\[w\] holds a NaN"):
                checkpointer.save(2, bad, blocking=True)
        assert checkpointer.steps() == [1] and checkpointer.failures == 2
        checkpointer.save(3, good, blocking=True)


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_two_arenas_take_turns_and_sizes_may_change(tmp_path: Path, writer: str) -> None:
    with Checkpointer(tmp_path, keep=9, arenas=2, writer=writer) as checkpointer:
        handles = []
        for step in range(1, 7):
            state = {"w": torch.full((100_000 * (1 + step // 2 % 2),), float(step))}
            handles.append(checkpointer.save(step, state))
        assert [handle.wait(30).step for handle in handles] == [1, 2, 3, 4, 5, 6]
        for step in range(1, 7):
            assert bool((checkpointer.load(step=step)[1]["w"] == step).all())


def test_five_failed_saves_in_a_row_are_counted_and_the_end_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES.md 54: not only logged; close raises when the last save failed."""
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"w": torch.ones(3)}, blocking=True)

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error", str(tmp_path))

    monkeypatch.setattr(checkpointer.catalog.storage, "write_data", broken)
    monkeypatch.setattr(checkpointer._persister.storage, "write_data", broken)
    for step in range(2, 7):
        handle = checkpointer.save(step, {"w": torch.ones(3)})
    handle.settled()
    assert checkpointer.failures == 5 and checkpointer.last_durable.step == 1
    with pytest.raises(CheckpointError, match="EIO"):
        checkpointer.close()
