"""The pool's recent rate: losses over exposure, both fading with a half-life."""

from __future__ import annotations

from surefoot.core.forecast.climatology import RateExpert
from surefoot.core.forecast.features import HALF_LIVES_H

EWMA = RateExpert("ewma", HALF_LIVES_H.index(6.0))
"""Half-life 6 h, resting on the longer memories where there is little exposure."""
