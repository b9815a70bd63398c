"""Logistic regression on age, rates at many memories, supply and siblings, learned online."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from surefoot.core.forecast import logistic_prior
from surefoot.core.forecast.expert import HORIZONS_H, Batch
from surefoot.core.forecast.features import AGE_NAMES, BIN_ROWS, POOL_NAMES, Features
from surefoot.core.forecast.port import Floats

SIZE = len(POOL_NAMES) + len(AGE_NAMES)
_NEWTON_STEPS = 3
_LONGEST_STEP = 1.5
"""No Newton step moves a row's log odds by more: far from the top the curvature misleads."""


@dataclass(frozen=True, slots=True)
class Logistic:
    """A Gaussian belief about the weights for each horizon, updated batch by batch.

    `mean`: (horizons, SIZE). `precision`: (horizons, SIZE, SIZE). A batch moves the mean to the
    maximum of (belief so far) x (likelihood of the batch) and adds its curvature to the
    precision: a Laplace approximation kept up online (Spiegelhalter and Lauritzen, 1990).
    """

    name: str
    mean: Floats
    precision: Floats

    def odds(self, features: Features) -> Floats:
        """Return the odds by pool, age bin and horizon."""
        split = len(POOL_NAMES)
        pool = features.x @ self.mean[:, :split].T
        age = BIN_ROWS @ self.mean[:, split:].T
        return sigmoid(pool[:, None, :] + age[None, :, :])

    def learned(self, batch: Batch) -> Self:
        """Return the belief after the rows."""
        x = np.concatenate([batch.features.x, batch.age_x], axis=1)
        mean, precision = self.mean.copy(), self.precision.copy()
        for h in range(len(HORIZONS_H)):
            weight, lost = batch.weight[:, h], batch.lost[:, h]
            mean[h], precision[h] = updated(mean[h], precision[h], x, lost, weight)
        return replace(self, mean=mean, precision=precision)

    def state(self) -> Mapping[str, Any]:
        """Return the belief."""
        return {"mean": self.mean.tolist(), "precision": self.precision.tolist()}

    def restored(self, state: Mapping[str, Any]) -> Self:
        """Return the belief that `state` holds."""
        return replace(self, mean=np.array(state["mean"]), precision=np.array(state["precision"]))


def logistic(name: str, trust: float) -> Logistic:
    """Return the model with its prior: `trust` scales how many rows the prior is worth."""
    mean, precision = logistic_prior.load(SIZE)
    return Logistic(name, mean, precision * trust)


def sigmoid(z: Floats) -> Floats:
    """Return 1 / (1 + exp(-z)), without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * z)), dtype=np.float64)


def updated(
    mean: Floats, precision: Floats, x: Floats, lost: Floats, weight: Floats
) -> tuple[Floats, Floats]:
    """Return mean and precision after rows x of shape (n, d), shares lost and weights (n,)."""
    if not np.any(weight > 0.0):
        return mean, precision
    start, curved = mean, precision
    for _ in range(_NEWTON_STEPS):
        odds = sigmoid(x @ mean)
        slope = x.T @ (weight * (lost - odds)) - precision @ (mean - start)
        curved = precision + x.T @ ((weight * odds * (1.0 - odds))[:, None] * x)
        step = np.linalg.solve(curved, slope)
        longest = float(np.max(np.abs(x @ step)))
        mean = mean + step * min(1.0, _LONGEST_STEP / max(longest, 1e-12))
    return mean, curved
