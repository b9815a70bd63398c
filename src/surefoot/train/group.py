"""One generation's process group: how it is formed, used, cut off from the dead, and closed."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from surefoot.core.wire import Generation, StoreUp

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Long on purpose: the controller finds the dead and has their sockets cut, a slow VM lives."""

FORM_TIMEOUT = timedelta(seconds=30)

_PATIENCE = timedelta(seconds=1)

_ABANDONED: list[Any] = []
"""Groups with a collective that never ended: letting go of one would wait for it."""

_DEVICES = threading.Lock()
"""Held while a device is made, so that its listener can be told from those of other groups."""

Socket = tuple[int, str]
"""A file descriptor and its inode as /proc names it, so that a reused number is not mistaken."""


class GroupError(RuntimeError):
    """A collective failed: the group is of no more use."""


@dataclass(slots=True, eq=False)
class Group:
    """The members of one generation as this worker sees them; `pg` is None in a world of one.

    Not torch's default group: nothing global is set, so that the group of the next generation
    can be formed while this one still trains.
    """

    number: int
    rank: int
    addresses: tuple[str, ...]
    pg: Any = None
    store: Any = None
    sockets: tuple[Socket, ...] = ()
    broken: bool = field(default=False)

    @property
    def world(self) -> int:
        """Number of workers."""
        return len(self.addresses)

    def sum_async(self, tensor: torch.Tensor) -> Any:
        """Start an all-reduce (sum, in place); `.wait()` of the result may raise RuntimeError."""
        return self.pg.allreduce([tensor])

    def gather_rows(self, row: Sequence[int]) -> list[list[int]]:
        """Return every rank's row of whole numbers, by rank. Raises GroupError."""
        if self.pg is None:
            return [list(row)]
        mine = torch.tensor(list(row), dtype=torch.int64)
        rows = [torch.empty_like(mine) for _ in self.addresses]
        self.wait(lambda: self.pg.allgather([rows], [mine]))
        return [[int(v) for v in r.tolist()] for r in rows]

    def send(self, tensor: torch.Tensor, rank: int) -> None:
        """Send a tensor to a rank that receives one like it. Raises GroupError."""
        self.wait(lambda: self.pg.send([tensor], rank, 0))

    def recv(self, tensor: torch.Tensor, rank: int) -> None:
        """Receive into a tensor. Raises GroupError."""
        self.wait(lambda: self.pg.recv([tensor], rank, 0))

    def wait(self, start: Callable[[], Any]) -> None:
        """Run one collective to its end. Raises GroupError when a member is gone."""
        try:
            self.settle(start())
        except RuntimeError as error:
            self.broken = True
            raise GroupError(str(error)[:200]) from error

    def settle(self, work: Any) -> None:
        """Return when a collective is done. Raises RuntimeError when it failed.

        Shut connections end gloo's collectives, but not every one: of two losses at the same
        moment it may forget to tell the second waiter. So a group that was cut off is waited for
        no longer than `_PATIENCE`; nothing can come any more.
        """
        while True:
            try:
                work.wait(_PATIENCE)
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # tells what it failed of, or nothing: done at the last moment
                elif self.broken:
                    _ABANDONED.append((self.pg, work))
                    raise
                else:
                    continue
            return

    def cut(self) -> None:
        """Shut the group's connections: what waits in a collective, here or at a peer, fails now.

        ProcessGroupGloo.abort() does not interrupt a pending collective. All connections go, not
        only those to a dead address: a group that lost one member is of no more use, and on
        loopback an accepted connection does not show who is behind it.
        """
        self.broken = True
        shut(self.sockets)

    def close(self) -> None:
        """Let go of the group, connections first so that no thread of it waits for a peer."""
        shut(self.sockets)
        self.pg = self.store = None
        self.sockets = ()


def form(
    order: Generation,
    token: str,
    address: str,
    *,
    publish: Callable[[StoreUp], None],
    await_store: Callable[[int], StoreUp],
    local: tuple[int, int] = (0, 1),
) -> Group:
    """Form the group of `order`; blocks until all members have joined.

    `local`: this worker's number in its VM, and how many workers each VM has; ranks go through
    the first VM, then the second. Rank 0 serves a fresh store on its own address. Raises
    RuntimeError or OSError when a member does not come, TimeoutError when the store is not
    announced.
    """
    number, workers = local
    rank, world = order.tokens.index(token) * workers + number, len(order.tokens) * workers
    addresses = tuple(a for a in order.addresses for _ in range(workers))
    if world == 1:
        return Group(order.number, 0, addresses)
    if rank == 0:
        served, port = _serve_store(address)
        publish(StoreUp(order.number, address, port))
    else:
        up = await_store(order.number)
        port = up.port
        served = TCPStore(
            up.host, port, is_master=False, timeout=FORM_TIMEOUT, wait_for_workers=False
        )
    store = PrefixStore(f"g{order.number}", served)
    device, own_port = _device(address)
    store.set(f"port{rank}", str(own_port))
    pg = _gloo(store, rank, world, device)
    ends = {(addresses[r], int(store.get(f"port{r}"))) for r in range(world)}
    ends.add((addresses[0], port))
    return Group(order.number, rank, addresses, pg, served, _connections(ends))


def _device(address: str) -> tuple[Any, int]:
    """Return a gloo device and the port on which it listens."""
    with _DEVICES:
        before = set(open_sockets())
        device = dist.ProcessGroupGloo.create_device(hostname=address)
        for number, inode in open_sockets():
            if (number, inode) not in before:
                port = _listening_port(number, address)
                if port:
                    return device, port
    raise RuntimeError(f"gloo does not listen on {address}")


def _gloo(store: Store, rank: int, world: int, device: Any) -> Any:
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [device]
    options._timeout = FORM_TIMEOUT
    options._threads = 2
    pg: Any = dist.ProcessGroupGloo(store, rank, world, options)
    pg.set_timeout(COLLECTIVE_TIMEOUT)
    return pg


def _serve_store(address: str) -> tuple[TCPStore, int]:
    """Return a store and its port: bound before it is announced, so nobody can take the port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(128)
    port = int(listener.getsockname()[1])
    store = TCPStore(
        address,
        port,
        is_master=True,
        timeout=FORM_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, port


def open_sockets() -> list[Socket]:
    """Return this process's sockets."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
            if target.startswith("socket:"):
                found.append((int(name), target))
    return found


def shut(sockets: Sequence[Socket]) -> int:
    """Shut these connections down, as far as they are still the same; return how many."""
    count = 0
    for number, inode in sockets:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}") != inode:  # noqa: PTH115
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _connections(ends: set[tuple[str, int]]) -> tuple[Socket, ...]:
    """Return this process's connections to or from what listens at `ends`, (address, port) each.

    By the ports, as the groups of several generations may be forming at the same time, and on
    loopback the kernel gives every dialler the source 127.0.0.1.
    """
    return tuple(s for s in open_sockets() if not ends.isdisjoint(_ends(s[0])))


def _ends(number: int) -> tuple[tuple[str, int], ...]:
    """Return the peer's and the own end of a connection; nothing if it is none."""
    try:
        with socket.socket(fileno=os.dup(number)) as connection:
            return _end(connection.getpeername()), _end(connection.getsockname())
    except OSError:
        return ()


def _listening_port(number: int, address: str) -> int:
    """Return where a socket listens on `address`; 0 if it does not."""
    try:
        with socket.socket(fileno=os.dup(number)) as listener:
            host, port = _end(listener.getsockname())
            listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        return 0
    return port if listens and host == address else 0


def _end(name: Any) -> tuple[str, int]:
    if not isinstance(name, tuple):
        return "", 0
    return str(name[0]).removeprefix("::ffff:"), int(name[1])
