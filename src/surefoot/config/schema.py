"""The keys of a job file and their types: the one place where Pydantic looks at user input."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from surefoot.config.quantities import duration_ms, instant_ms, money_micro_usd

DurationMs = Annotated[int, BeforeValidator(duration_ms)]
MicroUsd = Annotated[int, BeforeValidator(money_micro_usd)]
Count = Annotated[int, Field(ge=0, le=100_000)]
Speed = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]


def _interval(value: object) -> object:
    """Let `auto` and mappings through; anything else must be a duration."""
    if isinstance(value, dict) or value == "auto":
        return value
    try:
        return duration_ms(value)
    except ValueError as error:
        raise ValueError(f"{error}, or `auto`, or {{min: 5s, max: 1h}}") from None


def _deadline(value: object) -> object:
    """Return ('at', epoch ms) for an instant and ('after', ms) for a duration."""
    if isinstance(value, str) and (at_ms := instant_ms(value)) is not None:
        return ("at", at_ms)
    try:
        return ("after", duration_ms(value))
    except ValueError as error:
        raise ValueError(f"{error}, or a moment such as 2027-01-31T18:00Z") from None


def _name(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", value):
        raise ValueError("must be 1 to 63 of a-z A-Z 0-9 - _ . with a letter or digit first")
    return value


def _command(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("must not be empty")
    return value


def _secret(value: object) -> object:
    """Return where a secret comes from: ("env", name or "") or ("file", path). Never a value."""
    if value is None:
        return ("env", "")
    if isinstance(value, dict) and len(value) == 1:
        ((kind, where),) = value.items()
        if kind in ("env", "file") and isinstance(where, str) and where.strip():
            return (kind, where)
    raise ValueError(
        "no value belongs here: leave it empty to take it from the environment of"
        " `surefoot run`, or name {env: NAME} or {file: PATH}"
    )


class Section(BaseModel):
    """Base of all parts of the file: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PlaceFile(Section):
    """One place to look for VMs: cloud[/region[/zone]], `*` allowed."""

    infra: str
    instance_type: str | None = None


class ResourcesFile(Section):
    """Which VMs may be used, and how they may be bought."""

    infra: str = "*"
    instance_type: str | None = None
    any_of: list[PlaceFile] = []
    capacity: list[Literal["spot", "on_demand"]] = ["spot", "on_demand"]
    on_demand_base: Count = 0
    max_vms: Annotated[int, Field(ge=1, le=100_000)] | None = None
    one_region: bool = True


class BudgetFile(Section):
    """Limits on money: US dollars for the run, US dollars per VM-hour; and what sending costs."""

    total: MicroUsd | None = None
    max_price: MicroUsd | None = None
    egress_per_gb: MicroUsd | None = None


class ThroughputFile(Section):
    """Wanted speed, in VMs' worth of training speed."""

    floor: Speed | None = None
    ceiling: Speed | None = None
    kind: Literal["instant", "average"] = "instant"
    window: DurationMs | None = None


class IntervalBounds(Section):
    """Bounds for the tuned interval."""

    min: DurationMs | None = None
    max: DurationMs | None = None


class DrainFile(Section):
    """The second tier: where the newest checkpoint is copied to, and how often."""

    to: str
    every: DurationMs = 600_000


class CheckpointFile(Section):
    """Where checkpoints go, how often they are made, how many are kept."""

    path: str | None = None
    interval: Annotated[Literal["auto"] | int | IntervalBounds, BeforeValidator(_interval)] = "auto"
    keep: Annotated[int, Field(ge=1, le=10_000)] = 3
    drain: DrainFile | None = None


class ScriptFile(Section):
    """How a script that does not import Surefoot is asked to save, and shows what it does."""

    save: str = ""
    saved: str = ""
    step: str = ""


class LocalFile(Section):
    """Settings of the local provider: a market to replay and the kind of VMs."""

    trace: str
    vms: Literal["auto", "process", "namespace"] = "auto"
    pace: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None


Price = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Texts = dict[str, str]


class AwsFile(Section):
    """Settings of the AWS provider; maps by region know `*` for all others."""

    image: str | Texts | None = None
    on_demand: dict[str, Price] = {}
    speeds: dict[str, Price] = {}
    key_name: str = ""
    subnets: Texts = {}
    security_groups: list[str] | dict[str, list[str]] = []
    instance_profile: str = ""
    placement_group: str = ""
    volume_gb: Annotated[int, Field(ge=1, le=65_536)] | None = None
    python: str = "python3"
    install: str | None = None
    unprotect: bool = False
    profile: str = ""
    endpoint_url: str = ""


class HostFile(Section):
    """One host that ssh reaches."""

    name: str
    host: str = ""
    user: str = ""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    key: str = ""
    site: str = "site"
    rack: str = "rack"
    instance_type: str = "host"
    preemptible: bool = False
    usd_h: Price = 0.01
    address: str = ""
    folder: str = ".surefoot"


class SshFile(Section):
    """Settings of the ssh provider: the hosts there are."""

    hosts: list[HostFile] = []
    python: str = "python3"
    install: str | None = None
    command: str = "ssh"


class ControllerFile(Section):
    """Where the VMs of a cloud reach `surefoot run`."""

    address: str | None = None
    port: Annotated[int, Field(ge=0, le=65_535)] = 0


class JobModel(Section):
    """The whole job file."""

    name: Annotated[str, BeforeValidator(_name)]
    num_nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    resources: ResourcesFile = ResourcesFile()
    workdir: str = "."
    envs: dict[str, str] = {}
    secrets: dict[str, Annotated[tuple[str, str], BeforeValidator(_secret)]] = {}
    setup: str = ""
    run: Annotated[str, BeforeValidator(_command)]
    engine: Literal["auto", "live", "torchrun"] = "auto"
    workers_per_vm: Annotated[int, Field(ge=1, le=64)] = 1
    script: ScriptFile = ScriptFile()
    steps: Annotated[int, Field(ge=1, le=10**12)] | None = None
    step_time: DurationMs | None = None
    deadline: Annotated[tuple[str, int], BeforeValidator(_deadline)] | None = None
    budget: BudgetFile = BudgetFile()
    throughput: ThroughputFile = ThroughputFile()
    policy: str = "hybrid"
    forecaster: str = "mixture"
    checkpoint: CheckpointFile = CheckpointFile()
    local: LocalFile | None = None
    aws: AwsFile | None = None
    ssh: SshFile | None = None
    controller: ControllerFile = ControllerFile()
    out: str = "surefoot-out"


def keys_at(where: tuple[str | int, ...]) -> list[str]:
    """Return the keys that are allowed in the section at `where` of a job file."""
    model: Any = JobModel
    for part in where:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        model = section_of(field.annotation) if field else None
    return sorted(model.model_fields) if model else []


def section_of(annotation: Any) -> type[Section] | None:
    """Return the section class named somewhere in a type, or None."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        if (found := section_of(part)) is not None:
            return found
    return None
