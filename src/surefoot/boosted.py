"""The forecasting model `lightgbm`: gradient-boosted trees on the features of `logistic`.

It lives outside the core, which is pure numpy, and is loaded when it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from surefoot.core.forecast.expert import BINS, HORIZONS_H, Batch
from surefoot.core.forecast.features import BIN_ROWS, Features
from surefoot.core.forecast.logistic import Logistic, logistic
from surefoot.core.forecast.mixture import Mixture
from surefoot.core.forecast.port import Floats, Forecaster
from surefoot.errors import ConfigError

NAME = "lightgbm"
LEAST_ROWS, LEAST_LOSSES = 1_500, 60.0
"""Rows, and losses among them, from which trees are grown; before that `logistic` answers."""
GROWTH = 1.3
"""Trees are grown anew once there are this many times the rows."""
MOST_ROWS = 40_000
"""Rows kept for the next trees; the oldest go first."""
ROUNDS = 120
PARAMETERS = {
    "objective": "cross_entropy",
    "learning_rate": 0.05,
    "num_leaves": 12,
    "min_data_in_leaf": 60,
    "lambda_l2": 5.0,
    "feature_fraction": 0.6,
    "num_threads": 1,
    "seed": 7,
    "deterministic": True,
    "verbosity": -1,
}


@dataclass(frozen=True, slots=True)
class Boosted:
    """Trees for each horizon, and the rows that the next ones will be grown on.

    `grown`: one booster a horizon, none before there is enough history. `fitted`: rows that they
    saw. `rows`: batches as (x, lost, weight), shapes (n, features), (n, horizons) twice.
    """

    fallback: Logistic
    grown: tuple[Any, ...] = ()
    fitted: int = 0
    rows: tuple[tuple[Floats, Floats, Floats], ...] = ()
    name: str = field(default=NAME)

    def odds(self, features: Features) -> Floats:
        """Return the odds by pool, age bin and horizon."""
        if not self.grown:
            return self.fallback.odds(features)
        many = len(features.x)
        x = np.concatenate(
            [np.repeat(features.x, BINS, axis=0), np.tile(BIN_ROWS, (many, 1))], axis=1
        )
        told = [np.asarray(one.predict(x)).reshape(many, BINS) for one in self.grown]
        return np.stack(told, axis=2)

    def learned(self, batch: Batch) -> Self:
        """Return the model with the rows added, its trees grown anew if there are many more."""
        x = np.concatenate([batch.features.x, batch.age_x], axis=1)
        rows = (*self.rows, (x, batch.lost, batch.weight))
        while len(rows) > 1 and sum(len(r[0]) for r in rows[1:]) >= MOST_ROWS:
            rows = rows[1:]
        twin = replace(self, fallback=self.fallback.learned(batch), rows=rows)
        many = sum(len(r[0]) for r in rows)
        losses = sum(float(((r[1] > 0) & (r[2] > 0))[:, -1].sum()) for r in rows)
        due = max(LEAST_ROWS, min(round(self.fitted * GROWTH), MOST_ROWS))
        if many < due or losses < LEAST_LOSSES:
            return twin
        return replace(twin, grown=_grown(rows), fitted=many)

    def state(self) -> Mapping[str, Any]:
        """Return trees and fallback; the rows are left out, so new trees wait for more of them."""
        return {
            "fallback": dict(self.fallback.state()),
            "grown": [one.model_to_string() for one in self.grown],
            "fitted": self.fitted,
        }

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return the model that `state` holds."""
        trees = _lightgbm()
        return replace(
            self,
            fallback=self.fallback.restored(state["fallback"]),
            grown=tuple(trees.Booster(model_str=text) for text in state["grown"]),
            fitted=state["fitted"],
        )


def _lightgbm() -> Any:
    """Return the library. Raises ConfigError where the extra is not installed."""
    try:
        import lightgbm
    except ImportError:
        raise ConfigError(
            f"forecaster: {NAME!r} needs LightGBM, which is not installed",
            hint="pip install 'surefoot[gbm]', or take `forecaster: mixture`",
        ) from None
    return lightgbm


def _grown(rows: tuple[tuple[Floats, Floats, Floats], ...]) -> tuple[Any, ...]:
    trees = _lightgbm()
    x, lost, weight = (np.concatenate([r[i] for r in rows]) for i in range(3))
    grown = []
    for h in range(len(HORIZONS_H)):
        known = weight[:, h] > 0
        data = trees.Dataset(x[known], label=lost[known, h], weight=weight[known, h])
        grown.append(trees.train(PARAMETERS, data, num_boost_round=ROUNDS))
    return tuple(grown)


def forecaster() -> Forecaster:
    """Return the model. Raises ConfigError with a hint where LightGBM is not installed."""
    _lightgbm()
    return Mixture(NAME, lambda: (Boosted(logistic("logistic", 0.3)),), (1.0,), storm=None)
