"""How a run stands, as JSON values: what `surefoot status` prints and the API answers."""

from __future__ import annotations

from typing import Any

from surefoot.report.card import Card
from surefoot.report.story import Story
from surefoot.report.summary import figures

LAST_LINES = 8


def standing(card: Card, story: Story, state: str) -> dict[str, Any]:
    """Return how a run stands: step, VMs by pool, figures, newest lines.

    `state` is the outcome, or what stands for it while there is none.
    """
    progress = story.state.progress
    begun = story.told or story.state.now_ms
    return {
        "run": card.run,
        "name": card.name,
        "state": state,
        "step": progress.steps_done,
        "total_steps": card.steps,
        "steps_safe": progress.steps_safe,
        "members": progress.members,
        "vms": [
            {"pool": pool, "capacity": capacity, **{s.value: n for s, n in counts.items()}}
            for pool, capacity, counts in story.fleet_rows()
        ],
        "last_event_ms": story.state.now_ms if begun else None,
        "figures": figures(story),
        "events": [{"at_ms": at, "text": text} for at, (_, text) in story.recent(LAST_LINES)],
    }
