"""A wide prior for rates, and what counts of losses over exposure make of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from surefoot.core.forecast.port import Floats

LOW_Z, HIGH_Z = -1.2815515655446004, 1.2815515655446004
"""Normal quantiles of an 80 % interval."""


@dataclass(frozen=True, slots=True)
class RatePrior:
    """A mixture of Gamma distributions over a rate per hour, spread over many decades.

    Each component is Gamma(shape, shape / centre). One Gamma would need thousands of hours to
    leave its own scale; the mixture learns the scale itself from a few events, so that one prior
    serves a market of months and a replay of three minutes. Weights are log-normal about
    `centre_per_h`: tails any heavier would let the topmost components rule the prior mean.
    """

    centre_per_h: float = 0.1
    spread: float = 1.4
    """Standard deviation of the natural logarithm of the rate."""
    shape: float = 1.0
    lowest_per_h: float = 1e-4
    highest_per_h: float = 1e3
    components: int = 16

    def centres(self) -> Floats:
        """Return the components' mean rates, shape (components,)."""
        return np.geomspace(self.lowest_per_h, self.highest_per_h, self.components)

    def log_weights(self) -> Floats:
        """Return the components' log prior weights, normalised, shape (components,)."""
        z = (np.log(self.centres()) - math.log(self.centre_per_h)) / self.spread
        log_weight = -0.5 * z * z
        return np.asarray(log_weight - np.logaddexp.reduce(log_weight), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class RateBelief:
    """Believed rates per hour of n pools: means and an 80 % interval, each of shape (n,)."""

    mean: Floats
    low: Floats
    high: Floats


def posteriors(prior: RatePrior, events: Floats, exposure_h: Floats) -> RateBelief:
    """Return the beliefs after `events` in `exposure_h`; finite and above 0 for any counts.

    Conjugate: component j becomes Gamma(shape + events, shape / centre_j + exposure), and its
    weight is multiplied by its evidence (Gelman et al., Bayesian Data Analysis, 2.6).
    """
    return _posteriors(_components(prior), prior.shape, events, exposure_h)


def posteriors_of(
    priors: tuple[RatePrior, ...], events: tuple[float, ...], exposure_h: tuple[float, ...]
) -> RateBelief:
    """Return as `posteriors` does, each row by a prior of its own (equally many components)."""
    shapes = np.array([prior.shape for prior in priors])[:, None]
    return _posteriors(_stacked(priors), shapes, np.array(events), np.array(exposure_h))


def _posteriors(
    components: tuple[Floats, Floats], base: float | Floats, events: Floats, exposure_h: Floats
) -> RateBelief:
    shape = base + np.maximum(events, 0.0)[:, None]
    inverse, log_prior = components
    total = inverse + np.maximum(exposure_h, 0.0)[:, None]
    log_weight = log_prior - shape * np.log(total)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    means = shape / total
    mean = (weight * means).sum(axis=1)
    second = (weight * means * means * (1.0 + 1.0 / shape)).sum(axis=1)
    return RateBelief(mean, *_interval(mean, np.maximum(second - mean * mean, 1e-300)))


def posterior(prior: RatePrior, events: float, exposure_h: float) -> tuple[float, float, float]:
    """Return (mean, low, high) for one pool, as `posteriors` does."""
    one = posteriors(prior, np.array([events]), np.array([exposure_h]))
    return float(one.mean[0]), float(one.low[0]), float(one.high[0])


@lru_cache(maxsize=32)
def _components(prior: RatePrior) -> tuple[Floats, Floats]:
    inverse = prior.shape / prior.centres()
    return inverse, prior.log_weights() + prior.shape * np.log(inverse)


@lru_cache(maxsize=32)
def _stacked(priors: tuple[RatePrior, ...]) -> tuple[Floats, Floats]:
    found = [_components(prior) for prior in priors]
    return np.stack([a for a, _ in found]), np.stack([b for _, b in found])


def _interval(mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Return the 10 % and 90 % points of log-normals with these means and variances."""
    sigma = np.sqrt(np.log1p(variance / (mean * mean)))
    middle = np.log(mean) - sigma * sigma / 2.0
    return np.exp(middle + LOW_Z * sigma), np.exp(middle + HIGH_Z * sigma)
