"""One generation's process group: how it is formed, used, cut off from the dead, and closed."""

from __future__ import annotations

import contextlib
import os
import socket
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
    before = set(open_sockets())
    if rank == 0:
        store, port = _serve_store(address)
        publish(StoreUp(order.number, address, port))
    else:
        up = await_store(order.number)
        store = TCPStore(
            up.host, up.port, is_master=False, timeout=FORM_TIMEOUT, wait_for_workers=False
        )
    pg = _gloo(PrefixStore(f"g{order.number}", store), rank, world, address)
    group = Group(order.number, rank, addresses, pg, store)
    group.sockets = _to_members(set(open_sockets()) - before, order.addresses, address)
    return group


def _gloo(store: Store, rank: int, world: int, address: str) -> Any:
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
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


def _to_members(sockets: set[Socket], members: Sequence[str], address: str) -> tuple[Socket, ...]:
    return tuple(s for s in sockets if _reaches(s[0], set(members), address))


def _reaches(number: int, members: set[str], address: str) -> bool:
    """Return whether the connection ends at a member.

    On loopback the kernel gives every dialler the source 127.0.0.1, so that there an accepted
    connection is known by its own end, which is the VM's address.
    """
    try:
        with socket.socket(fileno=os.dup(number)) as connection:
            peer, own = _host(connection.getpeername()), _host(connection.getsockname())
    except OSError:
        return False
    return peer in members or (own == address and peer.startswith("127."))


def _host(name: Any) -> str:
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else ""
