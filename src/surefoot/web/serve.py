"""Serving the application: which address, with TLS or not, and until when."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from surefoot.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """Where to serve: an address, a port (0: any), and a certificate for TLS."""

    host: str = "127.0.0.1"
    port: int = 8787
    cert: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Raise ConfigError for files that are missing, or an open address without TLS."""
        for file in (self.cert, self.key):
            if file is not None and not file.is_file():
                raise ConfigError(f"{file}: there is no such file")
        if (self.cert is None) != (self.key is None):
            raise ConfigError("TLS needs both --tls-cert and --tls-key")
        if self.cert is None and not is_loopback(self.host):
            raise ConfigError(
                f"{self.host} can be reached from outside: the token would travel in the clear",
                hint="add --tls-cert and --tls-key, or keep 127.0.0.1 and use `ssh -L`",
            )

    @property
    def scheme(self) -> str:
        """Return http, or https with a certificate."""
        return "http" if self.cert is None else "https"

    def url(self, port: int) -> str:
        """Return the address as one types it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(place: Place) -> socket.socket:
    """Return a socket that listens. Raises ConfigError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((place.host, place.port))
        sock.listen(128)  # from now on who asks waits, and is not turned away
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"{place.host}:{place.port}: {error.strerror or error}", hint="choose another --port"
        ) from error
    return sock


def server_of(app: FastAPI, place: Place) -> uvicorn.Server:
    """Return a server that writes no access log: addresses may carry one-time words."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        ssl_certfile=str(place.cert) if place.cert else None,
        ssl_keyfile=str(place.key) if place.key else None,
    )
    return uvicorn.Server(config)
