"""The default model: several experts, weighed online by how well they foretold each pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from surefoot.core.forecast.evidence import Evidence, Rules
from surefoot.core.forecast.expert import (
    HORIZONS_H,
    LEAST_ODDS,
    MOST_ODDS,
    Batch,
    Expert,
    row_odds,
)
from surefoot.core.forecast.features import AGE_BINS_H, Features, Ints, features
from surefoot.core.forecast.lessons import (
    STEPS_AHEAD,
    Labelled,
    Snapshot,
    batch_of,
    label,
    snapshot,
)
from surefoot.core.forecast.port import Beliefs, Floats, Forecast
from surefoot.core.forecast.prior import RatePrior
from surefoot.core.forecast.storm import StormRule, shift, storm, worse
from surefoot.core.forecast.supply import SupplyPrior
from surefoot.core.forecast.tell import tell
from surefoot.core.forecast.watch import STEP_MS, Watch
from surefoot.core.market import Pool
from surefoot.core.trace import History

HOUR_BIN = AGE_BINS_H.index(1.0)

GROUP_EDGES_H: tuple[float, ...] = (0.0, 1.0, 20.0)
"""Age groups in which the experts are weighed apart: what knows fresh VMs well may know
nothing of old ones, and of a product's last hour."""
GROUP_OF_BIN = np.searchsorted(np.array(GROUP_EDGES_H), np.array(AGE_BINS_H), "right") - 1
GROUPS = len(GROUP_EDGES_H)
IN_GROUP = np.eye(GROUPS)[GROUP_OF_BIN]
"""Shape (bins, groups): 1 where the bin is in the group."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts and how they are weighed. With one expert it is that model alone."""

    name: str
    experts: Callable[[], tuple[Expert, ...]]
    prior: tuple[float, ...]
    """Weight of each expert before anything is known; they add up to 1."""
    rules: Rules = field(default_factory=Rules)
    rate_prior: RatePrior = field(default_factory=RatePrior)
    supply: SupplyPrior = field(default_factory=SupplyPrior)
    storm: StormRule | None = field(default_factory=StormRule)
    lesson_steps: int = 16
    """Grid steps between two lessons."""
    lesson_rows: int = 2_000
    """Most rows of one lesson."""
    score_half_life_h: float = 720.0
    """Time after which a past score counts half."""

    def fit(self, history: History, *, now_ms: int) -> Beliefs:
        """Return beliefs formed from scratch from all of `history` up to `now_ms`."""
        experts = self.experts()
        scores = np.zeros((GROUPS, len(HORIZONS_H), len(experts)))
        blank = MixtureBeliefs(self, Watch(self.rules), experts, scores[None, 0][:0], scores)
        return blank.update(history, now_ms=now_ms)

    def restored(self, body: Mapping[str, Any]) -> Beliefs:
        """Return the beliefs that `MixtureBeliefs.to_dict` wrote."""
        return MixtureBeliefs.from_dict(self, body)


@dataclass(slots=True)
class MixtureBeliefs:
    """The state of all pools, the experts, and their decayed log scores.

    `pool_scores`: (n, horizons, experts). `all_scores`: (groups, horizons, experts). A score is
    a sum of weight x log likelihood, the best expert's taken off. Treat it as immutable:
    `update` returns another.
    """

    model: Mixture
    watch: Watch
    experts: tuple[Expert, ...]
    pool_scores: Floats
    all_scores: Floats
    pending: tuple[Snapshot, ...] = ()
    lessons: tuple[Labelled, ...] = ()
    usual_vms: float = 1.0
    rows: float = 0.0

    def update(self, history: History, *, now_ms: int) -> Beliefs:
        """Return the beliefs with what `history` gained; the old ones stay as they were."""
        if not self.watch.news(history, now_ms):
            return self
        twin = replace(self, watch=self.watch.copied(), pool_scores=self.pool_scores)
        twin.watch.absorb(history, now_ms, lambda watch, at_ms: twin._step(history, at_ms))
        return twin

    def predict(self, pool: Pool, *, now_ms: int) -> Forecast:
        """Return the forecast for one pool; never raises for a pool without history."""
        return self.predict_many((pool,), now_ms=now_ms)[pool]

    def predict_many(self, pools: Any, *, now_ms: int) -> dict[Pool, Forecast]:
        """Return the forecast of each pool, equal to `predict` of each."""
        watch = self.watch
        unique = list(dict.fromkeys(pools))
        rows = np.array([watch.index.get(pool, -1) for pool in unique], dtype=np.int64)
        raw = watch.raw([int(i) for i in rows], now_ms)
        fresh = rows < 0
        rows = rows.copy()
        rows[fresh] = len(watch.evidence) + np.arange(int(fresh.sum()))
        every = features(raw)
        seen = Features(every.x[rows], every.rates[rows], every.since_h[rows])
        weights = self.weights(rows)
        odds = self._mixed(seen, weights)
        stormy = None
        if self.model.storm is not None:
            expected = -np.log1p(-odds[:, HOUR_BIN, 1])
            sums = raw.sums[rows]
            stormy = worse(
                storm(self.model.storm, sums, expected),
                shift(self.model.storm, sums, seen.rates[:, 0]),
            )
        blank = Evidence()
        evidence = [watch.evidence[i] if i < len(watch.evidence) else blank for i in rows]
        mean = weights.mean(axis=(1, 2))
        shown = {one.name: mean[:, k] for k, one in enumerate(self.experts)}
        return tell(self.model, unique, evidence, seen, odds, stormy, shown, now_ms)

    def weights(self, rows: Ints) -> Floats:
        """Return the weight of each expert for pools by number: (n, groups, horizons, experts).

        The score over all pools (by age) counts whole, the pool's own (over all ages) a quarter:
        a pool's own record is short, and the same experts tend to be right everywhere.
        """
        known = np.zeros((len(rows), *self.pool_scores.shape[1:]))
        old = rows < len(self.pool_scores)
        known[old] = self.pool_scores[rows[old]]
        log_weight = np.log(np.array(self.model.prior)) + (
            self.all_scores[None] + 0.25 * known[:, None]
        )
        log_weight -= log_weight.max(axis=-1, keepdims=True)
        weight = np.exp(log_weight) + 1e-3 * np.array(self.model.prior)
        return np.asarray(weight / weight.sum(axis=-1, keepdims=True), dtype=np.float64)

    def to_dict(self) -> Mapping[str, object]:
        """Return the state as JSON-able values; rows whose future is open are left out."""
        watch = self.watch
        return {
            "model": self.model.name,
            "pools": [str(pool) for pool in watch.index],
            "evidence": [one.to_dict() for one in watch.evidence],
            "sums": watch.sums.tolist(),
            "levels": watch.levels.tolist(),
            "grid_ms": watch.grid_ms,
            "experts": [dict(one.state()) for one in self.experts],
            "pool_scores": self.pool_scores.tolist(),
            "all_scores": self.all_scores.tolist(),
            "usual_vms": self.usual_vms,
            "rows": self.rows,
        }

    @classmethod
    def from_dict(cls, model: Mixture, body: Mapping[str, Any]) -> MixtureBeliefs:
        """Read what `to_dict` wrote."""
        watch = Watch(model.rules)
        history = History({Pool.parse(text): None for text in body["pools"]})  # type: ignore[misc]
        watch._admit(history)
        watch.evidence = [Evidence.from_dict(one) for one in body["evidence"]]
        if watch.evidence:
            watch.sums, watch.levels = np.array(body["sums"]), np.array(body["levels"])
        watch.grid_ms = body["grid_ms"]
        experts = tuple(
            one.restored(state) for one, state in zip(model.experts(), body["experts"], strict=True)
        )
        shape = (len(body["pool_scores"]), len(HORIZONS_H), len(experts))
        return cls(
            model,
            watch,
            experts,
            np.array(body["pool_scores"], dtype=np.float64).reshape(shape),
            np.array(body["all_scores"], dtype=np.float64),
            usual_vms=body["usual_vms"],
            rows=body["rows"],
        )

    def _mixed(self, seen: Features, weights: Floats) -> Floats:
        """Return the odds of loss by pool, age bin and horizon, the longer never below."""
        total: Floats = np.zeros(())
        for k, expert in enumerate(self.experts):
            odds = np.clip(expert.odds(seen), LEAST_ODDS, MOST_ODDS)
            total = total + weights[:, GROUP_OF_BIN][..., k] * odds
        return np.asarray(np.maximum.accumulate(total, axis=2), dtype=np.float64)

    def _step(self, history: History, at_ms: int) -> None:
        """At a grid instant: take rows, label those whose future is known, now and then learn."""
        now = snapshot(self.watch, at_ms)
        if now is not None:
            self.pending = (*self.pending, now)
        due_ms = at_ms - STEPS_AHEAD * STEP_MS
        closed = [one for one in self.pending if one.at_ms <= due_ms]
        if not closed:
            return
        pools = list(self.watch.index)
        self.pending = self.pending[len(closed) :]
        self.lessons = (*self.lessons, *(label(one, history, pools) for one in closed))
        if len(self.lessons) >= self.model.lesson_steps:
            self._learn()

    def _learn(self) -> None:
        """Score every expert on the lessons, then let each learn from them."""
        held = sum(len(k) for one in self.lessons for k in one.seen.keys)
        rows = sum(len(set(one.seen.held)) for one in self.lessons)
        self.rows = self.rows + rows
        self.usual_vms += (held / rows - self.usual_vms) * min(1.0, rows / self.rows)
        batch, owner = batch_of(self.lessons, self.usual_vms, self.model.lesson_rows)
        span = len(self.lessons) * STEP_MS / 3_600_000
        fade = 2.0 ** (-span / self.model.score_half_life_h)
        scores = np.zeros((len(self.watch.evidence), *self.pool_scores.shape[1:]))
        scores[: len(self.pool_scores)] = self.pool_scores * fade
        gains = self._gains(batch)
        np.add.at(scores, owner, gains)
        self.pool_scores = scores
        among = np.einsum("ng,nhk->ghk", batch.bins @ IN_GROUP, gains)
        self.all_scores = self.all_scores * fade + among
        self.experts = tuple(expert.learned(batch) for expert in self.experts)
        self.lessons = ()

    def _gains(self, batch: Batch) -> Floats:
        """Return each row's weighted log score by horizon and expert, below the best one's."""
        gains = np.empty((len(batch), *self.pool_scores.shape[1:]))
        for k, expert in enumerate(self.experts):
            odds = np.clip(row_odds(expert.odds(batch.features), batch.bins), 0.003, 0.997)
            log_score = batch.lost * np.log(odds) + (1.0 - batch.lost) * np.log1p(-odds)
            gains[:, :, k] = batch.weight * log_score
        return np.asarray(gains - gains.max(axis=2, keepdims=True), dtype=np.float64)
