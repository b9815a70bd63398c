"""A file system that can be stopped, filled or unplugged at any call, for the checkpoint tests.

`Shim` stands in for the `os` functions that the writing half uses. It counts their calls, can kill
the process or raise at one of them, and records them; `Disk` replays a record and answers what a
power cut after any call would leave: only what was fsynced, names and bytes apart.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from surefoot.checkpoint.catalog import Catalog
from surefoot.checkpoint.manifest import tensor_json
from surefoot.checkpoint.persist import Order, Persister
from surefoot.checkpoint.plan import plan_save
from surefoot.checkpoint.storage import LocalStorage

CALLS = (
    "open", "pwrite", "write", "fsync", "link", "rename", "mkdir", "unlink", "rmdir",
    "posix_fallocate",
)  # fmt: skip


class Shim:
    """Replaces `os` calls; `at` is the call (from 1) at which `fault` acts, 0 for never."""

    def __init__(self, fault: str = "", at: int = 0, *, errno: int = 28) -> None:
        self.fault, self.at, self.errno = fault, at, errno
        self.count = 0
        self.record: list[tuple[Any, ...]] = []
        self._real = {name: getattr(os, name) for name in CALLS}
        self._paths: dict[int, str] = {}

    def __enter__(self) -> Shim:
        for name in CALLS:
            setattr(os, name, self._wrap(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _wrap(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            mine = self.count == self.at or (self.fault == "full" and self.count >= self.at > 0)
            if mine and self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            writes = name in ("pwrite", "write", "link", "mkdir", "posix_fallocate", "fsync")
            if mine and (self.fault == "fail" or (self.fault == "full" and writes)):
                raise OSError(self.errno, os.strerror(self.errno), str(args[0]))
            result = real(*args, **kwargs)
            self._note(name, args, result)
            return result

        return call

    def _note(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        if name == "open":
            self._paths[result] = os.fspath(args[0])
            self.record.append(("open", os.fspath(args[0]), args[1]))
        elif name == "pwrite":
            data = bytes(memoryview(args[1])[:result])
            self.record.append(("write", self._paths[args[0]], args[2], data))
        elif name == "write":
            data = bytes(memoryview(args[1])[:result])
            self.record.append(("append", self._paths[args[0]], data))
        elif name == "fsync":
            self.record.append(("fsync", self._paths[args[0]]))
        elif name != "posix_fallocate":
            self.record.append((name, *(os.fspath(a) for a in args if isinstance(a, str | Path))))


@dataclass
class _Node:
    """A file's bytes or a folder's names, as they are and as the platter has them."""

    data: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    names: dict[str, _Node] | None = None
    safe_names: dict[str, _Node] = field(default_factory=dict)


class Disk:
    """The state of a folder under a recorded run of calls, and what a power cut leaves of it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = self._read(root)

    def _read(self, path: Path) -> _Node:
        if path.is_dir():
            names = {child.name: self._read(child) for child in path.iterdir()}
            return _Node(names=names, safe_names=dict(names))
        raw = path.read_bytes()
        return _Node(bytearray(raw), raw)

    def apply(self, event: tuple[Any, ...]) -> None:
        """Do one recorded call."""
        kind, path = event[0], event[1]
        if not self._inside(path):
            return
        if kind == "open" and event[2] & os.O_CREAT:
            self._parent(path).setdefault(Path(path).name, _Node())
        elif kind == "mkdir":
            self._parent(path)[Path(path).name] = _Node(names={})
        elif kind == "append":
            self._node(path).data += event[2]
        elif kind == "write":
            data, offset = self._node(path).data, event[2]
            data.extend(bytes(max(0, offset + len(event[3]) - len(data))))
            data[offset : offset + len(event[3])] = event[3]
        elif kind == "fsync":
            node = self._node(path)
            node.safe = bytes(node.data)
            node.safe_names = dict(node.names or {})
        elif kind in ("link", "rename"):
            self._parent(event[2])[Path(event[2]).name] = self._node(path)
            if kind == "rename":
                del self._parent(path)[Path(path).name]
        elif kind in ("unlink", "rmdir"):
            self._parent(path).pop(Path(path).name, None)

    def after_power_cut(self, target: Path, rng: random.Random | None) -> None:
        """Write what is left to `target`; with `rng`, unsynced names and bytes may be there too."""
        self._write(self._top, target, rng)

    def _write(self, node: _Node, path: Path, rng: random.Random | None) -> None:
        if node.names is None:
            kept = node.data if rng is not None and rng.random() < 0.3 else node.safe
            path.write_bytes(kept)
            return
        path.mkdir()
        names = dict(node.safe_names)
        if rng is not None:
            for name in node.names.keys() | node.safe_names.keys():
                if rng.random() < 0.5:
                    names.pop(name, None)
                    if name in node.names:
                        names[name] = node.names[name]
        for name, child in names.items():
            self._write(child, path / name, rng)

    def _inside(self, path: str) -> bool:
        return Path(path) == self._root or self._root in Path(path).parents

    def _node(self, path: str) -> _Node:
        node = self._top
        for part in Path(path).relative_to(self._root).parts:
            assert node.names is not None
            node = node.names[part]
        return node

    def _parent(self, path: str) -> dict[str, _Node]:
        names = self._node(str(Path(path).parent)).names
        assert names is not None
        return names


# -- what is saved, without a trainer --------------------------------------------------------------


def state_of(step: int, *, n: int = 3000) -> dict[str, torch.Tensor]:
    """Return a state that tells its step."""
    return {"w": torch.arange(n) * 7 + step, "b": torch.full((11,), float(step))}


def save(persister: Persister, step: int) -> str:
    """Save `state_of(step)` through the writing half, as the engine would."""
    leaves = state_of(step)
    plan = plan_save(leaves)
    memory = bytearray(plan.total_bytes)
    for slot in plan.slots:
        raw = leaves[slot.name].view(torch.uint8).numpy().tobytes()
        memory[slot.offset : slot.offset + slot.n_bytes] = raw
    tensors = {name: tensor_json(entry) for name, entry in plan.entries.items()}
    tree = {"dict": [[name, {"tensor": name}] for name in leaves]}
    persister.attempt += 1
    order = Order(step, "periodic", plan.total_bytes, 1, tensors, tree, {"step": step})
    folder = persister.persist(order, memoryview(_Aligned(memory).view))
    persister.tidy(folder)
    return folder


class _Aligned:
    """Page-aligned memory, as direct I/O wants it."""

    def __init__(self, data: bytes | bytearray) -> None:
        import mmap

        self.view = mmap.mmap(-1, len(data))
        self.view.write(bytes(data))


def open_writer(root: Path, *, generation: int = 0, keep: int = 2) -> Persister:
    """Take charge of `root`."""
    persister = Persister(str(root), keep)
    persister.claim(generation)
    return persister


def prepare(root: Path) -> Path:
    """Return a root with checkpoints of steps 1 and 2, as an earlier process left them."""
    persister = open_writer(root)
    for step in (1, 2):
        save(persister, step)
    return root


def loaded_step(root: Path) -> int:
    """Load the newest good checkpoint and check every value; returns its step."""
    step, state, metadata = Catalog(LocalStorage(root)).load()
    expected = state_of(step)
    assert metadata == {"step": step}
    assert all(torch.equal(state[name], expected[name]) for name in expected), step
    return step


def goes_on(root: Path) -> None:
    """A new writer takes over, saves, and leaves no rubbish."""
    persister = open_writer(root)
    save(persister, 9)
    assert loaded_step(root) == 9
    live = set(persister.commits.state.live)
    folders = {p.name for p in root.iterdir() if p.name.startswith("step-")}
    assert folders == live, folders ^ live


def in_child(act: Callable[[], None]) -> int:
    """Run `act` in a forked child; returns its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
