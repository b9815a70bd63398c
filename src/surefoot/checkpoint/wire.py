"""How trainer and writer process talk: JSON with its length in front, and descriptors beside it."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_HEAD = struct.Struct("!Q")


def send(channel: socket.socket, body: dict[str, Any], fds: list[int] | None = None) -> None:
    """Send one message; `fds` are descriptors that the other side gets copies of."""
    raw = json.dumps(body, separators=(",", ":")).encode()
    head = _HEAD.pack(len(raw))
    if fds:
        socket.send_fds(channel, [head], fds)
    else:
        channel.sendall(head)
    channel.sendall(raw)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message and its descriptors, or None at the end of the conversation."""
    try:
        head, fds, _, _ = socket.recv_fds(channel, _HEAD.size, 4)
    except ConnectionResetError:  # the other side died with our last answer unread
        return None
    while 0 < len(head) < _HEAD.size:
        more = channel.recv(_HEAD.size - len(head))
        if not more:
            return None
        head += more
    if not head:
        return None
    raw = bytearray(_HEAD.unpack(head)[0])
    view = memoryview(raw)
    while view:
        n = channel.recv_into(view)
        if n == 0:
            return None
        view = view[n:]
    return json.loads(raw), fds
