"""The log files that a run's VMs leave in its folder, read as they grow and made safe to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from surefoot.report.clean import clean

LOGS = {"worker": "worker.log", "agent": "agent.log"}
LINE = 4_000


def log_paths(folder: Path, name: str) -> dict[str, Path]:
    """Return the log files called `name` in a run's folder, by instance id."""
    return {path.parent.name: path for path in (folder / "vms").rglob(name)}


@dataclass(slots=True)
class Log:
    """One log file that is read as it grows; a line is given once it is whole."""

    path: Path
    name: str
    offset: int = 0
    _rest: bytes = field(default=b"")

    def new_lines(self, *, last: bool = False) -> list[str]:
        """Return the lines since the last call; with `last` also one without its line feed."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self.offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if last and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        return [clean(line.decode("utf-8", "replace"), limit=LINE, lines=True) for line in whole]
