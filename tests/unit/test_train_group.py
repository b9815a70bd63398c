"""Which connections are a group's, when several groups are being formed at once."""

from __future__ import annotations

import threading
from typing import Any

from surefoot.core.wire import Generation, StoreUp
from surefoot.train.group import Group, GroupError, form

TOKENS, ADDRESSES = ("a", "b"), ("127.0.1.61", "127.0.1.62")


def start(number: int, formed: dict[tuple[int, str], Group]) -> list[threading.Thread]:
    """Form one group of two members in this process, each in a thread of its own."""
    order, told, up = Generation(number, TOKENS, ADDRESSES), threading.Event(), []

    def publish(message: StoreUp) -> None:
        up.append(message)
        told.set()

    def await_store(_: int) -> StoreUp:
        assert told.wait(60)
        return up[0]

    def join(token: str, address: str) -> None:
        formed[number, token] = form(
            order, token, address, publish=publish, await_store=await_store
        )

    threads = [
        threading.Thread(target=join, args=who) for who in zip(TOKENS, ADDRESSES, strict=True)
    ]
    for thread in threads:
        thread.start()
    return threads


def gather(number: int, formed: dict[tuple[int, str], Group]) -> list[object]:
    """Return what each member got of an all-gather, or the error it met."""
    found: list[object] = [None, None]

    def ask(place: int) -> None:
        try:
            found[place] = formed[number, TOKENS[place]].gather_rows([number, place])
        except GroupError as error:
            found[place] = error

    threads = [threading.Thread(target=ask, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_groups_formed_at_once_keep_apart_and_closing_one_leaves_the_others_whole() -> None:
    # cases 88, 89: a generation that was given up while it formed once cut its successor
    count = 6
    formed: dict[tuple[int, str], Group] = {}
    for thread in [t for number in range(1, count + 1) for t in start(number, formed)]:
        thread.join(60)
    assert len(formed) == 2 * count
    seen = [{inode for _, inode in group.sockets} for group in formed.values()]
    assert all(len(inodes) >= 2 for inodes in seen)
    for number in range(1, count):
        formed[number, "a"].close()
        formed[number, "b"].close()
        rows = [[number + 1, 0], [number + 1, 1]]
        assert gather(number + 1, formed) == [rows, rows]


def test_a_cut_group_fails_and_names_why() -> None:
    formed: dict[tuple[int, str], Group] = {}
    for thread in start(1, formed):
        thread.join(60)
    formed[1, "a"].cut()
    assert [type(found) for found in gather(1, formed)] == [GroupError, GroupError]
    assert formed[1, "a"].broken and formed[1, "b"].broken


def test_a_group_of_one_needs_no_connection() -> None:
    order = Generation(1, ("a",), (ADDRESSES[0],))

    def never(_: Any) -> Any:
        raise AssertionError("nobody is to be told or asked")

    group = form(order, "a", ADDRESSES[0], publish=never, await_store=never)
    assert (group.world, group.sockets, group.gather_rows([7])) == (1, (), [[7]])
