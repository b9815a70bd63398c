"""The reading end of a checkpoint path: what is there, what is good, and loading it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from surefoot.checkpoint import load as reading
from surefoot.checkpoint import tree as trees
from surefoot.checkpoint.commit import Live, parse_folder, read_log
from surefoot.checkpoint.manifest import Manifest
from surefoot.checkpoint.persist import typed_errors
from surefoot.checkpoint.storage import Storage, check_sizes
from surefoot.errors import CheckpointError, CorruptError, SurefootError

Loaded = tuple[int, Any, dict[str, Any]]


class Catalog:
    """Reads one checkpoint path and never writes to it. `corrupt`: folders found damaged.

    `second`: the tier that this path is drained to. `latest`, `steps` and `load` look at both: the
    higher step wins, and the nearer copy of the same step. What cannot be reached is reported, and
    an error only if nothing else is there.
    """

    def __init__(self, storage: Storage, second: Catalog | None = None) -> None:
        self.storage = storage
        self.second = second
        self.corrupt: set[str] = set()
        self.reports: list[str] = []

    def candidates(self) -> list[Live]:
        """Return committed checkpoints, newest step first, then whole ones that no log names.

        The latter were copied here, or the log was lost; their manifests speak for them.
        """
        with typed_errors(self.storage.url):
            log = read_log(self.storage)
            folders = self.storage.folders()
        named = sorted(reversed(list(log.live.values())), key=lambda c: c.step, reverse=True)
        parsed = [(parse_folder(name), name) for name in folders if name not in log.live]
        strays = [
            Live(name, found[0], "unlisted")
            for found, name in parsed
            if found is not None and (found[1] not in log.writers or log.unreadable)
        ]
        strays.sort(key=lambda c: c.step, reverse=True)
        return [c for c in named + strays if c.folder not in self.corrupt]

    def latest(self) -> int | None:
        """Return the first candidate's step whose manifest and file sizes are right, or None."""
        for place, live in self._everywhere():
            try:
                place.manifest(live.folder)
            except CorruptError as error:
                self._set_aside(place, live, error)
            else:
                return live.step
        return None

    def steps(self) -> list[int]:
        """Return the committed steps of both tiers, each once, newest first."""
        steps = [live.step for _, live in self._everywhere()]
        return sorted(set(steps), reverse=True) if self.second is not None else steps

    def _everywhere(self) -> list[tuple[Catalog, Live]]:
        """Return the candidates of both tiers, newest first; of a step the nearer one first."""
        found = [(self, live) for live in self.candidates()]
        if self.second is None:
            return found
        try:
            found += [(self.second, live) for live in self.second.candidates()]
        except (SurefootError, OSError) as error:
            if not found:
                raise
            self._report(f"{self.second.storage.url} was not looked at: {error}")
        return sorted(found, key=lambda item: item[1].step, reverse=True)

    def manifest(self, folder: str) -> Manifest:
        """Return a checked manifest; raises CorruptError when files are missing or cut short."""
        with typed_errors(self.storage.url):
            manifest = reading.read_manifest(self.storage, folder)
            check_sizes(self.storage, folder, manifest)
            return manifest

    def is_whole(self, live: Live) -> bool:
        """Whether a checkpoint's manifest and file sizes are right."""
        try:
            self.manifest(live.folder)
        except CorruptError:
            return False
        return True

    def of_step(self, step: int) -> Live:
        """Return the committed checkpoint of a step; raises CheckpointError."""
        for live in self.candidates():
            if live.step == step:
                return live
        raise CheckpointError(f"there is no checkpoint of step {step} in {self.storage.url}")

    def verify(self, step: int) -> Manifest:
        """Read every byte of a checkpoint; returns its manifest or raises CorruptError."""
        live = self.of_step(step)
        manifest = self.manifest(live.folder)
        reading.verify_files(self.storage, live.folder, manifest)
        return manifest

    def load(self, state: Any = None, *, step: int | None = None) -> Loaded:
        """Return (step, state, metadata) of the newest good checkpoint: see Checkpointer.load."""
        into = trees.flatten(state)[1] if state is not None else {}
        last: CorruptError | None = None
        for place, live in self._everywhere():
            if step is not None and live.step != step:
                continue
            try:
                return place._load(live, into)
            except CorruptError as error:
                self._set_aside(place, live, error)
                last = error
        if last is not None:
            raise CorruptError(
                f"no good checkpoint is left in {self.storage.url}: {last}",
                hint=f"surefoot checkpoints verify {self.storage.url}",
            ) from last
        which = "" if step is None else f" of step {step}"
        raise CheckpointError(f"there is no checkpoint{which} in {self.storage.url}")

    def _load(self, live: Live, into: Mapping[str, torch.Tensor]) -> Loaded:
        manifest = self.manifest(live.folder)
        missing = sorted(into.keys() - manifest.tensors.keys())
        if missing:
            raise CheckpointError(
                f"{self.storage.url}/{live.folder} lacks {len(missing)} tensors of the given"
                f" state, such as {missing[0]}",
                hint="build the model as it was when it was saved, or load without a state",
            )
        tensors = reading.read_tensors(self.storage, live.folder, manifest, into)
        restored = trees.restore(dict(manifest.tree), tensors)
        return manifest.step, restored, dict(manifest.metadata)

    def _set_aside(self, place: Catalog, live: Live, error: CorruptError) -> None:
        place.corrupt.add(live.folder)
        self._report(f"checkpoint of step {live.step} is set aside: {error}")

    def _report(self, report: str) -> None:
        self.reports.append(report)
        warnings.warn(report, stacklevel=4)
