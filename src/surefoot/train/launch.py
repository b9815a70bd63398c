"""Which engine starts a command, and the environment that gives torchrun its place in a group."""

from __future__ import annotations

import fcntl
import re
import socket
import struct
from pathlib import Path

from surefoot.core.wire import Generation

LAUNCHERS = re.compile(r"\btorchrun\b|\btorch\.distributed\.(run|launch)\b|\baccelerate +launch\b")
OURS = re.compile(
    r"--(nnodes|node[-_]rank|master[-_](addr|port)|rdzv[-_](backend|endpoint|id|conf)|standalone"
    r"|max[-_]restarts)\b"
)
"""What is ours to say to torchrun: the user's own value would take precedence."""


_SESSION = re.compile(r"^\s*(from surefoot(?!\.train\.integrations)|import surefoot)", re.MULTILINE)
"""An import that may bring a Session with it."""


def engine_of(engine: str, command: str, workdir: str) -> str:
    """Return "live" or "torchrun"; "auto" chooses torchrun for what cannot re-form in place.

    That is a command with torchrun or accelerate launch in it, or one whose Python files are all
    at hand and import nothing of surefoot, or its integrations only.
    """
    if engine in ("live", "torchrun"):
        return engine
    if LAUNCHERS.search(command):
        return "torchrun"
    names = re.findall(r"[^\s'\"=;|&<>()]+\.py\b", command)
    texts = [_text(Path(workdir or ".") / name) for name in names]
    plain = bool(texts) and all(text is not None and not _SESSION.search(text) for text in texts)
    return "torchrun" if plain else "live"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def launch_environment(
    order: Generation, token: str, store: tuple[str, int], *, workers: int, run: str, grace_s: float
) -> dict[str, str]:
    """Return what torchrun, or a script without it, is told of its place in a generation.

    torchrun reads PET_* as defaults of its options. The RANK family is for one process a VM;
    torchrun sets it anew for each worker.
    """
    rank, nodes, (host, port) = order.tokens.index(token), len(order.tokens), store
    own = order.addresses[rank]
    environment = {
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": str(workers),
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": f"{run}-{order.number}",
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(port),
        "PET_LOCAL_ADDR": own,
        "PET_MAX_RESTARTS": "0",
        "PET_MONITOR_INTERVAL": "0.1",
        "RANK": str(rank),
        "WORLD_SIZE": str(nodes),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"{run}-{order.number}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, round(grace_s))),
        "SUREFOOT_GENERATION": str(order.number),
    }
    name = interface_of(own)
    if name:  # without a look-up of the host's name, which can take 10 s where nobody answers
        environment |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    return environment


def interface_of(address: str) -> str:
    """Return the network interface that has an IPv4 address; "" if none has."""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""


def check_command(command: str) -> str:
    """Return the option of torchrun in a command that is ours to set; "" if there is none."""
    found = OURS.search(command) if LAUNCHERS.search(command) else None
    return found.group(0) if found else ""
