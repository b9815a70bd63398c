"""Whatever call a save dies at, the newest committed checkpoint loads bit-exact."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from checkpoint_world import Disk, Shim, goes_on, in_child, loaded_step, open_writer, prepare, save

from surefoot.errors import AskUserError, CheckpointError, CorruptError, SurefootError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SEED = int(os.environ.get("SUREFOOT_SEED", "20261130"))


def calls_of_a_save(tmp_path: Path) -> int:
    root = prepare(tmp_path / "count")
    with Shim() as shim:
        save(open_writer(root), 3)
    assert loaded_step(root) == 3
    return shim.count


def test_killed_at_every_file_system_call(tmp_path: Path) -> None:
    """CASES.md 41 and 44: all k points, each resumed without help."""
    base = prepare(tmp_path / "base")
    seen = set()
    for at in range(1, calls_of_a_save(tmp_path) + 1):
        root = Path(shutil.copytree(base, tmp_path / f"kill-{at}"))

        def die(root: Path = root, at: int = at) -> None:
            with Shim("kill", at):
                save(open_writer(root), 3)

        assert in_child(die) == -signal.SIGKILL
        seen.add(loaded_step(root))
        goes_on(root)
        shutil.rmtree(root)
    assert seen == {2, 3}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_an_error_at_every_file_system_call_harms_nothing(tmp_path: Path, code: int) -> None:
    """CASES.md 51 and 52: the save is void or done, the one before is untouched."""
    base = prepare(tmp_path / "base")
    void = 0
    for at in range(1, calls_of_a_save(tmp_path) + 1):
        root = Path(shutil.copytree(base, tmp_path / f"fail-{at}"))
        done = False
        with Shim("fail", at, errno=code):
            try:
                save(open_writer(root), 3)
                done = True
            except (CheckpointError, AskUserError) as error:
                assert error.hint or "EIO" in str(error)
                void += 1
        assert loaded_step(root) in ((3,) if done else (2, 3))
        goes_on(root)
        shutil.rmtree(root)
    assert void > 5


def test_a_disk_that_fills_up_and_stays_full(tmp_path: Path) -> None:
    base = prepare(tmp_path / "base")
    for at in range(1, calls_of_a_save(tmp_path) + 1, 2):
        root = Path(shutil.copytree(base, tmp_path / f"full-{at}"))
        with Shim("full", at):
            try:
                save(open_writer(root), 3)
            except SurefootError:
                partial = [p for p in root.glob("step-000000000003*") if not any(p.iterdir())]
                assert not partial
        assert loaded_step(root) in (2, 3)
        goes_on(root)
        shutil.rmtree(root)


def test_power_cut_after_every_call_keeps_what_was_committed(tmp_path: Path) -> None:
    """CASES.md 58: drop everything that was not fsynced; then some of it at random."""
    rng = random.Random(SEED)
    root = prepare(tmp_path / "root")
    before = Path(shutil.copytree(root, tmp_path / "before"))
    with Shim() as shim:
        persister = open_writer(root)
        save(persister, 3)
        acknowledged = len(shim.record)
        save(persister, 4)
    disk = Disk(before)
    events = [tuple(_moved(x, root, before) for x in event) for event in shim.record]
    for number, event in enumerate(events, start=1):
        disk.apply(event)
        for variant in (None, rng, rng):
            left = tmp_path / "left"
            disk.after_power_cut(left, variant)
            step = loaded_step(left)
            assert step >= (3 if number >= acknowledged else 2), (number, event[:2], SEED)
            shutil.rmtree(left)
    assert loaded_step(root) == 4


def _moved(value: object, old: Path, new: Path) -> object:
    text = str(value)
    return text.replace(str(old), str(new), 1) if isinstance(value, str) else value


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """CASES.md 42: a bit anywhere in the newest checkpoint or in the log's newest entries."""
    rng = random.Random(SEED)
    root = prepare(tmp_path / "root")
    newest = max(root.glob("step-*"))
    files = [p for p in [*newest.iterdir(), *(root / "log").iterdir()] if p.is_file()]
    for file in files:
        raw = file.read_bytes()
        for _ in range(25):
            at, bit = rng.randrange(len(raw)), rng.randrange(8)
            file.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << bit)]) + raw[at + 1 :])
            assert loaded_step(root) in (1, 2), (file.name, at, bit, SEED)
            if file.parent == newest:
                assert loaded_step(root) == 1, (file.name, at, bit, SEED)
        file.write_bytes(raw)
    assert loaded_step(root) == 2


def test_truncated_swapped_stale_and_missing_files_are_noticed(tmp_path: Path) -> None:
    base = prepare(tmp_path / "base")
    older, newest = sorted(p.name for p in base.glob("step-*"))
    damage = {
        "cut data": lambda r: os.truncate(r / newest / "rank-00000.bin", 4096),
        "empty data": lambda r: os.truncate(r / newest / "rank-00000.bin", 0),
        "cut manifest": lambda r: os.truncate(r / newest / "manifest.json", 100),
        "empty manifest": lambda r: os.truncate(r / newest / "manifest.json", 0),
        "swapped data": lambda r: shutil.copy(r / older / "rank-00000.bin", r / newest),
        "no data": lambda r: (r / newest / "rank-00000.bin").unlink(),
        "no manifest": lambda r: (r / newest / "manifest.json").unlink(),
        "no folder": lambda r: shutil.rmtree(r / newest),
        "longer data": lambda r: os.truncate(r / newest / "rank-00000.bin", 1 << 20),
    }
    for name, act in damage.items():
        root = Path(shutil.copytree(base, tmp_path / name))
        act(root)
        assert loaded_step(root) == 1, name
        goes_on(root)
    root = Path(shutil.copytree(base, tmp_path / "all"))
    for folder in (older, newest):
        os.truncate(root / folder / "rank-00000.bin", 4096)
    with pytest.raises(CorruptError, match=r"no good checkpoint is left.*rank-00000\.bin"):
        loaded_step(root)


def test_a_stale_manifest_over_new_data_is_noticed(tmp_path: Path) -> None:
    root = prepare(tmp_path / "root")
    older, newest = sorted(root.glob("step-*"))
    shutil.copy(older / "manifest.json", newest)
    assert loaded_step(root) == 1


def test_two_writers_cannot_both_win(tmp_path: Path) -> None:
    """A paused writer that wakes at any call after another took over commits nothing."""
    from surefoot.errors import FencedError

    base = prepare(tmp_path / "base")
    count = calls_of_a_save(tmp_path)
    fenced = 0
    for at in range(1, count + 1, 3):
        root = Path(shutil.copytree(base, tmp_path / f"two-{at}"))
        paused = open_writer(root, generation=1)
        shim = _TakeOver(root, at)
        try:
            with shim:
                save(paused, 5)
        except FencedError:
            fenced += 1
            assert shim.other is not None and loaded_step(root) == 3
        if shim.other is not None:
            save(shim.other, 6)
            assert loaded_step(root) == 6
            with pytest.raises(FencedError):
                save(paused, 7)
            assert loaded_step(root) == 6
    assert fenced > 3


class _TakeOver(Shim):
    """At call `at` of the first writer, another one takes over and saves step 3."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__("", 0)
        self._root, self._when = root, at
        self.other = None

    def _note(self, name: str, args: tuple[object, ...], result: object) -> None:
        super()._note(name, args, result)
        if self.count == self._when and self.other is None:
            self.__exit__()
            self.other = open_writer(self._root, generation=2)
            save(self.other, 3)
