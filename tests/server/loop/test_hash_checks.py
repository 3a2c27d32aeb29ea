"""Log-ins against bcrypt hashes: wrong ones, many at once, do not keep right ones out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

import pytest

from slipstream import connect
from slipstream.server import Server, User
from slipstream.server.engine.settings import Check
from slipstream.server.loop import hash_checks
from slipstream.server.loop.hash_checks import MAX_WAITING, THREADS, HashChecks

HASH = "$2a$04$" + "a" * 53


class Comparisons:
    """Instead of bcrypt: takes a while, and remembers the order."""

    def __init__(self, seconds: float) -> None:
        self.order: list[str] = []
        self._seconds = seconds

    def __call__(self, secret: str, hashed: str) -> bool:
        assert hashed == HASH
        self.order.append(secret)
        time.sleep(self._seconds)
        return secret.startswith("right")


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Comparisons:
    found = Comparisons(0.02)
    monkeypatch.setattr(hash_checks, "fits_hash", found)
    return found


def one(secret: str) -> Check:
    return Check(1, secret, HASH)


async def test_addresses_take_turns(comparisons: Comparisons) -> None:
    checks = HashChecks()
    flood = [asyncio.ensure_future(checks.check("a", one(f"wrong{n}"))) for n in range(MAX_WAITING)]
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(checks.check(name, one(f"right {name}"))) for name in ("b", "c")]
    assert await asyncio.gather(*others) == [True, True]
    assert all(comparisons.order.index(f"right {name}") <= THREADS + 3 for name in ("b", "c"))
    assert await asyncio.gather(*flood) == [False] * MAX_WAITING
    checks.stop()


async def test_more_than_some_of_one_address_are_refused_at_once(comparisons: Comparisons) -> None:
    checks = HashChecks()
    results = await asyncio.gather(*(checks.check("a", one(f"wrong{n}")) for n in range(60)))
    assert results.count(None) == 60 - MAX_WAITING - THREADS
    assert len(comparisons.order) == checks.compared == MAX_WAITING + THREADS
    assert await checks.check("a", one("right")) is True  # there is space again
    checks.stop()


async def test_one_secret_is_compared_once_and_a_right_one_is_known(comparisons: Comparisons) -> None:
    checks = HashChecks()
    assert await asyncio.gather(*(checks.check("a", one("right")) for _ in range(100))) == [True] * 100
    assert comparisons.order == ["right"]
    flood = [asyncio.ensure_future(checks.check("a", one(f"wrong{n}"))) for n in range(60)]
    await asyncio.sleep(0)
    assert await checks.check("a", one("right")) is True
    assert await checks.check("a", Check(1, "right", HASH)) is True
    assert comparisons.order.count("right") == 1
    assert True not in await asyncio.gather(*flood)
    assert "right" not in repr(vars(checks))  # it keeps no secret, and no digest that others could make
    checks.stop()


async def test_a_wrong_secret_is_not_remembered(comparisons: Comparisons) -> None:
    checks = HashChecks()
    assert [await checks.check("a", one("wrong")) for _ in range(2)] == [False, False]
    assert comparisons.order == ["wrong", "wrong"]
    checks.stop()


def attempt(port: int, password: str, source: str = "127.0.0.1") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))
    login = json.dumps({"verbose": False, "user": "u", "pass": password})
    sock.sendall(f"CONNECT {login}\r\nPING\r\n".encode())
    return sock


def outcome(sock: socket.socket) -> str:
    seen = b""
    while b"PONG\r\n" not in seen and b"-ERR" not in seen:
        data = sock.recv(4096)
        if not data:
            break
        seen += data
    return "in" if b"PONG\r\n" in seen else seen.rpartition(b"\r\n-ERR ")[2].decode().strip()


async def test_sixty_wrong_logins_do_not_keep_right_ones_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took 6 s of two threads, and the time to authenticate is 2 s."""
    monkeypatch.setattr(hash_checks, "fits_hash", Comparisons(0.2))
    async with Server(users=[User(name="u", password=HASH)]) as server:
        async with connect(server.url, user="u", password="right again") as nc:
            assert nc.is_connected
        with contextlib.ExitStack() as stack:
            wrong = [stack.enter_context(attempt(server.port, f"wrong{n}")) for n in range(60)]
            await asyncio.sleep(0.05)  # let the server read them
            same = stack.enter_context(attempt(server.port, "right again"))
            other = stack.enter_context(attempt(server.port, "right, for the first time", "127.0.0.2"))
            assert await asyncio.to_thread(outcome, same) == "in"
            assert await asyncio.to_thread(outcome, other) == "in"
            assert {await asyncio.to_thread(outcome, sock) for sock in wrong} == {"'Authorization Violation'"}


async def test_the_time_for_a_comparison_is_not_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_checks, "fits_hash", Comparisons(0.6))
    async with Server(users=[User(name="u", password=HASH)], auth_timeout=0.3) as server:
        with attempt(server.port, "right") as sock:
            assert await asyncio.to_thread(outcome, sock) == "in"
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent:
            assert await asyncio.to_thread(outcome, silent) == "'Authentication Timeout'"
