"""From a job file's text to a `JobFile`, with one message for everything that is wrong in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from surefoot.config.document import Document, Where, read_document
from surefoot.config.explain import explain, located, nearest
from surefoot.config.jobfile import Deadline, JobFile, LocalSettings, Place
from surefoot.config.schema import IntervalBounds, JobModel
from surefoot.core.forecast import ELSEWHERE, FORECASTERS
from surefoot.core.job import FloorKind, IntervalRule, Job, Limits, Throughput, Work
from surefoot.core.market import Capacity
from surefoot.core.policy import POLICIES
from surefoot.errors import ConfigError

LONGEST_INTERVAL_MS = 30 * 24 * 3_600_000


def load_job(
    path: Path | str, *, now_ms: int | None = None, changes: Mapping[str, str] | None = None
) -> JobFile:
    """Read and check a job file; nothing is started and nothing is written.

    With `now_ms` (epoch) a deadline in the past is refused too. Relative paths in the file are
    relative to its folder, `out` to the current directory. `changes` sets keys such as
    `throughput.floor` to values, written as in the file, before anything is checked.

    Raises ConfigError: one message that lists every problem as `file:line: key: what is wrong`.
    """
    document = read_document(Path(path))
    for key, text in (changes or {}).items():
        document.change(key, text)
    _keep_numbers_as_written(document)
    try:
        model = JobModel.model_validate(document.value)
    except ValidationError as error:
        raise explain(document, error) from None
    return _Build(document, model, now_ms).job_file()


def _keep_numbers_as_written(document: Document) -> None:
    """Environment values are text: give `007` and `1e3` to the script as they were typed."""
    envs = document.value.get("envs")
    if not isinstance(envs, dict):
        return
    for key, value in envs.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            envs[key] = document.text(("envs", key)) or str(value)


class _Build:
    """Checks what one key alone cannot show, and puts the values together."""

    def __init__(self, document: Document, model: JobModel, now_ms: int | None) -> None:
        self.document = document
        self.model = model
        self.now_ms = now_ms
        self.base = document.path.resolve().parent

    def job_file(self) -> JobFile:
        """Return the job file. Raises ConfigError for the first contradiction."""
        self._check_names()
        model, out = self.model, Path(self.model.out).expanduser()
        self._check_text("out", model.out)
        return JobFile(
            path=self.document.path,
            job=self._job(),
            command=model.run,
            workdir=self._folder("workdir", model.workdir),
            places=self._places(),
            checkpoint=self._checkpoint(out),
            keep=model.checkpoint.keep,
            drain_to=self._drain_to(out),
            drain_every_ms=model.checkpoint.drain.every if model.checkpoint.drain else 600_000,
            setup=model.setup,
            engine=model.engine,
            workers=model.workers_per_vm,
            script={k: v for k, v in model.script.model_dump().items() if v},
            envs=dict(model.envs),
            secrets={name: self._secret(name, source) for name, source in model.secrets.items()},
            deadline=self._deadline(),
            local=self._local(),
            aws=self._aws(),
            ssh=self._ssh(),
            hub=(model.controller.address, model.controller.port),
            has_workdir="workdir" in model.model_fields_set,
            out=out.absolute(),
        )

    def fail(self, where: Where, problem: str, hint: str = "nothing was started") -> ConfigError:
        """Return the error for a problem at a place in the file."""
        return ConfigError(f"{located(self.document, where)}: {problem}", hint=hint)

    def _check_names(self) -> None:
        self._known("policy", self.model.policy, list(POLICIES))
        self._known("forecaster", self.model.forecaster, [*FORECASTERS, *ELSEWHERE])
        names = [("envs", name) for name in self.model.envs]
        names += [("secrets", name) for name in self.model.secrets]
        for key, name in names:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise self.fail((key, name), "is no name for an environment variable")
            if name.startswith("SUREFOOT_"):
                raise self.fail((key, name), "names with SUREFOOT_ in front are ours")
            self._check_text("envs", self.model.envs.get(name, ""))
        for name in self.model.envs.keys() & self.model.secrets.keys():
            raise self.fail(("secrets", name), "stands in `envs` too")

    def _secret(self, name: str, source: tuple[str, str]) -> tuple[str, str]:
        """Return where a secret comes from, its file absolute."""
        kind, where = source
        if kind == "env":
            return kind, where or name
        return kind, str((self.base / Path(where).expanduser()).absolute())

    def _known(self, key: str, name: str, names: list[str]) -> None:
        if name in names:
            return
        there = ", ".join(names)
        raise self.fail((key,), f"there is no {name!r}{nearest(name, names)} (there are: {there})")

    def _check_text(self, key: str, text: str) -> None:
        if "\0" in text:
            raise self.fail((key,), "holds a NUL character")

    def _job(self) -> Job:
        model = self.model
        job = Job(
            name=model.name,
            num_nodes=model.num_nodes,
            pools=(),
            throughput=self._throughput(),
            limits=Limits(
                budget_micro_usd=model.budget.total,
                max_price_micro_usd_h=model.budget.max_price,
                max_vms=model.resources.max_vms,
                egress_micro_usd_gb=model.budget.egress_per_gb or 0,
            ),
            interval=self._interval(),
            work=Work(total_steps=model.steps, step_ms=model.step_time or Work().step_ms),
            policy=model.policy,
            forecaster=model.forecaster,
            capacities=self._capacities(),
            one_region=model.resources.one_region,
            on_demand_base=model.resources.on_demand_base,
        )
        most = job.limits.max_vms
        if most is not None and most < job.num_nodes:
            raise self.fail(("resources", "max_vms"), f"{most} is below num_nodes, {job.num_nodes}")
        return job

    def _capacities(self) -> frozenset[Capacity]:
        names = self.model.resources.capacity
        if not names:
            raise self.fail(("resources", "capacity"), "must name spot, on_demand or both")
        return frozenset(Capacity(name) for name in names)

    def _throughput(self) -> Throughput:
        wanted, nodes = self.model.throughput, float(self.model.num_nodes)
        floor = wanted.floor if wanted.floor is not None else min(nodes, wanted.ceiling or nodes)
        ceiling = wanted.ceiling if wanted.ceiling is not None else max(nodes, floor)
        if floor > ceiling:
            raise self.fail(
                ("throughput", "floor"),
                f"{floor:g} is over the ceiling, {ceiling:g}",
            )
        if ceiling < nodes:
            raise self.fail(
                ("throughput", "ceiling"),
                f"{ceiling:g} is below num_nodes, {nodes:g}",
            )
        kind, window_ms = FloorKind(wanted.kind), wanted.window or Throughput(0, 0).window_ms
        return Throughput(floor, ceiling, kind=kind, window_ms=window_ms)

    def _interval(self) -> IntervalRule:
        where, value = ("checkpoint", "interval"), self.model.checkpoint.interval
        match value:
            case "auto":
                return IntervalRule()
            case int():
                if value > LONGEST_INTERVAL_MS:
                    raise self.fail(where, "must be at most 30 days")
                return IntervalRule(fixed_ms=value)
            case IntervalBounds():
                return self._bounds(where, value)
        raise AssertionError(value)

    def _bounds(self, where: Where, bounds: IntervalBounds) -> IntervalRule:
        usual = IntervalRule()
        least = bounds.min if bounds.min is not None else min(usual.min_ms, bounds.max or 10**12)
        most = bounds.max if bounds.max is not None else max(usual.max_ms, least)
        if most > LONGEST_INTERVAL_MS:
            raise self.fail((*where, "max"), "must be at most 30 days")
        if least > most:
            raise self.fail((*where, "min"), "is over max")
        return IntervalRule(min_ms=least, max_ms=most)

    def _places(self) -> tuple[Place, ...]:
        wanted = self.model.resources
        named = "infra" in wanted.model_fields_set or not wanted.any_of
        found = [self._place(("resources",), wanted.infra, wanted.instance_type)] if named else []
        for index, place in enumerate(wanted.any_of):
            kind = place.instance_type or wanted.instance_type
            found.append(self._place(("resources", "any_of", index), place.infra, kind))
        return tuple(found)

    def _place(self, at: Where, infra: str, instance_type: str | None) -> Place:
        parts = [part.strip() for part in infra.split("/")]
        if not 1 <= len(parts) <= 3 or not all(parts):
            raise self.fail((*at, "infra"), f"must be cloud[/region[/zone]]; found {infra!r}")
        cloud, region, zone = (*parts, "*", "*")[:3]
        return Place(cloud, region, zone, instance_type=instance_type or "*")

    def _deadline(self) -> Deadline:
        given = self.model.deadline
        if given is None:
            return Deadline()
        kind, value = given
        if kind == "after":
            return Deadline(after_ms=value)
        if self.now_ms is not None and value <= self.now_ms:
            found = self.document.text(("deadline",))
            raise self.fail(("deadline",), f"{found} is in the past")
        return Deadline(at_ms=value)

    def _local(self) -> LocalSettings | None:
        named = any(place.cloud == "local" for place in self._places())
        local = self.model.local
        if local is None and named:
            raise self.fail(
                ("resources", "infra"),
                "`local` needs the market that it replays",
                hint="add a section\n  local:\n    trace: market.yaml",
            )
        if local is None:
            return None
        trace = self._path("local", local.trace)
        if not trace.is_file():
            raise self.fail(("local", "trace"), f"there is no file {trace}")
        return LocalSettings(trace, local.vms, local.pace)

    def _aws(self) -> dict[str, Any]:
        """Return the section `aws` under the names of the provider's settings."""
        aws = self.model.aws
        if aws is None:
            return {}
        body = aws.model_dump()
        image, groups = body.pop("image"), body.pop("security_groups")
        body["images"] = {"*": image} if isinstance(image, str) else dict(image or {})
        by_region = {"*": groups} if isinstance(groups, list) else groups
        body["security_groups"] = {r: tuple(ids) for r, ids in by_region.items() if ids}
        body["on_demand_usd_h"] = body.pop("on_demand")
        return {key: value for key, value in body.items() if value is not None}

    def _ssh(self) -> dict[str, Any]:
        """Return the section `ssh` under the names of the provider's settings."""
        named = any(place.cloud == "ssh" for place in self._places())
        if self.model.ssh is None or not self.model.ssh.hosts:
            if named:
                hint = "add a section\n  ssh:\n    hosts: [{name: node1}, {name: node2}]"
                raise self.fail(("resources", "infra"), "`ssh` needs its hosts", hint=hint)
            return {}
        body = self.model.ssh.model_dump()
        body["ssh"] = tuple(shlex.split(body.pop("command")))
        if not body["ssh"]:
            raise self.fail(("ssh", "command"), "must not be empty")
        return {key: value for key, value in body.items() if value is not None}

    def _checkpoint(self, out: Path) -> str:
        path = self.model.checkpoint.path
        if path is None:
            return str(out.absolute() / "checkpoints")
        if not path.strip():
            raise self.fail(("checkpoint", "path"), "must not be empty")
        return path if "://" in path else str(self._path("checkpoint", path))

    def _drain_to(self, out: Path) -> str:
        drain = self.model.checkpoint.drain
        if drain is None:
            return ""
        where, path = ("checkpoint", "drain"), self._checkpoint(out)
        if "://" in path and not path.startswith("file://"):
            raise self.fail(where, "needs a local folder as checkpoint.path to drain from")
        if not drain.to.strip():
            raise self.fail((*where, "to"), "must not be empty")
        if drain.every <= 0:
            raise self.fail((*where, "every"), "must be above 0")
        to = drain.to if "://" in drain.to else str(self._path("checkpoint", drain.to))
        if to == path:
            raise self.fail((*where, "to"), "must not be checkpoint.path itself")
        return to

    def _path(self, key: str, text: str) -> Path:
        self._check_text(key, text)
        return self.base / Path(text).expanduser()

    def _folder(self, key: str, text: str) -> Path:
        folder = self._path(key, text)
        if not folder.is_dir():
            raise self.fail((key,), f"there is no folder {folder}")
        return folder.resolve()
