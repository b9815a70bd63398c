"""The forecasting models by name: what is known of a pool becomes what to expect of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module

from surefoot.core.forecast.ages import weibull
from surefoot.core.forecast.climatology import RateExpert
from surefoot.core.forecast.evidence import Rules
from surefoot.core.forecast.ewma import EWMA
from surefoot.core.forecast.expert import Expert
from surefoot.core.forecast.gamma_poisson import GammaPoisson
from surefoot.core.forecast.kaplan_meier import LifeTable
from surefoot.core.forecast.logistic import logistic
from surefoot.core.forecast.mixture import Mixture
from surefoot.core.forecast.persistence import Persistence
from surefoot.core.forecast.port import (
    Beliefs,
    Forecast,
    Forecaster,
    Hazard,
    constant_hazard,
    predict_all,
)
from surefoot.core.forecast.spells import WithSpells
from surefoot.errors import ConfigError

__all__ = [
    "DEFAULT",
    "ELSEWHERE",
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


def _default_experts() -> tuple[Expert, ...]:
    return (
        logistic("logistic", 0.3),
        logistic("logistic, loose", 0.05),
        LifeTable(),
        RateExpert(),
    )


def _alone(name: str, expert: Callable[[], Expert]) -> Mixture:
    """Return a model that consists of one expert."""
    return Mixture(name, lambda: (expert(),), (1.0,), storm=None)


_MODELS: tuple[Forecaster, ...] = (
    WithSpells(Mixture(DEFAULT, _default_experts, (0.6, 0.2, 0.15, 0.05))),
    GammaPoisson(),
    GammaPoisson("weibull", Rules(curve=weibull(0.6))),
    _alone("climatology", RateExpert),
    _alone("persistence", Persistence),
    _alone("ewma", lambda: EWMA),
    _alone("life_table", LifeTable),
    _alone("logistic", lambda: logistic("logistic", 0.3)),
)

FORECASTERS: Mapping[str, Forecaster] = {model.name: model for model in _MODELS}

ELSEWHERE: Mapping[str, str] = {"lightgbm": "surefoot.boosted"}
"""Models that need more than numpy: the module whose `forecaster()` makes each."""


def get_forecaster(name: str) -> Forecaster:
    """Return the model registered as `name`.

    Raises ConfigError naming the nearest one, or what to install for it.
    """
    if name in FORECASTERS:
        return FORECASTERS[name]
    if name in ELSEWHERE:
        made: Forecaster = import_module(ELSEWHERE[name]).forecaster()
        return made
    known = sorted((*FORECASTERS, *ELSEWHERE))
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"forecaster: no model is called {name!r}",
        hint=hint + "known: " + ", ".join(known),
    )
