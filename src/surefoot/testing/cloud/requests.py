"""The fake's spot requests, which moto does not keep for VMs launched by RunInstances."""

from __future__ import annotations

from dataclasses import dataclass, field

from surefoot.providers.notice import now_ms
from surefoot.testing.cloud.machines import new_id
from surefoot.testing.cloud.wire import Asked, Markup, Reply, answer, items, refusal


@dataclass(slots=True)
class SpotRequest:
    """One request: open (no VM yet), active (has one), closed or cancelled."""

    id: str
    run: str
    region: str
    state: str
    instance_id: str = ""
    visible_ms: int = 0


@dataclass(slots=True)
class Requests:
    """All spot requests by id, and the two actions on them."""

    rows: dict[str, SpotRequest] = field(default_factory=dict)

    def made(self, run: str, region: str, instance_id: str) -> str:
        """Note the request of a VM that was launched at once; return its id."""
        row = SpotRequest(new_id("sir"), run, region, "active", instance_id)
        self.rows[row.id] = row
        return row.id

    def leave_open(self, run: str, region: str, *, visible_after_ms: int) -> str:
        """Note a request without a VM; return its id."""
        row = SpotRequest(new_id("sir"), run, region, "open")
        row.visible_ms = now_ms() + visible_after_ms
        self.rows[row.id] = row
        return row.id

    def close_of(self, instance_id: str) -> None:
        """Close the request of a VM that has ended."""
        for row in self.rows.values():
            if row.instance_id == instance_id and row.state == "active":
                row.state = "closed"

    def describe(self, asked: Asked) -> Reply:
        """Answer DescribeSpotInstanceRequests: filters state and tag:surefoot-run."""
        filters = asked.filters()
        runs, states = filters.get("tag:surefoot-run"), filters.get("state")
        rows = [
            {
                "spotInstanceRequestId": row.id,
                "state": row.state,
                "type": "one-time",
                "instanceId": row.instance_id,
                "tagSet": Markup(f"<item><key>surefoot-run</key><value>{row.run}</value></item>"),
            }
            for row in self.rows.values()
            if row.region == asked.region
            and row.visible_ms <= now_ms()
            and (runs is None or row.run in runs)
            and (states is None or row.state in states)
        ]
        return answer(asked.action, items("spotInstanceRequestSet", rows))

    def cancel(self, asked: Asked) -> Reply:
        """Answer CancelSpotInstanceRequests; unknown ids are an error, as on AWS."""
        ids = asked.values("SpotInstanceRequestId")
        for each in ids:
            if each not in self.rows:
                return refusal("InvalidSpotInstanceRequestID.NotFound", each, 400)
        for each in ids:
            if self.rows[each].state in ("open", "active"):
                self.rows[each].state = "cancelled"
        rows = [{"spotInstanceRequestId": i, "state": self.rows[i].state} for i in ids]
        return answer(asked.action, items("spotInstanceRequestSet", rows))
