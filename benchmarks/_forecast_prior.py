"""Fits the logistic model's prior on the unscored first tenths of the public traces.

`python benchmarks/_forecast_prior.py` rewrites src/surefoot/core/forecast/logistic_prior.py.
Only the first 3 tenths of each source are read: benchmarks/forecast.py scores the other 7.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from _common import shared_data
from _forecast import SOURCES, load
from _forecast_walk import lessons
from surefoot.core.forecast.expert import HORIZONS_H, Batch
from surefoot.core.forecast.logistic import SIZE

TENTHS = 3
MOST_ROWS = 800.0
"""No source counts for more than this many independent rows."""
RIDGE = 4.0
WALLED = "goog-preempt-2019"
"""Its VMs end at 24 h by rule, which no prior for other products should hold: its lives are
taken below 22 h only (as source goog-lt22h)."""
TARGET = Path(__file__).parents[1] / "src/surefoot/core/forecast/logistic_prior.py"


def fitted(batches: Sequence[Sequence[Batch]]) -> tuple[np.ndarray, np.ndarray]:
    """Return (mean, precision) from each source's lessons, for both horizons."""
    ridge = np.full(SIZE, RIDGE)
    ridge[0], ridge[1] = 0.1, 1.0
    mean, precision = np.zeros((2, SIZE)), np.zeros((2, SIZE, SIZE))
    for h in range(len(HORIZONS_H)):
        xs, lost, weight = [], [], []
        for source in batches:
            w = np.concatenate([b.weight[:, h] for b in source])
            weight.append(w * min(1.0, MOST_ROWS / max(w.sum(), 1e-9)))
            lost.append(np.concatenate([b.lost[:, h] for b in source]))
            xs += [np.concatenate([b.features.x, b.age_x], axis=1) for b in source]
        x, y, w = np.concatenate(xs), np.concatenate(lost), np.concatenate(weight)
        start = np.zeros(SIZE)
        at = start
        for _ in range(12):
            # `updated` makes two Newton steps from the prior; from the last point on, the prior
            # must stay where it was, so the steps are repeated by hand.
            odds = 1.0 / (1.0 + np.exp(-(x @ at)))
            curved = np.diag(ridge) + x.T @ ((w * odds * (1.0 - odds))[:, None] * x)
            step = np.linalg.solve(curved, x.T @ (w * (y - odds)) - ridge * (at - start))
            at = at + step
        mean[h], precision[h] = at, curved
    return mean, precision


def write(mean: np.ndarray, precision: np.ndarray) -> None:
    """Write the numbers as a module: weights, and the lower triangles of the precisions."""
    lower = np.tril_indices(SIZE)
    lines = [
        '"""The prior of the logistic model. Written by `benchmarks/_forecast_prior.py`."""',
        "",
        "from __future__ import annotations",
        "",
        "from functools import lru_cache",
        "",
        "import numpy as np",
        "",
        "from surefoot.core.forecast.port import Floats",
        "",
        f"SIZE = {SIZE}",
        '"""Number of weights."""',
        "",
        "",
        "@lru_cache(maxsize=1)",
        "def load(size: int) -> tuple[Floats, Floats]:",
        '    """Return (mean, precision) for both horizons. Raises ValueError for another size."""',
        "    if size != SIZE:",
        '        raise ValueError(f"the prior has {SIZE} weights, the model {size}: fit it again")',
        "    mean = np.array(_numbers(MEAN)).reshape(2, SIZE)",
        "    precision = np.zeros((2, SIZE, SIZE))",
        "    row, column = np.tril_indices(SIZE)",
        "    packed = np.array(_numbers(PRECISION)).reshape(2, -1)",
        "    precision[:, row, column] = packed",
        "    precision[:, column, row] = packed",
        "    return mean, precision",
        "",
        "",
        "def _numbers(text: str) -> list[float]:",
        "    return [float(word) for word in text.split()]",
        "",
        "",
        *_block("MEAN", mean.ravel(), "{:.4g}"),
        "",
        *_block("PRECISION", precision[:, lower[0], lower[1]].ravel(), "{:.3g}"),
    ]
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _block(name: str, numbers: np.ndarray, form: str) -> list[str]:
    words = [form.format(v) for v in numbers]
    lines, line = [f'{name} = """'], ""
    for word in words:
        if len(line) + len(word) + 1 > 98:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [*lines, line, '"""']


def main() -> int:
    """Fit and write; print what each source gave."""
    data = shared_data()
    batches = []
    for name in SOURCES:
        if name == WALLED:
            continue
        source = load(data, name)
        batches.append(lessons(source, tenths=TENTHS))
        print(f"{name}: {sum(len(b) for b in batches[-1])} rows")
    write(*fitted(batches))
    return 0


if __name__ == "__main__":
    sys.exit(main())
