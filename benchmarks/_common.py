"""What every benchmark shares: options, a table, and bars that decide the exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Bar:
    """One claim: `value` must be at least (>=) or at most (<=) `bar`."""

    name: str
    value: float
    op: str
    bar: float

    @property
    def holds(self) -> bool:
        return self.value >= self.bar if self.op == ">=" else self.value <= self.bar


@dataclass
class Bars:
    """Collects bars and rows; `finish` prints them, writes the JSON and returns the exit code."""

    name: str
    bars: list[Bar] = field(default_factory=list)
    rows: dict[str, Any] = field(default_factory=dict)

    def at_least(self, name: str, value: float, bar: float) -> None:
        """Claim value >= bar."""
        self.bars.append(Bar(name, float(value), ">=", float(bar)))

    def at_most(self, name: str, value: float, bar: float) -> None:
        """Claim value <= bar."""
        self.bars.append(Bar(name, float(value), "<=", float(bar)))

    def finish(self, json_path: str | None) -> int:
        """Print each bar with its value; return 0 only if all hold (NaN never holds)."""
        print("\nbars")
        for bar in self.bars:
            mark = "holds " if bar.holds else "MISSED"
            print(f"  {mark}  {bar.name}: {bar.value:.4g} (bar {bar.op} {bar.bar:.4g})")
        if json_path:
            body = {"benchmark": self.name, "rows": self.rows, "bars": []}
            body["bars"] = [{**asdict(b), "holds": b.holds} for b in self.bars]
            Path(json_path).write_text(json.dumps(body, indent=1, default=str) + "\n")
        return 0 if all(b.holds for b in self.bars) else 1


def options(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smaller run of the same thing")
    parser.add_argument("--json", metavar="FILE", help="write rows and bars there")
    return parser


def shared_data() -> Path:
    """Return the folder of public traces; exits 0 with a reason where it is absent."""
    root = Path(os.environ.get("SUREFOOT_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (root / "data" / "availability.parquet").exists():
        print("skipped: the folder of public traces (SUREFOOT_SHARED) is not here")
        sys.exit(0)
    return root / "data"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a plain aligned table; floats with 3 significant digits after the point."""
    cells = [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(head), *cells]) for i in range(len(head))]
    for row in [list(head), *cells]:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
