"""Spot requests that must not outlive their caller: found by tag and cancelled, again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from surefoot.providers.aws.client import Clients
from surefoot.providers.aws.errors import asking, code_of
from surefoot.providers.aws.listing import RUN_TAG
from surefoot.providers.aws.settings import AwsSettings

PACE_MS = 30_000
"""Between two looks at a run's requests."""


@dataclass(slots=True)
class SpotRequests:
    """Cancels requests of VMs that we ended, and any that stayed open without a VM.

    New requests may be missing from AWS's lists for a while: what we know ourselves is cancelled
    whether it is listed or not, and the look is repeated for as long as the run is listed.
    """

    settings: AwsSettings
    clients: Clients
    now_ms: Callable[[], int]
    known: dict[str, str] = field(default_factory=dict)
    """Instance id -> id of its request."""
    _due_ms: dict[str, int] = field(default_factory=dict)

    def note(self, instance: dict[str, Any]) -> None:
        """Remember which request an instance came from."""
        request = instance.get("SpotInstanceRequestId")
        if request:
            self.known[instance["InstanceId"]] = request

    def cancel_of(self, instance_id: str, region: str) -> None:
        """Cancel the request of an instance, if it had one."""
        self.cancel_all((instance_id,), region)

    def cancel_all(self, instance_ids: Iterable[str], region: str) -> None:
        """Cancel the requests of instances of one region, those that had one, in one call."""
        self._cancel(region, [self.known[each] for each in instance_ids if each in self.known])

    def sweep(self, run: str, regions: Iterable[str]) -> None:
        """Cancel all open requests of a run, if a look is due; active ones belong to VMs."""
        now_ms = self.now_ms()
        if now_ms < self._due_ms.get(run, 0):
            return
        for region in regions:
            self._cancel(region, self._open(run, region))
        self._due_ms[run] = now_ms + PACE_MS

    def _open(self, run: str, region: str) -> list[str]:
        filters = [
            {"Name": f"tag:{RUN_TAG}", "Values": [run]},
            {"Name": "state", "Values": ["open"]},
        ]
        with asking(f"open spot requests of {run} in {region}"):
            pages = (
                self.clients.ec2(region)
                .get_paginator("describe_spot_instance_requests")
                .paginate(Filters=filters, PaginationConfig={"PageSize": self.settings.page_size})
            )
            rows = [row for page in pages for row in page["SpotInstanceRequests"]]
        return [row["SpotInstanceRequestId"] for row in rows]

    def _cancel(self, region: str, requests: list[str]) -> None:
        if not requests:
            return
        with asking(f"cancel spot requests {', '.join(requests)}"):
            try:
                self.clients.ec2(region).cancel_spot_instance_requests(
                    SpotInstanceRequestIds=requests
                )
            except Exception as error:
                if code_of(error) != "InvalidSpotInstanceRequestID.NotFound":
                    raise
