"""One contract for every storage: local path, object store by obstore, and a real S3 server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from obstore.store import LocalStore

from surefoot.checkpoint import Checkpointer, objects
from surefoot.checkpoint.catalog import Catalog
from surefoot.checkpoint.objects import ObjectStorage
from surefoot.checkpoint.storage import LocalStorage, Storage
from surefoot.errors import AuthError, CheckpointError, ConfigError, FencedError, ThrottledError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A SeaweedFS S3 endpoint; skips where its binary is not installed."""
    weed = shutil.which("weed") or os.environ.get("SUREFOOT_WEED")
    if not weed:
        pytest.skip("no SeaweedFS binary (weed) here")
    ports = {n: _free_port() for n in ("master", "volume", "filer", "s3")}
    folder = tmp_path_factory.mktemp("weed")
    command = [weed, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
    command += [f"-{n}.port={p}" for n, p in ports.items()] + ["-volume.max=30"]
    command += [f"-{n}.port.grpc={_free_port()}" for n in ("master", "volume", "filer", "s3")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    try:
        _wait_for_bucket(endpoint, server)
        yield endpoint
    finally:
        server.kill()
        server.wait()


def _wait_for_bucket(endpoint: str, server: subprocess.Popen[bytes]) -> None:
    request = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
    for _ in range(150):
        assert server.poll() is None, "the S3 server ended"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(request, timeout=5)
            return
        time.sleep(0.2)
    pytest.fail("the S3 server does not answer")


@pytest.fixture(params=["local", "objects", "s3"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "root")
    if request.param == "objects":
        store = LocalStore(str(tmp_path), mkdir=True)
        return ObjectStorage("file-objects://here", store=store)
    endpoint = request.getfixturevalue("s3")
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return ObjectStorage(f"s3://bucket/{tmp_path.name}")


def open_on(storage: Storage, **options: object) -> Checkpointer:
    """A Checkpointer over a storage that was made by hand."""
    checkpointer = Checkpointer("unused", read_only=True, writer="thread", **options)
    checkpointer.catalog = Catalog(storage)
    checkpointer._persister.storage = storage
    checkpointer._persister.commits._storage = storage
    checkpointer._read_only = False
    checkpointer._persister.claim(int(options.get("generation", 0)))
    return checkpointer


def test_create_happens_once(storage: Storage) -> None:
    assert storage.create("log/0000000001.json", b"one")
    assert not storage.create("log/0000000001.json", b"two")
    assert storage.read("log/0000000001.json") == b"one"
    storage.put("log/0000000001.json", b"three")
    assert storage.read("log/0000000001.json") == b"three"


def test_names_sizes_and_deletion(storage: Storage) -> None:
    assert storage.folders() == [] and storage.names("nothing") == []
    with pytest.raises(FileNotFoundError):
        storage.read("nothing/at-all")
    storage.put("a/x", b"12345")
    storage.put("b/y", b"")
    assert sorted(storage.folders()) == ["a", "b"]
    assert storage.sizes("a") == {"x": 5}
    storage.delete("a/x")
    storage.delete("a/x")
    storage.delete_folder("b")
    assert storage.names("a") == [] and storage.names("b") == []


def test_a_checkpoint_in_several_parts_comes_back(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 4 << 20)
    state = {"w": torch.randn(3_000_000), "b": torch.arange(7)}
    checkpointer = open_on(storage, keep=2)
    for step in (1, 2, 3):
        state["b"] += 1
        checkpointer.save(step, state, blocking=True)
    step, loaded, _ = checkpointer.load()
    assert step == 3 and all(torch.equal(loaded[k], state[k]) for k in state)
    assert checkpointer.steps() == [3, 2]
    checkpointer.verify(2)
    checkpointer.close()


def test_a_newer_writer_fences_and_sweeps(storage: Storage) -> None:
    older = open_on(storage, generation=1)
    older.save(1, {"w": torch.ones(5)}, blocking=True)
    storage.put(f"step-000000000007-{older._persister.commits.writer}-000009/rank-00000.bin", b"x")
    newer = open_on(storage, generation=2)
    with pytest.raises(FencedError):
        older.save(2, {"w": torch.ones(5)}, blocking=True)
    newer.save(3, {"w": torch.zeros(5)}, blocking=True)
    assert newer.steps() == [3, 1]
    assert sum(bool(storage.names(f)) for f in storage.folders() if f.startswith("step-")) == 2


def test_damage_falls_back(storage: Storage) -> None:
    checkpointer = open_on(storage)
    for step in (1, 2):
        checkpointer.save(step, {"w": torch.full((9,), step)}, blocking=True)
    folder = max(f for f in storage.folders() if f.startswith("step-"))
    name = next(n for n in storage.names(folder) if n.startswith("rank"))
    raw = bytearray(storage.read(f"{folder}/{name}"))
    raw[3] ^= 1
    storage.put(f"{folder}/{name}", bytes(raw))
    assert checkpointer.load()[0] == 1
    storage.delete(f"{folder}/{name}")
    assert open_on(storage).latest() == 1


def test_errors_of_a_store_say_what_to_do() -> None:
    """CASES.md 60 and 61: slow down is retried later, credentials are the user's to renew."""
    other = objects._other
    assert isinstance(other("x", Exception("503 SlowDown: reduce your rate")), ThrottledError)
    assert isinstance(other("x", Exception("400 ExpiredToken")), AuthError)
    assert isinstance(other("x", Exception("connection reset")), CheckpointError)
    with pytest.raises(ConfigError, match="nonsense"):
        ObjectStorage("nonsense://bucket")


def test_a_bucket_copied_to_a_folder_loads_and_so_does_a_numpy_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES.md 63: copies between tiers are whole checkpoints."""
    from surefoot.checkpoint import reader

    monkeypatch.setattr(objects, "PART_BYTES", 4 << 20)
    state = {"w": torch.randn(3_000_000)}
    storage = ObjectStorage("file-objects://x", store=LocalStore(str(tmp_path / "a"), mkdir=True))
    open_on(storage).save(1, state, blocking=True)
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("log"))
    with Checkpointer(tmp_path / "b", read_only=True) as checkpointer:
        assert torch.equal(checkpointer.load()[1]["w"], state["w"])
    folder = next((tmp_path / "b").glob("step-*"))
    assert (reader.read(folder)[1]["w"] == state["w"].numpy()).all()
