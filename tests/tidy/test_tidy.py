"""The house rules that a reader would otherwise have to enforce: sizes, words, paths, openings."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE_LINES, FUNCTION_LINES, COLUMNS = 500, 70, 100
BANNED_PARTS = {"strategy", "env", "task", "cluster", "manager", "helper", "handler", "utils"}


def _listed() -> list[Path]:
    """Files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("not a git checkout")
    return [p for line in sorted(set(found.stdout.splitlines())) if (p := ROOT / line).is_file()]


def _python(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


CODE = _python("src", "tests", "benchmarks", "examples")
SOURCE = _python("src")
BENCHMARKS = [p for p in _python("benchmarks") if not p.name.startswith("_")]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", CODE, ids=_name)
def test_modules_functions_and_lines_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= MODULE_LINES, f"{len(lines)} lines; split it at {MODULE_LINES}"
    wide = [i for i, line in enumerate(lines, 1) if len(line) > COLUMNS]
    assert not wide, f"lines over {COLUMNS} columns: {wide}"
    long = [
        f"{f.name} ({(f.end_lineno or f.lineno) - f.lineno + 1})"
        for f in _functions(ast.parse(text))
        if (f.end_lineno or f.lineno) - f.lineno + 1 > FUNCTION_LINES
    ]
    assert not long, f"functions over {FUNCTION_LINES} lines: {long}"


@pytest.mark.parametrize("path", CODE, ids=_name)
def test_every_module_opens_with_a_sentence(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not text.strip():
        assert path.name == "__init__.py", "an empty module"
        return
    opening = ast.get_docstring(ast.parse(text))
    assert opening, "no docstring at the top"
    first = opening.split("\n\n")[0]
    assert first.rstrip().endswith((".", ":", "?", "!")), f"not a sentence: {first!r}"


@pytest.mark.parametrize("path", SOURCE, ids=_name)
def test_names_use_the_fields_words(path: Path) -> None:
    """DESIGN.md section 4: words to avoid in the names that we give."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.walk(tree) if isinstance(node, named)]
    bad = [name for name in [*names, path.stem] if _words(name) & BANNED_PARTS]
    assert not bad, f"words to avoid: {bad}"


def _words(name: str) -> set[str]:
    """Split `SomeName` and `some_name` into lower-case words."""
    return {w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|opt|home|root|Users)/\w")
REGISTRIES = re.compile(
    r"(?i)\b(?:"
    + "|".join((r"pypi\.org", r"pythonhosted\.org", r"download\.pytorch\.org"))
    + r")\b|--(?:extra-)?index-url"
)


def test_no_machine_paths_or_registry_hosts_are_committed() -> None:
    found = []
    for path in _listed():
        if path == Path(__file__) or path.suffix in {".png", ".parquet", ".npz", ".svg"}:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATHS.search(line) or REGISTRIES.search(line):
                found.append(f"{_name(path)}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", BENCHMARKS, ids=_name)
def test_every_benchmark_takes_quick_and_json_and_judges_itself(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "_common" in text and "Bars" in text, "use benchmarks/_common.py"
    assert "options(" in text or ("--quick" in text and "--json" in text)
    assert ".finish(" in text, "ends with Bars.finish"
    assert '__name__ == "__main__"' in text


def test_the_changelog_has_room_for_what_comes_next() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert sections and sections[0] == "Unreleased"


def test_files_of_one_folder_have_no_clashing_names() -> None:
    """A file system that ignores case must be able to hold the tree."""
    names = [str(p.relative_to(ROOT)).lower() for p in _listed()]
    assert len(names) == len(set(names))
