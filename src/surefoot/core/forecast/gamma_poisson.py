"""A pool's loss rate from its own losses over its own VM-hours, with forgetting and a prior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from surefoot.core.forecast.ages import mean_factor
from surefoot.core.forecast.evidence import Evidence, Rules
from surefoot.core.forecast.port import Beliefs, Forecast
from surefoot.core.forecast.prior import RatePrior, posteriors_of
from surefoot.core.forecast.supply import SupplyPrior, expect_supply, spell_end
from surefoot.core.market import Pool
from surefoot.core.trace import History


@dataclass(frozen=True, slots=True)
class GammaPoisson:
    """Per-pool Gamma-Poisson rate times a shared age curve (theory notes, C.5)."""

    name: str = "gamma_poisson"
    rules: Rules = field(default_factory=Rules)
    prior: RatePrior = field(default_factory=RatePrior)
    event_prior: RatePrior = field(default_factory=lambda: RatePrior(centre_per_h=0.15))
    supply: SupplyPrior = field(default_factory=SupplyPrior)

    def fit(self, history: History, *, now_ms: int) -> Beliefs:
        """Return beliefs formed from scratch from all of `history` up to `now_ms`."""
        return PoolBeliefs(self, {}).update(history, now_ms=now_ms)


@dataclass(frozen=True, slots=True)
class PoolBeliefs:
    """The digest of every pool, and the model that reads them."""

    model: GammaPoisson
    pools: Mapping[Pool, Evidence]

    def update(self, history: History, *, now_ms: int) -> Beliefs:
        """Return the beliefs with what `history` gained; the old ones stay as they were."""
        pools = dict(self.pools)
        for pool, record in history.pools.items():
            old = pools.get(pool)
            if old is None or old.behind(record):
                evidence = old.copied() if old is not None else Evidence()
                evidence.take(record, self.model.rules)
                pools[pool] = evidence
        return PoolBeliefs(self.model, pools)

    def predict(self, pool: Pool, *, now_ms: int) -> Forecast:
        """Return the forecast for one pool; never raises for a pool without history."""
        model = self.model
        known = self.pools.get(pool)
        evidence = known.copied() if known is not None else Evidence()
        if evidence.at_ms >= 0:
            evidence.advance(now_ms, model.rules)
        rates = posteriors_of(
            (model.prior, model.event_prior),
            (evidence.losses, evidence.events),
            (evidence.exposure_h, evidence.held_h),
        )
        mean, events = (float(rate) for rate in rates.mean)
        typical = mean_factor(model.rules.curve, evidence.ages_h(now_ms), 1.0)
        supply = expect_supply(evidence, model.supply, model.rules.curve, now_ms=now_ms)
        return Forecast(
            pool=pool,
            at_ms=now_ms,
            hazard=model.rules.curve.scaled(mean),
            hazard_low=float(rates.low[0]) * typical,
            hazard_high=float(rates.high[0]) * typical,
            launch_odds=supply.launch_odds,
            window_h=supply.window_h,
            in_drought=supply.in_drought,
            holdable=supply.holdable,
            events_per_h=events,
            event_share=_share(evidence),
            observed_losses=evidence.observed_losses,
            notes=_notes(evidence),
            window=spell_end(evidence, model.supply, model.rules.curve, is_open=True),
            drought=spell_end(evidence, model.supply, model.rules.curve, is_open=False),
            spell_age_h=supply.spell_age_h,
            seen_to_h=evidence.seen_to_h(now_ms),
        )

    def to_dict(self) -> Mapping[str, object]:
        """Return the state as JSON-able values."""
        return {
            "model": self.model.name,
            "pools": {str(pool): one.to_dict() for pool, one in self.pools.items()},
        }


def _share(evidence: Evidence) -> float:
    """Return the expected share of held VMs that one pool event takes: prior one half."""
    return min(1.0, max(0.01, (evidence.shares + 0.5) / (evidence.events + 1.0)))


def _notes(evidence: Evidence) -> tuple[str, ...]:
    if evidence.observed_losses == 0:
        return (f"no events seen in {evidence.observed_h:.1f} VM-hours: rests on the prior",)
    return (f"{evidence.observed_losses} losses in {evidence.observed_h:.1f} VM-hours",)
