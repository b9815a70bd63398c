"""The script that a VM boots: runs in a plain shell, quotes what it is given, holds no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot.errors import ConfigError
from surefoot.providers.aws.boot import LIMIT_BYTES, user_data
from surefoot.providers.aws.settings import AwsSettings
from surefoot.providers.local.metadata import Identity, MetadataServer


def settings(**changes: str) -> AwsSettings:
    return AwsSettings(("us-east-1",), ("m5.large",), **changes)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with a `python` that tells how it was called and a `shutdown` that does nothing."""
    commands = tmp_path / "bin"
    commands.mkdir()
    fake = f"""#!{sys.executable}
import json, os, runpy, sys
if sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    said = {{"arguments": sys.argv[1:], "env": dict(os.environ), "folder": os.getcwd()}}
    open(os.environ["TOLD"], "w").write(json.dumps(said))
"""
    for name, text in {"python": fake, "shutdown": '#!/bin/sh\necho "off $*" >> "$OFF"\n'}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o700)
    yield tmp_path


def run(place: Path, script: str, **env: str) -> tuple[int, dict[str, object], str]:
    path = place / "user-data"
    path.write_text(script)
    told, off = place / "told.json", place / "off"
    done = subprocess.run(
        ["/bin/sh", str(path)],
        env={
            "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "TOLD": str(told),
            "OFF": str(off),
            "SUREFOOT_VM_DIR": str(place / "vm dir"),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = json.loads(told.read_text()) if told.exists() else {}
    return done.returncode, said, off.read_text() if off.exists() else ""


def test_the_agent_starts_with_exactly_what_it_was_given_and_the_vm_ends_with_it(
    place: Path,
) -> None:
    odd = 'it\'s "$HOME" `date` $(id) \\ {braces} %s ünï\nsecond line'
    boot = {"SUREFOOT_COMMAND": odd, "SUREFOOT_WORKDIR": str(place / "my code")}
    script = user_data(settings(python="python"), boot)
    code, said, off = run(place, script, SUREFOOT_ADDRESS="10.0.0.7")
    assert code == 0
    assert said["arguments"] == ["-m", "surefoot.train.agent"]
    env = said["env"]
    assert isinstance(env, dict)
    assert env["SUREFOOT_COMMAND"] == odd and env["SUREFOOT_ADDRESS"] == "10.0.0.7"
    assert (place / "my code").is_dir()
    assert off == "off -h now\n"


def test_finds_its_own_address_by_session_token_whatever_proxies_are_set(place: Path) -> None:
    import socket

    server = MetadataServer(socket.create_server(("127.0.0.1", 0)))
    try:
        server.add(Identity("i-1", "m5.large", "us-east-1", "us-east-1a", "10.1.2.3"))
        server.fail("i-1", 500, 503)
        script = user_data(settings(python="python"), {})
        proxy = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        endpoint = server.endpoint("i-1")
        code, said, _ = run(place, script, AWS_EC2_METADATA_SERVICE_ENDPOINT=endpoint, **proxy)
        assert code == 0
        assert said["env"]["SUREFOOT_ADDRESS"] == "10.1.2.3"  # type: ignore[index]
    finally:
        server.close()


def test_the_installation_may_hold_braces_and_names_the_python(place: Path) -> None:
    install = 'echo "${HOME}" {a,b} && {python} -c "print(1)" > "$SUREFOOT_VM_DIR/ran"'
    script = user_data(settings(python="python", install=install), {})
    code, said, _ = run(place, script, SUREFOOT_ADDRESS="10.0.0.7")
    assert code == 0 and said and (place / "vm dir" / "ran").read_text() == "1\n"


def test_a_vm_whose_installation_fails_ends_instead_of_idling(place: Path) -> None:
    script = user_data(settings(python="python", install="exit 3"), {})
    code, said, off = run(place, script, SUREFOOT_ADDRESS="10.0.0.7")
    assert code != 0 and said == {} and off == "off -h now\n"


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "DB_PASSWORD",
        "WANDB_API_KEY",
        "GOOGLE_CREDENTIALS",
        "MY_SECRET",
    ],
)
def test_what_looks_like_a_secret_does_not_go_into_user_data(name: str) -> None:
    for boot in ({name: "x"}, {"SUREFOOT_ENVS": json.dumps({name: "planted"})}):
        with pytest.raises(ConfigError, match=name) as error:
            user_data(settings(), boot)
        assert "planted" not in str(error.value)


@pytest.mark.parametrize("name", ["TOKENIZER", "AUTHOR", "MONKEY", "KEYS_PER_ROW", "PASSAGE"])
def test_names_that_only_sound_like_one_do(name: str) -> None:
    assert "planted" in user_data(settings(), {"SUREFOOT_ENVS": json.dumps({name: "planted"})})


def test_the_runs_own_passwords_may_go() -> None:
    assert "s3" in user_data(settings(), {"SUREFOOT_SECRET": "s3", "SUREFOOT_TOKEN": "t"})


def test_what_is_too_long_for_aws_is_refused_before_aws_is_asked() -> None:
    with pytest.raises(ConfigError, match=str(LIMIT_BYTES)):
        user_data(settings(), {"SUREFOOT_COMMAND": "x" * LIMIT_BYTES})


@pytest.mark.parametrize(
    "changes",
    [
        {"regions": ()},
        {"regions": ("*",)},
        {"instance_types": ("m5.*",)},
        {"page_size": 2},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(changes: dict[str, object]) -> None:
    values: dict[str, object] = {"regions": ("us-east-1",), "instance_types": ("m5.large",)}
    with pytest.raises(ConfigError):
        AwsSettings(**(values | changes))  # type: ignore[arg-type]


def test_a_missing_image_says_what_to_write() -> None:
    with pytest.raises(ConfigError) as error:
        settings().image("us-east-1")
    assert "image:" in error.value.hint
