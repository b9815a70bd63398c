"""The user data of a VM: a script that finds its address, starts the agent and ends with it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping

from surefoot.errors import ConfigError
from surefoot.providers.aws.settings import AwsSettings

LIMIT_BYTES = 16_384
"""AWS takes no more user data than this, before base64."""

SECRETS = re.compile(
    r"(?i)(?:^|_)(?:secrets?|passwords?|passwd|tokens?|credentials?|api_?keys?|access_?keys?"
    r"|private_?keys?|auth)(?:_|$)"
)
"""Names of variables whose value is likely to be a secret."""

ALLOWED = frozenset({"SUREFOOT_TOKEN", "SUREFOOT_SECRET"})
"""Good for one run and no longer: they open the run's hub and nothing else."""

ADDRESS = """\
import os, time, urllib.request
base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
def get(path, method="GET", **headers):
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    request = urllib.request.Request(base.rstrip("/") + path, headers=names, method=method)
    return ask(request, timeout=5).read().decode()
for left in range(60, -1, -1):
    try:
        token = get("/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="300")
        print(get("/latest/meta-data/local-ipv4", X_aws_ec2_metadata_token=token))
        break
    except OSError:
        if not left:
            raise
        time.sleep(1)
"""
"""Prints the VM's own address (IMDSv2 only, proxies ignored, a minute of patience)."""

SCRIPT = """\
#!/bin/sh
# surefoot: starts the agent of this VM; when the agent ends, so does the VM.
umask 077
finish() {{ shutdown -h now; }}
trap finish EXIT
export HOME="${{HOME:-/root}}"
export SUREFOOT_VM_DIR="${{SUREFOOT_VM_DIR:-/var/lib/surefoot}}"
mkdir -p "$SUREFOOT_VM_DIR" && cd "$SUREFOOT_VM_DIR" || exit 1
{exports}
if [ -z "${{SUREFOOT_ADDRESS:-}}" ]; then
  SUREFOOT_ADDRESS=$({python} -c {address}) || exit 1
fi
export SUREFOOT_ADDRESS
( {install}
) || exit 1
[ -z "${{SUREFOOT_WORKDIR:-}}" ] || mkdir -p "$SUREFOOT_WORKDIR"
{python} -m surefoot.train.agent
"""


def user_data(settings: AwsSettings, boot: Mapping[str, str]) -> str:
    """Return the script that a VM runs at its first boot, with `boot` as its environment.

    Raises ConfigError when it is too long for AWS, or when `boot` or the job's `envs` hold what
    looks like a secret: everybody who may describe the VM, and every process in it, can read
    user data.
    """
    check_secrets(boot)
    exports = "\n".join(f"export {name}={shlex.quote(boot[name])}" for name in sorted(boot))
    script = SCRIPT.format(
        exports=exports,
        python=settings.python,
        address=shlex.quote(ADDRESS),
        install=settings.install.replace("{python}", settings.python),
    )
    size = len(script.encode())
    if size > LIMIT_BYTES:
        raise ConfigError(
            f"the user data of a VM has {size} bytes, AWS takes {LIMIT_BYTES}",
            hint="shorten `setup`, `run` and `envs`: put the text into files of the workdir",
        )
    return script


def check_secrets(boot: Mapping[str, str]) -> None:
    """Raise ConfigError for variables that must not travel in user data."""
    found = sorted(_secret_names(boot))
    if found:
        raise ConfigError(
            f"aws: {', '.join(found)} would stand in the VMs' user data, readable to many",
            hint="let the command read it inside the VM (AWS Secrets Manager, the VM's role)",
        )


def _secret_names(boot: Mapping[str, str]) -> Iterator[str]:
    for name in boot:
        if name not in ALLOWED and SECRETS.search(name):
            yield name
    try:
        envs = json.loads(boot.get("SUREFOOT_ENVS") or "{}")
    except ValueError as error:
        raise ConfigError(f"SUREFOOT_ENVS must be a JSON object: {error}") from error
    if isinstance(envs, dict):
        yield from (str(name) for name in envs if SECRETS.search(str(name)))
