"""The plain loop in examples/: fewer than five added lines make it outlive its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOOP = Path(__file__).resolve().parents[2] / "examples/plain/loop.py"


def run(folder: Path, steps: int) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SUREFOOT_")}
    env["SUREFOOT_CHECKPOINT"] = str(folder / "ckpt")
    done = subprocess.run(
        [sys.executable, str(LOOP), str(steps)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_session_takes_fewer_than_five_lines_and_resumes(tmp_path: Path) -> None:
    lines = LOOP.read_text().splitlines()
    added = [line for line in lines if "# added" in line]
    assert 0 < len(added) < 5
    others = "\n".join(line for line in lines[1:] if line not in added)
    assert "surefoot" not in others.lower() and "session" not in others, "all of it is marked"
    assert "step 0:" in run(tmp_path, 60)
    again = run(tmp_path, 120)
    assert "step 0:" not in again and "step 100:" in again and "done" in again
