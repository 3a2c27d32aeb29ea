"""The order in which the servers of a cluster are tried."""

from __future__ import annotations

from slipstream.client.address import Address
from slipstream.client.server_pool import AVOIDED, ServerPool

A, B, C = Address("a"), Address("b"), Address("c")


def pool_on(server: Address) -> ServerPool:
    """A pool of three whose connection is to one of them."""
    pool = ServerPool([A, B, C])
    while pool.next() != server:
        pass
    pool.accepted(server)
    return pool


def test_servers_are_tried_in_turn() -> None:
    pool = ServerPool([A, B, C])
    assert [pool.next() for _ in range(4)] == [A, B, C, A]


def test_moving_on_does_not_come_back_to_a_server_that_was_left() -> None:
    """It is cut off from its cluster, and accepts connections as before."""
    pool = pool_on(A)
    pool.leave(A, 0.0)
    for now in (1.0, 2.0, 3.0, 4.0):  # the connections to the others are lost in other ways
        server = pool.next(now)
        assert server in (B, C)
        pool.accepted(server)


def test_a_server_that_was_left_is_tried_when_no_other_accepts() -> None:
    pool = pool_on(A)
    pool.leave(A, 0.0)
    assert [pool.next(1.0) for _ in range(3)] == [B, C, A]
    assert {pool.next(1.0) for _ in range(3)} == {A, B, C}  # in turn, until one accepts


def test_servers_that_were_all_left_are_tried_in_turn() -> None:
    pool = pool_on(A)
    pool.leave(A, 0.0)
    assert pool.next(5.0) == B
    pool.accepted(B)
    pool.leave(B, 5.0)
    assert pool.next(10.0) == C
    pool.accepted(C)
    pool.leave(C, 10.0)
    assert pool.next(15.0) == A


def test_a_server_that_was_left_long_ago_is_one_like_any_other() -> None:
    pool = pool_on(A)
    pool.leave(A, 0.0)
    assert [pool.next(1.0), pool.next(1.0)] == [B, C]
    pool.accepted(C)
    assert pool.next(AVOIDED) == A
