"""Public records of spot markets: what they hold, their licences, and where they lie."""

from __future__ import annotations

from dataclasses import asdict, dataclass

GITHUB = "https://github.com"


@dataclass(frozen=True, slots=True)
class Public:
    """One public source. Nothing of it is bundled: it is fetched on the user's machine.

    `url`: an archive or a file, pinned to the commit that was looked at where one is known; empty
    for what only the user's own account can give, by `command`. `inside`: where in the archive
    the records lie.
    """

    name: str
    what: str
    licence: str
    where: str
    url: str = ""
    inside: str = ""
    command: str = ""

    @property
    def file(self) -> str:
        """Name of the file that a fetch leaves."""
        return self.name + (".tar.gz" if self.url.endswith(".tar.gz") else ".json")

    def body(self) -> dict[str, str]:
        """Return it for --json."""
        return asdict(self)


def _github(name: str, what: str, licence: str, repo: str, commit: str, inside: str) -> Public:
    where = f"{GITHUB}/{repo}"
    return Public(name, what, licence, where, f"{where}/archive/{commit}.tar.gz", inside)


PUBLIC: tuple[Public, ...] = (
    _github(
        "skypilot-spot-traces",
        "AWS V100 launch probes and held pools, 2023 (JSON form)",
        "none stated: ask before you pass it on",
        "skypilot-org/spot-traces",
        "221da1ab",
        "availability/ and preemption/, one JSON file a zone",
    ),
    _github(
        "skynomad",
        "GCP H100 launch probes 2025, AWS V100 probes and prices 2023",
        "Apache-2.0",
        "andylizf/skynomad-artifact",
        "62b9aaa1",
        "data/h100_16_runs/ and data/real/availability/",
    ),
    _github(
        "goog-preemption",
        "1,442 GCP preemptible VM lifetimes, 2019",
        "Apache-2.0",
        "kadupitiya/goog-preemption-data",
        "b22f181e",
        "data/data.json",
    ),
    _github(
        "bamboo",
        "AWS and GCP held pools, 2021",
        "MIT",
        "uclasystem/bamboo",
        "80809293",
        "traces/*.csv",
    ),
    _github(
        "spotinfo",
        "AWS Spot Advisor interruption bands (vendored)",
        "Apache-2.0",
        "alexei-led/spotinfo",
        "05e93313",
        "internal/spot/data/spot-advisor-data.json",
    ),
    _github(
        "skypilot-catalog",
        "prices of AWS, GCP and Azure VMs, on-demand and spot (vms.csv)",
        "none stated: ask before you pass it on",
        "romilbhardwaj/skypilot-catalog",
        "919be2c1",
        "catalogs/v5/{aws,gcp,azure}/vms.csv",
    ),
    Public(
        "spot-advisor",
        "AWS Spot Advisor interruption bands of today, as AWS publishes them",
        "AWS site terms: for your own use",
        "AWS Spot Instance Advisor",
        "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json",
    ),
    Public(
        "aws-prices",
        "your own account's AWS spot price history",
        "yours",
        "AWS EC2 DescribeSpotPriceHistory",
        command="aws ec2 describe-spot-price-history --product-descriptions Linux/UNIX "
        "> prices.json",
    ),
)
