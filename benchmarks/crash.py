"""Faults tried on checkpoints, checkpoints lost and corruptions missed, ours beside its peers.

Kill -9 of trainer, writer and both at random moments; kill, error and power cut at every
file-system call; flipped bits and cut files. Peers: flipped bits and cut files only, as they load
by default.

    python benchmarks/crash.py [--quick] [--kills 1000] [--seed 1] [--json FILE]
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "crash"))

import torch
from checkpoint_kills import TARGETS, kill_once
from checkpoint_world import Disk, Shim, in_child, loaded_step, open_writer, prepare, save

from _common import Bars, options, table
from surefoot.errors import SurefootError

Row = tuple[str, int, int, int]  # fault, tried, checkpoints lost, corruptions missed


def good(root: Path, least: int) -> tuple[int, int]:
    """Return (lost, missed) for what loads from `root`, of which `least` must not be lost."""
    try:
        return int(loaded_step(root) < least), 0
    except SurefootError:
        return 1, 0
    except AssertionError:
        return 0, 1


def random_kills(root: Path, count: int, rng: random.Random) -> list[Row]:
    rows = []
    for target in TARGETS:
        lost = missed = 0
        tries = max(1, count // len(TARGETS))
        for number in range(tries):
            try:
                outcome = kill_once(root / target, target, rng)
                lost += outcome.lost or not outcome.went_on
            except AssertionError:
                missed += 1
            if number % 50 == 49:
                print(f"  killed the {target} {number + 1} times", flush=True)
        rows.append((f"kill -9 of {target}, random moment", tries, lost, missed))
    return rows


def every_call(root: Path, fault: str) -> Row:
    base = prepare(root / f"base-{fault}")
    copy = Path(shutil.copytree(base, root / f"count-{fault}"))
    with Shim() as shim:
        save(open_writer(copy), 3)
    lost = missed = 0
    for at in range(1, shim.count + 1):
        copy = Path(shutil.copytree(base, root / "copy"))

        def act(copy: Path = copy, at: int = at) -> None:
            with Shim(fault, at):
                save(open_writer(copy), 3)

        code = in_child(act) if fault == "kill" else _try(act)
        assert fault != "kill" or code == -signal.SIGKILL
        one = good(copy, 2)
        lost, missed = lost + one[0], missed + one[1]
        shutil.rmtree(copy)
    names = {"kill": "kill -9", "fail": "no space", "full": "no space from then on"}
    return (f"{names[fault]}, at every file-system call", shim.count, lost, missed)


def _try(act: Callable[[], None]) -> int:
    try:
        act()
    except SurefootError:
        return 1
    return 0


def power_cuts(root: Path, rng: random.Random, variants: int) -> Row:
    base = prepare(root / "power")
    before = Path(shutil.copytree(base, root / "power-before"))
    with Shim() as shim:
        persister = open_writer(base)
        save(persister, 3)
        acknowledged = len(shim.record)
        save(persister, 4)
    disk, lost, missed, tried = Disk(before), 0, 0, 0
    for number, event in enumerate(shim.record, start=1):
        moved = [x.replace(str(base), str(before), 1) if isinstance(x, str) else x for x in event]
        disk.apply(tuple(moved))
        for variant in [None, *[rng] * variants]:
            disk.after_power_cut(root / "left", variant)
            one = good(root / "left", 3 if number >= acknowledged else 2)
            lost, missed, tried = lost + one[0], missed + one[1], tried + 1
            shutil.rmtree(root / "left")
    return ("power cut (unsynced dropped), after every call", tried, lost, missed)


def our_damage(root: Path, rng: random.Random, flips: int) -> list[Row]:
    base = prepare(root / "flips")
    newest = max(base.glob("step-*"))
    rows = []
    for name, damage in (("flipped bit", _flip), ("cut file", _cut)):
        lost = missed = 0
        for _ in range(flips):
            file = rng.choice(sorted(newest.iterdir()))
            raw = file.read_bytes()
            file.write_bytes(damage(raw, rng))
            one = good(base, 1)
            lost, missed = lost + one[0], missed + one[1]
            missed += not any(one) and loaded_step(base) == 2
            file.write_bytes(raw)
        rows.append((name, flips, lost, missed))
    return rows


def _flip(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :]


def _cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


# -- peers -----------------------------------------------------------------------------------------


def peers(root: Path, rng: random.Random, flips: int) -> list[list[object]]:
    """Return, for each peer, how many flips in tensor data and cut files its load lets pass."""
    state = {f"t{i}": torch.randn(20_000) for i in range(8)}
    found = []
    for name, store, load, data in _peer_list(root, state):
        store()
        row: list[object] = [name]
        for damage in (_flip, _cut):
            silent = 0
            for _ in range(flips):
                file = rng.choice(data())
                raw = file.read_bytes()
                file.write_bytes(damage(raw, rng))
                silent += _is_silent(load, state)
                file.write_bytes(raw)
            row.append(f"{silent} of {flips}")
        found.append(row)
    return found


def _is_silent(load: Callable[[], Any], state: dict[str, torch.Tensor]) -> bool:
    """Whether a load returned without an error and with other values than were saved."""
    try:
        loaded = load()
    except BaseException:
        return False
    return any(not torch.equal(loaded[k], state[k]) for k in state)


def _peer_list(root: Path, state: dict[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    import torch.distributed.checkpoint as dcp

    def dcp_load() -> dict[str, torch.Tensor]:
        into = {k: torch.zeros_like(v) for k, v in state.items()}
        dcp.load(into, checkpoint_id=root / "dcp", no_dist=True)
        return into

    pt, folder = root / "peer.pt", root / "dcp"
    found: list[tuple[Any, ...]] = [
        ("torch.save", lambda: torch.save(state, pt), lambda: torch.load(pt), lambda: [pt]),
        (
            "DCP",
            lambda: dcp.save(state, checkpoint_id=folder, no_dist=True),
            dcp_load,
            lambda: sorted(folder.glob("*.distcp")),
        ),
    ]
    if importlib.util.find_spec("safetensors") is not None:
        from safetensors.torch import load_file, save_file

        st = root / "peer.safetensors"
        store, load = (lambda: save_file(state, st)), (lambda: load_file(st))
        found.append(("safetensors", store, load, lambda: [st]))
    return found


def main() -> int:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    kills, flips = (12, 40) if arguments.quick else (arguments.kills, 400)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rng = random.Random(arguments.seed)
    root = Path(tempfile.mkdtemp(prefix="surefoot-crash-"))
    try:
        rows = [every_call(root, fault) for fault in ("kill", "fail", "full")]
        rows.append(power_cuts(root, rng, 2 if arguments.quick else 10))
        rows += our_damage(root, rng, flips)
        rows += random_kills(root, kills, rng)
        table(["fault", "tried", "lost", "missed"], rows)
        print("\npeers: damage that loads silently")
        found = peers(root, rng, flips)
        table(["engine", "flipped bit", "cut file"], found)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    bars = Bars("crash")
    bars.rows = {"ours": rows, "peers": found, "seed": arguments.seed}
    bars.at_most("checkpoints lost", sum(row[2] for row in rows), 0)
    bars.at_most("corruptions missed", sum(row[3] for row in rows), 0)
    bars.at_least("faults tried", sum(row[1] for row in rows), 1)
    return bars.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
