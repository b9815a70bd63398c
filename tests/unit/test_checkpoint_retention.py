"""Which checkpoints stay under the rules of `keep`, alone and together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surefoot.checkpoint import Best, Checkpointer, EveryNHours, Latest
from surefoot.checkpoint.commit import Live
from surefoot.checkpoint.retention import Keep, spelled, to_drop, unspelled
from surefoot.errors import CheckpointError

HOUR_MS = 3_600_000


def lives(*scores: float | None) -> list[Live]:
    """One checkpoint every half hour, of steps 0, 1, ..."""
    return [Live(f"s{n}", n, "periodic", s, n * HOUR_MS // 2) for n, s in enumerate(scores)]


def stay(found: list[Live], keep: Keep, corrupt: tuple[str, ...] = ()) -> list[int]:
    gone = to_drop(found, keep, corrupt=corrupt)
    return [item.step for item in found if item.folder not in gone]


def test_each_rule_keeps_its_own_and_rules_together_keep_all_of_theirs() -> None:
    found = lives(1.0, 9.0, None, 3.0, 8.0, 2.0)
    assert stay(found, 2) == stay(found, Latest(2)) == [4, 5]
    assert stay(found, EveryNHours(1)) == [0, 2, 4, 5]
    assert stay(found, Best(2)) == [1, 4, 5]
    assert stay(found, Best(1, highest=False)) == [0, 5]
    assert stay(found, [Latest(1), Best(1), EveryNHours(2)]) == [0, 1, 4, 5]


def test_times_that_a_log_does_not_tell_keep_everything() -> None:
    found = [Live("a", 1), Live("b", 2)]
    assert stay(found, EveryNHours(1)) == [1, 2]


rules = st.one_of(
    st.builds(Latest, st.integers(1, 4)),
    st.builds(EveryNHours, st.floats(0.1, 9)),
    st.builds(Best, st.integers(1, 3), st.booleans()),
)


@given(
    st.lists(st.none() | st.floats(-1, 1), min_size=1, max_size=12),
    st.lists(rules, min_size=1, max_size=3),
    st.sets(st.integers(0, 11)),
)
def test_the_newest_good_one_is_never_dropped(
    scores: list[float | None], keep: list[Latest | EveryNHours | Best], bad: set[int]
) -> None:
    found = lives(*scores)
    good = [item.step for item in found if item.step not in bad]
    kept = stay(found, keep, tuple(f"s{n}" for n in bad))
    assert not good or max(good) in kept
    assert good or kept == [item.step for item in found], "with none good, none is dropped"
    assert unspelled(spelled(keep)) == tuple(keep)


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_the_best_and_the_latest_stay_on_disk(tmp_path: Path, writer: str) -> None:
    keep = [Latest(1), Best(1)]
    how = "process" if writer == "process" else "thread"
    with Checkpointer(tmp_path, keep, writer=how) as checkpointer:  # type: ignore[arg-type]
        for step, score in enumerate([0.1, 0.9, 0.3, float("nan"), 0.2]):
            checkpointer.save(step, {"w": torch.ones(3)}, score=score, blocking=True)
    with Checkpointer(tmp_path, read_only=True) as alone:
        assert alone.steps() == [4, 1]


@pytest.mark.parametrize("keep", [0, [], "all", [3]])
def test_what_is_no_rule_is_refused(tmp_path: Path, keep: object) -> None:
    with pytest.raises(CheckpointError, match="keep"):
        Checkpointer(tmp_path, keep)  # type: ignore[arg-type]
