"""The second tier: the newest committed checkpoint is copied from a folder to a bucket or folder.

A thread beside training maps the files (so that a prune meanwhile does no harm), uploads them in
parts with several in flight, compares every checksum with the manifest's, and commits in the log of
the target: create-only, fenced by the generation, last. A killed drain leaves a folder without
manifest, which a later one sweeps.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint.commit import Live, folder_name, read_log
from surefoot.checkpoint.manifest import File, Manifest
from surefoot.checkpoint.persist import Persister, typed_errors
from surefoot.checkpoint.retention import Keep
from surefoot.checkpoint.storage import LocalStorage, check_sizes, open_storage
from surefoot.errors import CheckpointError, ConfigError, CorruptError, FencedError, SurefootError

DEFAULT_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class DrainTarget:
    """Where the second tier is, and the seconds between copies to it."""

    url: str
    every_s: float = DEFAULT_EVERY_S


@dataclass(frozen=True, slots=True)
class DrainFigures:
    """What a drain has done: checkpoints, data bytes sent, requests (without the client's retries).

    `step`: the newest step that is committed in the target, -1 before the first. `error`: why the
    last attempt failed, empty when it did not.
    """

    copies: int = 0
    failures: int = 0
    n_bytes: int = 0
    requests: int = 0
    step: int = -1
    error: str = ""


def target_from(env: Mapping[str, str]) -> DrainTarget | None:
    """Return the second tier that SUREFOOT_DRAIN_TO and SUREFOOT_DRAIN_EVERY_S name, if any."""
    url = env.get("SUREFOOT_DRAIN_TO")
    if not url:
        return None
    return DrainTarget(url, float(env.get("SUREFOOT_DRAIN_EVERY_S") or DEFAULT_EVERY_S))


class Drain:
    """Copies from `source` to `target` as the writer of `generation` there.

    `start` runs it in a thread at its interval; `copy_newest` is one round of it.
    """

    def __init__(self, source: str, target: DrainTarget, keep: Keep) -> None:
        storage = open_storage(source)
        if not isinstance(storage, LocalStorage):
            raise ConfigError(
                f"{source} cannot be drained to {target.url}: only a folder can be, for now",
                hint="give a local folder as the path, or leave out the second tier",
            )
        if not target.every_s > 0:
            raise ConfigError(f"drain_every_s must be above 0, not {target.every_s}")
        self.target = target
        self._source = storage
        self._persister = Persister(target.url, keep)
        if self._persister.storage.url == storage.url:
            raise ConfigError(f"{source} cannot be drained to itself")
        self._generation: int | None = None
        self._figures = DrainFigures()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._one_at_a_time = threading.Lock()

    @property
    def figures(self) -> DrainFigures:
        """What was done so far."""
        return replace(self._figures, requests=self._persister.storage.requests)

    def start(self, generation: int) -> None:
        """Go on at the interval, as the writer of `generation`."""
        self.stop()
        self._generation = generation
        self._persister.commits.writer = ""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="surefoot-drain", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the copy that is on its way."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def abandon(self) -> None:
        """End without waiting: the process is about to go."""
        self._stop.set()

    def finish(self) -> None:
        """End the thread and copy what is newest; trouble is a warning and a figure."""
        running = self._generation is not None
        self.stop()
        if running:
            self._try()

    def copy_newest(self) -> int | None:
        """Copy the newest whole checkpoint unless the target has it; returns its step if it did.

        Raises FencedError when a newer generation has the target, other SurefootErrors for what
        went wrong; the target's last good checkpoint stays in any case.
        """
        with self._one_at_a_time:
            live = self._newest_local()
            if live is None or live.step <= self._figures.step:
                return None
            with typed_errors(self._persister.storage.url):
                self._take_charge()
                there = self._persister.commits.state.live.values()
                newest = max((item.step for item in there), default=-1)
                if newest >= live.step:
                    self._figures = replace(self._figures, step=newest)
                    return None
                self._copy(live)
            return live.step

    def _run(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # this thread yields to training
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        due_s = time.monotonic() + self.target.every_s
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            due_s = time.monotonic() + self.target.every_s
            if not self._try():
                return

    def _try(self) -> bool:
        """Copy; returns whether it makes sense to go on later."""
        try:
            self.copy_newest()
        except (SurefootError, OSError) as error:
            failures = self._figures.failures + 1
            self._figures = replace(self._figures, failures=failures, error=str(error))
            warnings.warn(f"not drained to {self.target.url}: {error}", stacklevel=2)
            return not isinstance(error, FencedError)
        self._figures = replace(self._figures, error="")
        return True

    def _newest_local(self) -> Live | None:
        live = read_log(self._source).live.values()
        for item in sorted(live, key=lambda item: item.step, reverse=True):
            try:
                check_sizes(self._source, item.folder, self._manifest(item))
            except (CorruptError, FileNotFoundError):
                continue
            return item
        return None

    def _manifest(self, live: Live) -> Manifest:
        key = f"{live.folder}/{fmt.NAME}"
        return fmt.decode(self._source.read(key), f"{self._source.url}/{key}")

    def _take_charge(self) -> None:
        commits = self._persister.commits
        if commits.writer:
            commits.check()
        else:
            self._persister.attempt = 0
            commits.claim(self._generation or 0)

    def _copy(self, live: Live) -> None:
        persister = self._persister
        manifest = self._manifest(live)
        persister.attempt += 1
        folder = folder_name(live.step, persister.commits.writer, persister.attempt)
        try:
            with contextlib.ExitStack() as open_files:
                maps = [open_files.enter_context(self._open(live, f)) for f in manifest.files]
                files = [self._send(folder, f, m) for f, m in zip(manifest.files, maps)]
            key = f"{live.folder}/{fmt.NAME}"
            body = fmt.unseal(self._source.read(key), f"{self._source.url}/{key}")
            body["files"] = [fmt.file_json(file) for file in files]
            body["writer"] = persister.commits.writer
            persister.storage.put(f"{folder}/{fmt.NAME}", fmt.seal(body))
            persister.commits.commit(replace(live, folder=folder))
        except BaseException:
            with contextlib.suppress(OSError, SurefootError):
                persister.storage.delete_folder(folder)
            raise
        done = self._figures
        sent = done.n_bytes + manifest.n_bytes
        self._figures = replace(done, copies=done.copies + 1, n_bytes=sent, step=live.step)
        persister.tidy(folder)

    @contextlib.contextmanager
    def _open(self, live: Live, file: File) -> Iterator[memoryview]:
        """Map one data file, whole pages, for reading."""
        if file.part_bytes:
            raise CheckpointError(
                f"{self._source.url}/{live.folder} is stored in parts, as in a bucket:"
                " draining such a copy is not built"
            )
        if file.n_bytes == 0:
            yield memoryview(b"")
            return
        with (self._source.root / live.folder / file.name).open("rb") as handle:
            mapped = mmap.mmap(handle.fileno(), file.n_bytes, prot=mmap.PROT_READ)
        view = memoryview(mapped)
        try:
            yield view
        finally:
            view.release()
            mapped.close()

    def _send(self, folder: str, file: File, memory: memoryview) -> File:
        sent = self._persister.storage.write_data(folder, file.name, memory)
        if sent.crcs != file.crcs:
            raise CorruptError(
                f"{self._source.url}: {file.name} is damaged: its checksums differ from the"
                " manifest's, so it was not drained"
            )
        return sent
