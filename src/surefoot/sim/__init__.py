"""What a job would have done on a recorded market, decided by the code of the live controller."""

from __future__ import annotations

from surefoot.core.decide import Policy
from surefoot.core.event import State
from surefoot.core.forecast import get_forecaster
from surefoot.core.forecast.port import Forecaster
from surefoot.core.job import Job
from surefoot.core.policy import get_policy
from surefoot.core.replay import Replay
from surefoot.core.trace import History, Trace
from surefoot.sim.engine import Engine, Setup
from surefoot.sim.model import CostModel
from surefoot.sim.outcome import Outcome

__all__ = ["CostModel", "Outcome", "simulate"]


def simulate(
    job: Job,
    trace: Trace | Replay,
    *,
    policy: Policy | str | None = None,
    forecaster: Forecaster | str | None = None,
    model: CostModel | None = None,
    seed: int = 0,
    start_ms: int | None = None,
    horizon_ms: int | None = None,
    history: History | None = None,
    known: State | None = None,
    keep_events: bool = False,
) -> Outcome:
    """Return what `job` does on `trace` from `start_ms` for at most `horizon_ms`.

    Instants (the job's deadline too) are on the trace's clock. Policy and forecaster default to
    the job's; `model` holds what boots, saves and the rest cost. `history` is what is known of
    the pools before the start; it is added to. `known` holds the costs that the run believes in
    before it measures any; default: those of `model`, as after a run before. Equal arguments give
    equal outcomes, byte for byte. Raises ValueError for a negative horizon or a start outside of
    the trace.
    """
    replay = trace if isinstance(trace, Replay) else Replay(trace)
    whole = replay.trace
    start = whole.start_ms if start_ms is None else start_ms
    if not whole.start_ms <= start <= whole.end_ms:
        raise ValueError(
            f"start {start} ms is not within trace {whole.name} "
            f"({whole.start_ms} to {whole.end_ms} ms)"
        )
    if horizon_ms is not None and horizon_ms < 0:
        raise ValueError(f"the horizon must be 0 or more, got {horizon_ms} ms")
    end = whole.end_ms if horizon_ms is None else min(whole.end_ms, start + horizon_ms)
    chosen = policy if policy is not None else job.policy
    model_of = forecaster if forecaster is not None else job.forecaster
    setup = Setup(
        job=job,
        replay=replay,
        policy=get_policy(chosen) if isinstance(chosen, str) else chosen,
        forecaster=get_forecaster(model_of) if isinstance(model_of, str) else model_of,
        model=model or CostModel(),
        seed=seed,
        start_ms=start,
        end_ms=end,
        history=history,
        known=known,
        keep=keep_events,
    )
    engine = Engine(setup)
    engine.run()
    return _outcome(engine)


def _outcome(engine: Engine) -> Outcome:
    setup, account = engine.setup, engine.books.account
    result, message = engine.result or ("failed", "")
    end_ms = engine.books.now_ms
    return Outcome(
        job=setup.job.name,
        trace=setup.replay.trace.name,
        policy=setup.policy.name,
        forecaster=setup.forecaster.name,
        seed=setup.seed,
        start_ms=setup.start_ms,
        end_ms=end_ms,
        result=result,
        message=message,
        goodput=account.goodput,
        bill=account.bill,
        bill_by_pool=account.bill_by_pool(),
        counts=account.counts,
        summary=account.summary(),
        unknown_share=setup.replay.unknown_share(setup.job.pools, setup.start_ms, end_ms),
        floor_short_ms=engine.books.floor.short_ms,
        floor_broken_ms=engine.books.floor.broken_ms,
        events_seen=engine.books.seen,
        decisions_made=engine.decisions_made,
        events=tuple(engine.books.events),
        decisions=tuple(engine.decisions),
    )
