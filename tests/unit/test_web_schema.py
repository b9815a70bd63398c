"""The API held against its own OpenAPI document by schemathesis, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from told_run import told_run

pytest.importorskip("fastapi", reason="needs the extra `web`")

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from web_world import TOKEN, Served, serving, tell

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")

EXAMPLES = 6
NAMES = ("gpt-1", "left-1", "none-1")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("runs")
    folder = tell(root)
    log = folder / "vms" / "i-t-s1" / "worker.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    tell(root, told_run("left-1", upto_s=50), run="left-1")
    with serving(root) as found:
        yield found


def test_every_answer_is_what_the_document_says(served: Served) -> None:
    """Any parameters, fit or not: no server error, no undeclared status, type or shape, and
    nothing without the token. The stream of a run that goes on has no end and is left out."""
    document = schemathesis.openapi.from_url(f"{served.url}/api/v1/openapi.json")
    found = [result.ok() for result in document.get_all_operations()]
    assert len(found) >= 14
    for operation in found:
        _hold(operation)


def _hold(operation: Any) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), name=st.sampled_from(NAMES))
    def held(case: Any, name: str) -> None:
        if "run" in (case.path_parameters or {}) and name != "none-1":
            endless = case.path.endswith("/stream")
            case.path_parameters["run"] = "gpt-1" if endless else name
        case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)

    held()


def test_the_document_itself_is_sound(served: Served, tmp_path: Path) -> None:
    paths = schemathesis.openapi.from_url(f"{served.url}/api/v1/openapi.json").raw_schema["paths"]
    for path, methods in paths.items():
        for method, told in methods.items():
            assert told.get("description"), f"{method} {path} says nothing"
            if path.startswith("/api/"):
                assert told["security"] and {"401", "404", "422"} <= set(told["responses"])
