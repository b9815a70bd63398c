"""Public records of spot markets: what they hold, their licences, and how to get them."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Public:
    """One public source. Nothing of it is bundled: `command` gets it on the user's machine."""

    name: str
    what: str
    licence: str
    where: str
    command: str

    def body(self) -> dict[str, str]:
        """Return it for --json."""
        return asdict(self)


def _github(name: str, what: str, licence: str, repo: str) -> Public:
    url = f"https://github.com/{repo}"
    return Public(name, what, licence, url, f"git clone --depth 1 {url}")


PUBLIC: tuple[Public, ...] = (
    _github(
        "skypilot-spot-traces",
        "AWS V100 launch probes and held pools, 2023 (JSON form)",
        "none stated: ask before you pass it on",
        "skypilot-org/spot-traces",
    ),
    _github(
        "skynomad",
        "GCP H100 launch probes 2025, AWS V100 probes and prices 2023",
        "Apache-2.0",
        "andylizf/skynomad-artifact",
    ),
    _github(
        "goog-preemption",
        "1,442 GCP preemptible VM lifetimes, 2019",
        "Apache-2.0",
        "kadupitiya/goog-preemption-data",
    ),
    _github("bamboo", "AWS and GCP held pools, 2021", "MIT", "uclasystem/bamboo"),
    _github(
        "spotinfo",
        "AWS Spot Advisor interruption bands (vendored)",
        "Apache-2.0",
        "alexei-led/spotinfo",
    ),
    Public(
        "aws-prices",
        "your own account's AWS spot price history",
        "yours",
        "AWS EC2 DescribeSpotPriceHistory",
        "aws ec2 describe-spot-price-history --product-descriptions Linux/UNIX > prices.json",
    ),
)
