"""What the workers' step logs say: first step after a fault, pauses, steps lost."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Rows:
    """All workers' steps, read as they are written; times are monotonic seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at: dict[Path, int] = {}
        self.rows: list[Row] = []

    def read(self) -> list[Row]:
        """Return all rows so far, by time."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._at.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._at[path] = self._at.get(path, 0) + len(whole)
            self.rows += [json.loads(line) for line in whole.splitlines()]
        self.rows.sort(key=lambda row: row["t"])
        return self.rows

    def wait(
        self, found: Callable[[Row], bool], limit_s: float, *, after: float = 0.0
    ) -> Row | None:
        """Return the first row that fits, waiting for it; None when the time is over."""
        end = time.monotonic() + limit_s
        while True:
            for row in self.read():
                if row["t"] > after and row["stepped"] and found(row):
                    return row
            if time.monotonic() > end:
                return None
            time.sleep(0.02)

    def newest(self, vms: Iterable[str] | None = None) -> dict[str, Row]:
        """Return the last row of each VM."""
        last = {row["vm"]: row for row in self.read()}
        return {vm: row for vm, row in last.items() if vms is None or vm in vms}

    def group(self) -> dict[int, str]:
        """Return rank -> VM of the group that stepped last."""
        rows = [row for row in self.read() if row["stepped"]]
        last = rows[-1]
        recent = [r for r in rows if r["t"] > last["t"] - 2 and r["world"] == last["world"]]
        return {row["rank"]: row["vm"] for row in recent}

    def lost_steps(self, first: Row) -> int:
        """Return how many steps that counted before `first` were done again from it on."""
        before = [r["step"] for r in self.rows if r["stepped"] and r["t"] < first["t"]]
        after = [r["step"] for r in self.rows if r["stepped"] and r["t"] >= first["t"]]
        return max(0, max(before, default=-1) + 1 - min(after, default=0))

    def pause(self, vm: str, at_s: float) -> float:
        """Return the longest gap between two steps of a VM around an instant, less a usual step."""
        times = [r["t"] for r in self.rows if r["vm"] == vm and r["stepped"]]
        gaps = [(b - a, a, b) for a, b in itertools.pairwise(times)]
        usual = statistics.median(g for g, _, _ in gaps)
        around = [g for g, a, b in gaps if b > at_s - 1 and a < at_s + 0.5]
        return max(around, default=0.0) - usual
