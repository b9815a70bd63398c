"""The pages: links lead somewhere, named commands exist, and the key table is the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot.config.schema import JobModel, Section, section_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [p for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if p.name != "CHANGELOG.md"]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)|src=\"([^\"]+)\"", text)
    local = [t for pair in targets for t in pair if t and "://" not in t]
    missing = [t for t in local if not (page.parent / t).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_named_make_targets_exist(page: Path) -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:^|`)make ([a-z]+(?: [a-z]+)*?)(?:`|\s+#|$)", text, flags=re.MULTILINE)
    assert {target for line in named for target in line.split()} <= made


def _keys(model: type[Section], prefix: str = "") -> Iterator[str]:
    for key, field in model.model_fields.items():
        section = section_of(field.annotation)
        listed = "list" in str(field.annotation)
        if section is None or listed or key == "interval":
            yield prefix + key
        else:
            yield from _keys(section, f"{prefix}{key}.")


def test_the_page_on_job_files_names_every_key_and_no_other() -> None:
    text = (ROOT / "docs/reference/job.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `([a-z_.]+)` \|", text, flags=re.MULTILINE))
    wanted = set(_keys(JobModel)) - {"throughput.window"}  # told with throughput.kind
    assert told == wanted


def test_every_decision_has_a_number_of_its_own_and_a_title_with_it() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert len(numbers) == len(set(numbers))
    titles = [page.read_text(encoding="utf-8").splitlines()[0] for page in pages]
    wrong = [t for n, t in zip(numbers, titles, strict=True) if not t.startswith(f"# {n}")]
    assert not wrong, f"a title begins with its number: {wrong}"
