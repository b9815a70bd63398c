"""Job files: what they mean, and the message for everything that can be wrong in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.config import duration_ms, load_job, money_micro_usd, say_ms
from surefoot.core.job import IntervalRule
from surefoot.core.market import Capacity, Pool
from surefoot.errors import ConfigError

NOW_MS = 1_800_000_000_000
BASE = """\
name: a
num_nodes: 4
resources: {infra: local}
run: python train.py
local: {trace: market.yaml}
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "market.yaml").write_text("name: m\n")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_job(write(folder, text), now_ms=NOW_MS)
    return str(caught.value).replace(str(folder), "")


def test_reads_the_keys_of_the_design_page(tmp_path: Path) -> None:
    text = """\
name: llama-1b
num_nodes: 8
resources:
  infra: aws/us-east-1
  instance_type: p4d.24xlarge
  any_of: [{infra: aws/us-west-2}, {infra: gcp/us-central1, instance_type: a2-highgpu-8g}]
workdir: .
envs: {MODEL_SIZE: 1b, WORKERS: 007}
setup: pip install -r requirements.txt
run: torchrun --nproc-per-node=8 train.py
deadline: 300h
budget: {total: 9000, max_price: 12.50}
throughput: {floor: 8, ceiling: 16}
policy: hybrid
checkpoint: {path: "s3://bucket/llama-1b", interval: auto, keep: 3}
"""
    found = load_job(write(tmp_path, text), now_ms=NOW_MS)
    pools = [
        Pool.parse("aws/us-east-1/us-east-1a/p4d.24xlarge"),
        Pool.parse("aws/us-east-1/us-east-1a/p3.2xlarge"),
        Pool.parse("aws/eu-west-1/eu-west-1a/p4d.24xlarge"),
        Pool.parse("gcp/us-central1/us-central1-a/a2-highgpu-8g"),
    ]
    job = found.terms(pools, start_ms=NOW_MS)
    assert job.pools == (pools[0], pools[3])
    assert job.limits.deadline_ms == NOW_MS + 300 * 3_600_000
    assert job.limits.budget_micro_usd == 9_000_000_000
    assert job.limits.max_price_micro_usd_h == 12_500_000
    assert (job.throughput.floor, job.throughput.ceiling) == (8, 16)
    assert job.interval == IntervalRule()
    assert found.envs == {"MODEL_SIZE": "1b", "WORKERS": "007"}
    assert found.checkpoint == "s3://bucket/llama-1b"
    assert found.workdir == tmp_path.resolve()


def test_relative_paths_are_relative_to_the_file_and_out_to_the_shell(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path = write(folder, BASE + "out: results\n")
    monkeypatch.chdir(elsewhere)
    found = load_job(path)
    assert found.local is not None
    assert found.local.trace == folder / "market.yaml"
    assert found.workdir == folder.resolve()
    assert found.out == elsewhere / "results"
    assert found.checkpoint == str(elsewhere / "results" / "checkpoints")


def test_the_examples_are_valid() -> None:
    for path in sorted(ROOT.glob("examples/**/job*.yaml")):
        found = load_job(path, now_ms=NOW_MS)
        assert found.job.num_nodes >= 1


@pytest.mark.parametrize(
    ("extra", "wanted"),
    [
        ("checkpiont: {}\n", "/job.yaml:6: checkpiont: unknown key; did you mean `checkpoint`?"),
        ("budget: {max_pirce: 3}\n", ":6: budget.max_pirce: unknown key; did you mean `max_price`"),
        ("checkpoint:\n  interval:\n    mni: 5s\n", ":8: checkpoint.interval.mni: unknown key"),
        ("throughput:\n\tfloor: 3\n", ":7: the line is indented with a tab"),
        ("name: b\n", ":6: name: the key is there twice (first on line 1)"),
        ("budget:\n  total: 1\n  total: 2\n", ":8: budget.total: the key is there twice"),
        ("workdir: no\n", "must be text; found 'no' (YAML reads no, off, yes and on as"),
        ("envs: {SPOT: off}\n", ":6: envs.SPOT: must be text; found 'off'"),
        ("envs: {'1x': a}\n", ":6: envs.1x: is no name for an environment variable"),
        ("envs: {SUREFOOT_HUB: a}\n", "are ours"),
        ("steps: ten\n", ":6: steps: must be a whole number; found 'ten'"),
        ("steps: 10.5\n", ":6: steps: must be a whole number; found '10.5'"),
        ("steps: yes\n", ":6: steps: must be a whole number; found 'yes'"),
        ("budget: 3\n", ":6: budget: must be a section of `key: value` lines; found '3'"),
        ("budget: {total: free}\n", ":6: budget.total: must be an amount in US dollars"),
        ("budget: {total: .nan}\n", ":6: budget.total: must be a finite amount"),
        ("throughput: {floor: 9, ceiling: 6}\n", "throughput.floor: 9 is over the ceiling, 6"),
        ("throughput: {ceiling: 3}\n", "throughput.ceiling: 3 is below num_nodes, 4"),
        ("throughput: {floor: .inf}\n", "throughput.floor: must be"),
        ("deadline: 2020-01-01\n", ":6: deadline: 2020-01-01 is in the past"),
        ("deadline: 0h\n", ":6: deadline: must be more than 0"),
        ("deadline: 12:30\n", ":6: deadline: must be a time with its unit"),
        ("policy: hybird\n", "policy: there is no 'hybird'; did you mean `hybrid`?"),
        ("forecaster: weather\n", "forecaster: there is no 'weather'"),
        ("checkpoint: {keep: 0}\n", "checkpoint.keep: must be greater than or equal to 1"),
        ("checkpoint: {path: ''}\n", "checkpoint.path: must not be empty"),
        ("checkpoint: {drain: {to: ''}}\n", "checkpoint.drain.to: must not be empty"),
        ("checkpoint: {drain: {every: 5m}}\n", "checkpoint.drain.to"),
        ("checkpoint: {drain: {to: 's3://a/b', every: 0s}}\n", "checkpoint.drain.every"),
        ("checkpoint: {path: 's3://a/b', drain: {to: c}}\n", "needs a local folder"),
        ("checkpoint: {path: a, drain: {to: a}}\n", "must not be checkpoint.path itself"),
        ("workdir: nowhere\n", "workdir: there is no folder"),
    ],
)
def test_names_line_key_and_what_is_allowed(folder: Path, extra: str, wanted: str) -> None:
    assert wanted in refusal(folder, BASE + extra)


@pytest.mark.parametrize("value", ["0", "-5", "0s", "''", "1e99", "5", "never", "-5m", "99999d"])
def test_refuses_an_interval_that_means_nothing(folder: Path, value: str) -> None:  # case 13
    message = refusal(folder, f"{BASE}checkpoint: {{interval: {value}}}\n")
    assert ":6: checkpoint.interval: " in message
    assert "must be" in message or "has no unit" in message


def test_takes_a_fixed_interval_and_bounds(folder: Path) -> None:
    fixed = load_job(write(folder, BASE + "checkpoint: {interval: 5m}\n"))
    assert fixed.job.interval.fixed_ms == 300_000
    bounds = load_job(write(folder, BASE + "checkpoint: {interval: {min: 2s, max: 1h}}\n"))
    assert (bounds.job.interval.min_ms, bounds.job.interval.max_ms) == (2_000, 3_600_000)
    assert "is over max" in refusal(folder, BASE + "checkpoint: {interval: {min: 2h, max: 1h}}\n")


def test_lists_every_problem_of_a_file_at_once(folder: Path) -> None:
    message = refusal(folder, BASE + "steps: x\nbudgte: {}\nworkdir: on\n")
    assert [line.split(": ")[1] for line in message.splitlines()] == ["steps", "budgte", "workdir"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("- a\n- b\n", ":1: the top of the file is a list"),
        ("just text\n", ":1: the top of the file is a single value"),
        ("name: [a\n", "job.yaml:"),
        ("? [a, b]\n: c\n", "a key must be plain text"),
        ("name: x\n", "run: this key is needed and is not there"),
        ("name: <b>\nrun: x\n", "name: must be 1 to 63 of"),
        ("name: a\nrun: '  '\n", "run: must not be empty"),
        ("name: a\nrun: x\nresources: {infra: local}\n", "needs the market that it replays"),
        ("name: a\nrun: x\nresources: {infra: a/b/c/d}\n", "must be cloud[/region[/zone]]"),
        ("name: a\nrun: x\nnum_nodes: 0\n", "num_nodes: must be greater than or equal to 1"),
        ("name: a\nrun: x\nlocal: {trace: gone.yaml}\n", "local.trace: there is no file"),
    ],
)
def test_refuses_files_that_cannot_be_a_job(folder: Path, text: str, wanted: str) -> None:
    assert wanted in refusal(folder, text)


def test_a_missing_file_names_the_ones_beside_it(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_job(folder / "jbo.yaml")
    assert "there is no such file" in str(caught.value)
    assert "market.yaml" in caught.value.hint
    with pytest.raises(ConfigError, match="this is a folder"):
        load_job(folder)


def test_huge_files_and_alias_bombs_are_refused_quickly(folder: Path) -> None:
    assert "too many for a job file" in refusal(folder, "#" * 1_000_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert "too big" in refusal(folder, "\n".join(lines))
    assert "not UTF-8" in _bytes_refusal(folder, b"name: \xff\n")


def _bytes_refusal(folder: Path, data: bytes) -> str:
    (folder / "job.yaml").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_job(folder / "job.yaml")
    return str(caught.value)


@pytest.mark.parametrize("name", ["with blank", "quo'te\"", "[x]", "über", "new\nline", "$HOME"])
def test_odd_folder_names_work(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    (folder / "work dir").mkdir(parents=True)
    (folder / "market.yaml").write_text("name: m\n")
    text = BASE + "workdir: work dir\ncheckpoint: {path: saved here}\n"
    found = load_job(write(folder, text))
    assert found.workdir == (folder / "work dir").resolve()
    assert Path(found.checkpoint) == folder.resolve() / "saved here"


def test_says_what_is_on_offer_when_no_pool_fits(folder: Path) -> None:
    found = load_job(write(folder, BASE))
    with pytest.raises(ConfigError, match="no pool on offer fits") as caught:
        found.terms([Pool.parse("aws/a/b/c")], start_ms=0)
    assert "aws/a/b/c" in caught.value.hint


def test_capacities_can_be_narrowed(folder: Path) -> None:
    text = BASE.replace("{infra: local}", "{infra: local, capacity: [spot]}")
    assert load_job(write(folder, text)).job.capacities == {Capacity.SPOT}
    text = BASE.replace("{infra: local}", "{infra: local, capacity: [spto]}")
    assert "must be 'spot' or 'on_demand'; found 'spto'" in refusal(folder, text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("300h", 1_080_000_000),
        ("1.5 s", 1_500),
        ("2d", 172_800_000),
    ],
)
def test_reads_durations(text: str, value: int) -> None:
    assert duration_ms(text) == value


@pytest.mark.parametrize(
    "value", [0, -1, 5, True, None, "", "5", "m", "5 fortnights", "1h-", "nan"]
)
def test_refuses_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match=r"must|unit"):
        duration_ms(value)


def test_money_is_exact_to_the_micro_dollar() -> None:
    assert money_micro_usd(12.50) == 12_500_000
    assert money_micro_usd("$0.0000015") == 2
    for bad in (0, -1, "x", "4,2", True, float("inf")):
        with pytest.raises(ValueError, match="must be"):
            money_micro_usd(bad)


def test_says_durations_as_people_do() -> None:
    said = [say_ms(x) for x in (850, 12_500, 119_000, 250_000, 7_200_000, 11_100_000)]
    assert said == ["850 ms", "12.5 s", "119 s", "4 min 10 s", "2 h", "3 h 5 min"]


def test_the_second_tier_of_checkpoints_is_read(folder: Path) -> None:
    drained = load_job(
        write(folder, BASE + "checkpoint: {path: near, drain: {to: 's3://a/b', every: 90s}}\n")
    )
    assert (drained.drain_to, drained.drain_every_ms) == ("s3://a/b", 90_000)
    assert load_job(write(folder, BASE)).drain_to == ""
