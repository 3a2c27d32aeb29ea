"""Comparison of secrets with bcrypt hashes, away from the loop, in a queue that wrong log-ins cannot fill for others.

One comparison takes a good part of a second of CPU, by design of bcrypt. So that a flood of wrong passwords does not
keep right ones out:

- addresses take turns: a client waits for the comparisons of its own address, and for one of each other;
- `MAX_WAITING` comparisons of an address wait at most; further log-ins from it are refused at once;
- the same secret for the same hash is compared once, however many clients wait for the result (a service that starts a
  hundred clients with one password);
- a secret that was right is known by a keyed digest (the key is random, and of this process): a client that connects
  again is not compared again, whatever else waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from slipstream.server.engine.settings import Check
from slipstream.server.loop.signatures import fits_hash

THREADS = 2
MAX_WAITING = 16  # comparisons of one address
MAX_ADDRESSES = 4096  # with waiting comparisons
MAX_KNOWN = 10_000  # right secrets


class _Comparison:
    """A secret and a hash, and those who wait for the result."""

    __slots__ = ("check", "digest", "result")

    def __init__(self, check: Check, digest: bytes, result: asyncio.Future[bool]) -> None:
        self.check, self.digest, self.result = check, digest, result


class HashChecks:
    """The comparisons of one server; all methods run on its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool: ThreadPoolExecutor | None = None
        self._running = 0
        self._waiting: dict[str, deque[_Comparison]] = {}  # by address; the first address is next
        self._open: dict[bytes, _Comparison] = {}  # by digest, until they have a result
        self._known: dict[bytes, None] = {}  # digests of right secrets, oldest first
        self._key = secrets.token_bytes(32)
        self.compared: int = 0

    async def check(self, address: str, check: Check) -> bool | None:
        """Whether the secret is right; None if too many of the address wait already."""
        digest = hashlib.blake2b(f"{check.hash}\0{check.secret}".encode(), key=self._key).digest()
        if digest in self._known:
            return True
        found = self._open.get(digest)
        if found is None:
            queue = self._waiting.get(address)
            if queue is None:
                if len(self._waiting) >= MAX_ADDRESSES:
                    return None
                queue = self._waiting[address] = deque()
            if len(queue) >= MAX_WAITING:
                return None
            found = self._open[digest] = _Comparison(check, digest, self._loop.create_future())
            queue.append(found)
            self._start()
        return await asyncio.shield(found.result)

    def _start(self) -> None:
        """Begin comparisons, one of each address in turn, while there are threads for them."""
        while self._running < THREADS and self._waiting:
            address, queue = next(iter(self._waiting.items()))
            comparison = queue.popleft()
            del self._waiting[address]
            if queue:
                self._waiting[address] = queue  # behind the others
            self._running += 1
            self.compared += 1
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, "slipstream-hash")
            check = comparison.check
            done = self._loop.run_in_executor(self._pool, fits_hash, check.secret, check.hash)
            done.add_done_callback(lambda done, one=comparison: self._done(one, done))  # type: ignore[misc]

    def _done(self, comparison: _Comparison, done: asyncio.Future[bool]) -> None:
        self._running -= 1
        del self._open[comparison.digest]
        right = not done.cancelled() and done.exception() is None and done.result()
        if right:
            if len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[comparison.digest] = None
        if not comparison.result.done():
            comparison.result.set_result(right)
        self._start()

    def stop(self) -> None:
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
