"""What AWS asks for its VMs now: spot price history, the price list, and how old each answer is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.units import micro_usd
from surefoot.errors import SurefootError
from surefoot.providers.aws.client import PRICING_REGION, Clients
from surefoot.providers.aws.errors import asking
from surefoot.providers.aws.settings import AwsSettings

PRODUCT = "Linux/UNIX"
MINIMUM_MS = 60_000
"""AWS bills Linux VMs by the second, one minute at least."""

LIST_LIFE_MS = 24 * 3_600_000
"""On-demand prices change a few times a year: one look a day."""

LIST_RETRY_MS = 15 * 60_000
"""How long a price list that could not be had is left alone."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A price, micro-dollars per VM-hour, and when AWS last confirmed it (epoch ms)."""

    micro_usd_h: int
    seen_ms: int


@dataclass(slots=True)
class Prices:
    """Prices of a set of pools, refreshed when they are due; `now_ms` tells the time.

    A refresh that misses pools leaves their last prices, which age; nothing is ever free, and
    what has no fresh price is not offered.
    """

    settings: AwsSettings
    clients: Clients
    now_ms: Callable[[], int]
    spot: dict[Pool, Quote] = field(default_factory=dict)
    listed: dict[tuple[str, str], Quote] = field(default_factory=dict)
    """On-demand prices by (region, type)."""
    trouble: dict[str, str] = field(default_factory=dict)
    """What could not be asked lately, and why, for people."""
    _due_ms: int = 0
    _list_due_ms: dict[str, int] = field(default_factory=dict)

    def offerings(self, pools: Iterable[Pool]) -> tuple[Offering, ...]:
        """Return what can be bought in `pools`, refreshing prices first if that is due.

        Raises what the refresh raises when no price at all is fresh enough.
        """
        wanted = tuple(pools)
        trouble = self._refresh(wanted)
        found = tuple(self._offers(wanted))
        if not found and trouble is not None:
            raise trouble
        return found

    def price(self, pool: Pool, capacity: Capacity) -> int | None:
        """Return the price that is known and fresh, micro-dollars per hour."""
        now_ms = self.now_ms()
        if capacity is Capacity.SPOT:
            quote = self.spot.get(pool)
            fresh = quote is not None and now_ms - quote.seen_ms <= self.settings.max_age_ms
            return quote.micro_usd_h if quote is not None and fresh else None
        told = self.settings.told_on_demand(pool.region, pool.instance_type)
        if told is not None:
            return told
        listed = self.listed.get((pool.region, pool.instance_type))
        # A price list stays valid while it cannot be asked again, but not for ever.
        kept = listed is not None and now_ms - listed.seen_ms <= 2 * LIST_LIFE_MS
        return listed.micro_usd_h if listed is not None and kept else None

    def ages_ms(self) -> Mapping[Pool, int]:
        """Return how long ago AWS confirmed each pool's spot price."""
        now_ms = self.now_ms()
        return {pool: now_ms - quote.seen_ms for pool, quote in self.spot.items()}

    def _offers(self, pools: Iterable[Pool]) -> Iterator[Offering]:
        for pool in pools:
            for capacity in (Capacity.SPOT, Capacity.ON_DEMAND):
                price = self.price(pool, capacity)
                if price is not None:
                    speed = self.settings.speed(pool.instance_type)
                    yield Offering(pool, capacity, price, speed, minimum_billing_ms=MINIMUM_MS)

    def _refresh(self, pools: tuple[Pool, ...]) -> SurefootError | None:
        now_ms = self.now_ms()
        if now_ms < self._due_ms:
            return None
        self._due_ms = now_ms + self.settings.refresh_ms
        trouble: SurefootError | None = None
        for region in sorted({pool.region for pool in pools}):
            here = tuple(pool for pool in pools if pool.region == region)
            try:
                self._refresh_spot(region, here)
                self.trouble.pop(f"spot prices in {region}", None)
            except SurefootError as error:
                self.trouble[f"spot prices in {region}"] = str(error)
                trouble = trouble or error
            self._refresh_list(region, here)
        return trouble

    def _refresh_spot(self, region: str, pools: tuple[Pool, ...]) -> None:
        asked_ms = self.now_ms()
        types = sorted({pool.instance_type for pool in pools})
        by_place = {(pool.zone, pool.instance_type): pool for pool in pools}
        newest: dict[Pool, tuple[datetime, int]] = {}
        with asking(f"spot prices in {region}"):
            pages = (
                self.clients.ec2(region)
                .get_paginator("describe_spot_price_history")
                .paginate(
                    InstanceTypes=types,
                    ProductDescriptions=[PRODUCT],
                    StartTime=datetime.fromtimestamp(asked_ms / 1000, UTC),
                    PaginationConfig={"PageSize": self.settings.page_size},
                )
            )
            rows = [row for page in pages for row in page["SpotPriceHistory"]]
        for row in rows:
            pool = by_place.get((row["AvailabilityZone"], row["InstanceType"]))
            price = read_price(row.get("SpotPrice"))
            if pool is None or price is None:
                continue
            if pool not in newest or row["Timestamp"] > newest[pool][0]:
                newest[pool] = (row["Timestamp"], price)
        self.spot.update({p: Quote(price, asked_ms) for p, (_, price) in newest.items()})

    def _refresh_list(self, region: str, pools: tuple[Pool, ...]) -> None:
        """Ask the price list for types without a price of the user's; being refused is no error."""
        now_ms = self.now_ms()
        for name in sorted({pool.instance_type for pool in pools}):
            if self.settings.told_on_demand(region, name) is not None:
                continue
            key = f"{region}/{name}"
            if now_ms < self._list_due_ms.get(key, 0):
                continue
            what = f"on-demand price of {key}"
            try:
                price = self._ask_list(region, name, what)
            except SurefootError as error:
                self.trouble[what] = str(error)
                self._list_due_ms[key] = now_ms + LIST_RETRY_MS
                continue
            if price is None:
                self.trouble[what] = "not in AWS's price list: give it in the job file"
                self._list_due_ms[key] = now_ms + LIST_RETRY_MS
                continue
            self.trouble.pop(what, None)
            self.listed[region, name] = Quote(price, now_ms)
            self._list_due_ms[key] = now_ms + LIST_LIFE_MS

    def _ask_list(self, region: str, name: str, what: str) -> int | None:
        wanted = {
            "regionCode": region,
            "instanceType": name,
            "operatingSystem": "Linux",
            "preInstalledSw": "NA",
            "tenancy": "Shared",
            "capacitystatus": "Used",
        }
        filters = [
            {"Type": "TERM_MATCH", "Field": field, "Value": value}
            for field, value in wanted.items()
        ]
        with asking(what):
            answer = self.clients.service("pricing", PRICING_REGION).get_products(
                ServiceCode="AmazonEC2", Filters=filters, MaxResults=100
            )
        prices = {p for text in answer["PriceList"] for p in _on_demand_prices(text)}
        return max(prices) if prices else None  # several at once: never assume the cheaper one


def read_price(value: object) -> int | None:
    """Return micro-dollars per hour from AWS's text; None for what cannot be a price."""
    try:
        price = float(str(value))
    except ValueError:
        return None
    if not math.isfinite(price) or price <= 0:
        return None
    return max(1, micro_usd(price))


def _on_demand_prices(text: str) -> Iterator[int]:
    product: dict[str, Any] = json.loads(text)
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            price = read_price(dimension.get("pricePerUnit", {}).get("USD"))
            if price is not None and dimension.get("unit") == "Hrs":
                yield price
