"""`surefoot checkpoints`: list, verify, inspect, diff, export and prune what a path holds."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from surefoot.cli import frame
from surefoot.errors import CheckpointError, ConfigError, CorruptError

app = typer.Typer(help="Look at checkpoints, check them, compare, export and prune them.")
Where = Annotated[str, typer.Argument(metavar="PATH", help="a folder or URL of checkpoints")]
Step = Annotated[int | None, typer.Option(help="the step; the newest good one if left out")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON document on stdout")]


class Format(Enum):
    """What `export` writes."""

    SAFETENSORS = "safetensors"
    DCP = "dcp"


def _catalog(path: str) -> Any:
    from surefoot.checkpoint.catalog import Catalog
    from surefoot.checkpoint.storage import open_storage

    if "://" not in path and not Path(path).is_dir():
        raise ConfigError(f"there is no folder {path}", hint="name the checkpoint path of the job")
    return Catalog(open_storage(path))


def _pick(catalog: Any, step: int | None) -> int:
    found = catalog.latest() if step is None else step
    if found is None:
        raise CheckpointError(f"there is no whole checkpoint in {catalog.storage.url}")
    return int(found)


@app.command("list")
def list_(path: Where, as_json: AsJson = False) -> None:
    """List the checkpoints of a path, newest first, and say which are whole."""
    catalog = _catalog(path)
    rows = [_row(catalog, live) for live in catalog.candidates()]
    if as_json:
        frame.print_json({"path": catalog.storage.url, "checkpoints": rows})
        return
    table = Table("step", "kind", "GB", "world", "state", "folder", box=None)
    for row in rows:
        gb = f"{row['bytes'] / 1e9:.3f}" if row["bytes"] is not None else "?"
        world = str(row["world"] or "?")
        table.add_row(str(row["step"]), row["kind"], gb, world, row["state"], row["folder"])
    frame.out().print(table if rows else f"no checkpoints in {catalog.storage.url}")


def _row(catalog: Any, live: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"step": live.step, "kind": live.kind, "folder": live.folder}
    try:
        manifest = catalog.manifest(live.folder)
    except CorruptError as error:
        return {**row, "bytes": None, "world": None, "state": "damaged", "why": str(error)}
    return {**row, "bytes": manifest.n_bytes, "world": manifest.world, "state": "whole", "why": ""}


@app.command()
def verify(path: Where, step: Step = None, as_json: AsJson = False) -> None:
    """Read every byte of one checkpoint, or of all, against the checksums; exit 1 if one is bad."""
    catalog = _catalog(path)
    steps = [step] if step is not None else [live.step for live in catalog.candidates()]
    results = []
    for number in steps:
        try:
            n_bytes, why = catalog.verify(number).n_bytes, ""
        except CorruptError as error:
            n_bytes, why = 0, str(error)
        results.append({"step": number, "good": not why, "bytes": n_bytes, "why": why})
    if as_json:
        frame.print_json({"path": catalog.storage.url, "checkpoints": results})
    for row in [] if as_json else results:
        text = f"good, {row['bytes']} bytes" if row["good"] else f"BAD: {row['why']}"
        frame.out().print(f"step {row['step']}: {text}", markup=False)
    if not all(row["good"] for row in results):
        raise typer.Exit(frame.FAILED)


@app.command()
def inspect(path: Where, step: Step = None, as_json: AsJson = False) -> None:
    """Show what one checkpoint holds: its tensors, files and metadata."""
    catalog = _catalog(path)
    live = catalog.of_step(_pick(catalog, step))
    manifest = catalog.manifest(live.folder)
    tensors = {n: f"{t.dtype}{list(t.shape)}" for n, t in manifest.tensors.items()}
    body = {
        "step": manifest.step,
        "folder": live.folder,
        "generation": manifest.generation,
        "world": manifest.world,
        "bytes": manifest.n_bytes,
        "created_unix_ms": manifest.created_unix_ms,
        "files": {file.name: file.n_bytes for file in manifest.files},
        "metadata": dict(manifest.metadata),
        "tensors": tensors,
    }
    if as_json:
        frame.print_json(body)
        return
    for key, value in body.items():
        if key != "tensors":
            frame.out().print(f"{key}: {value}", markup=False)
    for name, text in tensors.items():
        frame.out().print(f"  {name}  {text}", markup=False)


@app.command()
def diff(path: Where, first: int, second: int, as_json: AsJson = False) -> None:
    """Compare the tensors of two steps; exit 1 if they differ."""
    catalog = _catalog(path)
    rows = _differences(catalog.load(step=first)[1], catalog.load(step=second)[1])
    if as_json:
        frame.print_json({"steps": [first, second], "differences": rows})
    else:
        for row in rows:
            frame.out().print(f"{row['tensor']}: {row['what']}", markup=False)
        frame.out().print(f"{len(rows)} tensors differ")
    if rows:
        raise typer.Exit(frame.FAILED)


def _differences(first: Any, second: Any) -> list[dict[str, Any]]:
    import torch

    from surefoot.checkpoint.tree import flatten

    one, two = flatten(first)[1], flatten(second)[1]
    rows: list[dict[str, Any]] = []
    for name in sorted(one.keys() | two.keys()):
        if name not in one or name not in two:
            side = "second" if name in two else "first"
            rows.append({"tensor": name, "what": f"only in the {side}"})
        elif one[name].shape != two[name].shape or one[name].dtype != two[name].dtype:
            rows.append({"tensor": name, "what": "another shape or dtype"})
        elif not torch.equal(one[name], two[name]):
            gap = (one[name].double() - two[name].double()).abs().max().item()
            rows.append({"tensor": name, "what": f"differs by up to {gap:.3g}"})
    return rows


@app.command()
def export(
    path: Where,
    target: Annotated[Path, typer.Argument(help="the file or folder to make")],
    to: Annotated[Format, typer.Option(help="which format")] = Format.SAFETENSORS,
    only: Annotated[str, typer.Option(help="just this part of the state, such as model")] = "",
    step: Step = None,
    as_json: AsJson = False,
) -> None:
    """Write one checkpoint in another format."""
    from surefoot.checkpoint import exchange

    catalog = _catalog(path)
    if target.exists():
        raise ConfigError(f"{target} exists already", hint="name a new file or folder")
    found, state, _ = catalog.load(step=_pick(catalog, step))
    count: int | None = None
    if to is Format.SAFETENSORS:
        count = exchange.write_safetensors(state, target, only=only)
    elif only:
        raise ConfigError("--only goes with --to safetensors")
    else:
        exchange.write_dcp(state, target)
    body = {"step": found, "target": str(target), "format": to.value, "tensors": count}
    if as_json:
        frame.print_json(body)
    else:
        frame.out().print(f"step {found} is in {target} ({to.value})", markup=False)


@app.command()
def prune(
    path: Where,
    keep: Annotated[int, typer.Option(help="how many of the newest good ones stay")] = 3,
    yes: Annotated[bool, typer.Option("--yes", help="do it; without it, only say what")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete all but the newest good checkpoints. Fences a job that still saves there."""
    from surefoot.checkpoint.persist import prune as prune_path

    if keep < 1:
        raise ConfigError(f"--keep must be at least 1, not {keep}")
    catalog = _catalog(path)
    gone = prune_path(catalog, keep, act=yes)
    if as_json:
        frame.print_json({"path": catalog.storage.url, "deleted": gone, "done": yes})
        return
    verb = "deleted" if yes else "would delete"
    for folder in gone:
        frame.out().print(f"{verb} {folder}", markup=False)
    if gone and not yes:
        frame.out().print("nothing was deleted: type the same with --yes to do it")
