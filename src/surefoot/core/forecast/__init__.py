"""The forecasting models by name: what is known of a pool becomes what to expect of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from surefoot.core.forecast.gamma_poisson import GammaPoisson
from surefoot.core.forecast.port import (
    Beliefs,
    Forecast,
    Forecaster,
    Hazard,
    constant_hazard,
    predict_all,
)
from surefoot.errors import ConfigError

__all__ = [
    "DEFAULT",
    "FORECASTERS",
    "Beliefs",
    "Forecast",
    "Forecaster",
    "Hazard",
    "constant_hazard",
    "get_forecaster",
    "predict_all",
]

DEFAULT = "mixture"

FORECASTERS: Mapping[str, Forecaster] = {
    "gamma_poisson": GammaPoisson(),
    "mixture": replace(GammaPoisson(), name="mixture"),
}


def get_forecaster(name: str) -> Forecaster:
    """Return the model registered as `name`. Raises ConfigError naming the nearest one."""
    if name in FORECASTERS:
        return FORECASTERS[name]
    near = get_close_matches(name, FORECASTERS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"forecaster: no model is called {name!r}",
        hint=hint + "known: " + ", ".join(sorted(FORECASTERS)),
    )
