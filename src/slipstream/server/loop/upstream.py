"""Mirrors and sources of streams on other servers: one client connection per upstream server.

The engine says what to read, and from where (`ingest.RemoteIngest`). Existing messages are fetched by batched Direct
Get, which is complete whichever replica answers; new ones are consumed by an ordered consumer. Where one of the two is
not permitted, the other does all, more slowly. No position is kept here: after any failure the ingest says where to
resume. Everything runs on the server's loop, and never blocks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.api import GetRequest, StreamInfo, encode_json, format_time, names
from slipstream.errors import ApiError, Error, ErrorCode, MessageNotFoundError, RequestTimeoutError, UsageError
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT, check_account
from slipstream.server.engine.ports import Record
from slipstream.server.engine.replication.ingest import CHUNK, RemoteIngest
from slipstream.wire.redaction import redacted

if TYPE_CHECKING:
    from slipstream.client._async.client import Client
    from slipstream.jetstream._async.jetstream import JetStream
    from slipstream.server.loop.driver import Driver

log: logging.Logger = logging.getLogger("slipstream.server")

TIMEOUT = 5.0
RETRY = 0.25  # seconds between tries when an upstream cannot be reached
POLL_FIRST, POLL_LAST = 0.01, 0.25  # seconds between polls for new messages
FULL_WAIT = 0.005
IDLE = 1.0  # seconds without a message before the upstream's state is read again
MAX_CHAIN = 5  # mirrors of mirrors
MAX_SILENCE = 3_500_000_000  # nanoseconds: followers of a leader that leads were heard of since
MAX_FOREIGN_PAGES = 20  # pages answered by mirrors of the stream, before its leader is asked instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Another server or cluster: its addresses, the credentials for it, and the accounts whose mirrors and sources may
    read from it with them (`"*"`: all accounts)."""

    servers: str | Sequence[str]
    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    credentials: str | None = None
    tls_ca: str | None = None
    prefix: str = ""  # of its JetStream API, if that is not `$JS.API`
    accounts: str | Sequence[str] = (DEFAULT_ACCOUNT,)

    def __post_init__(self) -> None:
        accounts = (self.accounts,) if isinstance(self.accounts, str) else tuple(self.accounts)
        for name in accounts:
            check_account(name)
        object.__setattr__(self, "accounts", accounts)

    def __repr__(self) -> str:  # secrets are not shown
        servers = self.servers if isinstance(self.servers, str) else ",".join(self.servers)
        return f"Upstream(servers={redacted(servers)!r}, accounts={self.accounts!r})"

    def serves(self, account: str) -> bool:
        """Whether an account may read from it."""
        return account in self.accounts or "*" in self.accounts


UpstreamLike = Upstream | str | Sequence[str]


def named(upstreams: Mapping[str, UpstreamLike]) -> dict[str, Upstream]:
    """Upstreams by the API prefix that an `external` names; a key without dots is a domain."""
    found: dict[str, Upstream] = {}
    for key, value in upstreams.items():
        if not key:
            raise UsageError("the name of an upstream must be the domain or API prefix of an `external`, got ''")
        upstream = value if isinstance(value, Upstream) else Upstream(servers=value)
        found[key if "." in key else f"$JS.{key}.API"] = upstream
    return found


class Upstreams:
    """The readers of a server, one per mirror or source with an upstream."""

    def __init__(self, driver: Driver, upstreams: Mapping[str, Upstream]) -> None:
        self._driver = driver
        self._upstreams = upstreams
        self._readers: dict[RemoteIngest, asyncio.Task[None]] = {}
        self._clients: dict[str, asyncio.Task[Client]] = {}
        self._logged: dict[RemoteIngest, str] = {}  # the last failure that the log has
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        self._driver.engine.remote_ingests.changed = self._sync_readers
        self._sync_readers()

    async def stop(self) -> None:
        """End all readers and connections."""
        self._driver.engine.remote_ingests.changed = lambda: None
        tasks = [*self._readers.values(), *self._clients.values()]
        for task in tasks:
            task.cancel()
        for client in [task for task in self._clients.values() if task.done() and not task.cancelled()]:
            if client.exception() is None:
                await client.result().close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _sync_readers(self) -> None:
        """Start a reader for each new ingest, cancel those of ingests that are gone."""
        wanted = self._driver.engine.remote_ingests.ingests
        for remote in [remote for remote in self._readers if remote not in wanted]:
            self._readers.pop(remote).cancel()
            self._logged.pop(remote, None)
        for remote in wanted:
            if remote not in self._readers:
                self._readers[remote] = self._loop.create_task(self._read(remote))

    async def _read(self, remote: RemoteIngest) -> None:
        """Read one upstream stream until it is cancelled."""
        assert remote.source.external is not None
        api = remote.source.external.api
        upstream = self._upstreams.get(api)
        if upstream is None or not upstream.serves(remote.account):  # an account learns of no others
            text = f"no upstream is configured for {api!r}"
            log.warning(
                "stream %s of account %s: %s%s", remote.source.name, remote.account, text,
                "" if upstream is None else f"; accounts that may use it: {', '.join(upstream.accounts)}",
            )  # fmt: skip
            remote.fail(ErrorCode.MIRROR_CONSUMER_SETUP_FAILED.error(err=text), self._driver.clock())
            return
        from slipstream.jetstream._async.jetstream import (
            JetStream,  # a server without mirrors starts without a client
        )

        while True:
            try:
                client = await self._client(api, upstream)
                js = JetStream(client, prefix=upstream.prefix, timeout=TIMEOUT)
                await Reader(self._driver, remote, js, names.api_prefix(prefix=upstream.prefix)).run()
            except ApiError as exc:
                remote.fail(exc, self._driver.clock())
            except (Error, OSError, TimeoutError) as exc:
                self._unreachable(remote, api, str(exc) or type(exc).__name__)
            except Exception:  # a defect must not end the mirror: try again
                log.exception("internal error in reading stream %s of %r", remote.source.name, upstream)
                self._unreachable(remote, api, "internal error")
            await asyncio.sleep(RETRY)

    def _unreachable(self, remote: RemoteIngest, api: str, why: str) -> None:
        """The reason names addresses: it goes to the log, once. Who asks for the stream's info learns that it is so."""
        if self._logged.get(remote) != why:
            self._logged[remote] = why
            log.warning("upstream %s cannot be read for stream %s: %s", api, remote.source.name, why)
        text = f"upstream {api!r} cannot be reached"
        remote.fail(ErrorCode.MIRROR_CONSUMER_SETUP_FAILED.error(err=text, status=503), self._driver.clock())

    async def _client(self, api: str, upstream: Upstream) -> Client:
        """The connection to an upstream, shared by its readers."""
        known = self._clients.get(api)
        if known is None or (known.done() and (known.cancelled() or known.exception() or known.result().is_closed)):
            known = self._clients[api] = self._loop.create_task(_connect(upstream))
        return await asyncio.shield(known)


async def _connect(upstream: Upstream) -> Client:
    from slipstream.client._async.client import Client

    return await Client.connect(
        upstream.servers if isinstance(upstream.servers, str) else list(upstream.servers),
        name="slipstream mirror",
        user=upstream.user,
        password=upstream.password,
        token=upstream.token,
        nkey=upstream.nkey,
        credentials=upstream.credentials,
        tls_ca=upstream.tls_ca,
        timeout=TIMEOUT,
        reconnect_max_wait=1.0,
    )


class Reader:
    """Reads one stream for one ingest, until it fails."""

    def __init__(self, driver: Driver, remote: RemoteIngest, js: JetStream, prefix: str) -> None:
        self._driver, self._remote, self._js = driver, remote, js
        self._stream = js.stream(remote.source.name)
        self._direct_get = f"{prefix}.DIRECT.GET.{remote.source.name}"
        self._foreign_pages = 0
        self._may_consume = True
        self._pattern = remote.filters[0] if len(remote.filters) == 1 else ">"

    async def run(self) -> None:
        pause = POLL_FIRST
        while True:
            info = await self._observe()
            last = info.state.last_seq
            start = self._remote.next_seq or await self._start_by_time(last)
            if self._remote.is_paused:
                await asyncio.sleep(POLL_LAST)
                continue
            if start <= last and (info.config.allow_direct or not self._may_consume):
                await self._fetch(info, start, last)
                pause = POLL_FIRST
                continue
            if start > last:
                await self._offer([], last, last)
            if self._may_consume:
                await self._follow(info, start)
                continue
            reported = await self._wait_for_messages(info, last, pause)
            pause = POLL_FIRST if reported else min(2 * pause, POLL_LAST)

    async def _follow(self, info: StreamInfo, start: int) -> None:
        """Consume new messages, until the state of the stream must be read again."""
        filters = () if self._remote.filters == (">",) else self._remote.filters
        consumer = self._stream.ordered_consumer(filters, start_seq=start)
        try:
            await consumer.start(timeout=TIMEOUT)
        except ApiError as exc:
            log.info("upstream stream %s cannot be consumed, polling it instead: %s", self._stream.name, exc)
            self._may_consume = False
            return
        resets = consumer.resets
        try:
            while True:
                try:
                    chunk = await consumer.next_chunk(timeout=IDLE)
                except RequestTimeoutError:
                    if not await self._check_upstream(info):
                        return
                    continue
                if consumer.resets != resets:  # it resumed, perhaps in a new stream of that name
                    resets = consumer.resets
                    if (await self._stream.info(timeout=TIMEOUT)).created != info.created:
                        return
                records = [Record(m.seq, m.time, m.subject, m.raw.header, m.data) for m in chunk]
                last = chunk[-1].seq + chunk[-1].num_pending
                for at in range(0, len(records), CHUNK):
                    part = records[at : at + CHUNK]
                    if not await self._offer(part, part[-1].seq, last):
                        return
                if self._remote.needs_position and (await self._observe()).created != info.created:
                    return
        finally:
            await consumer.close()

    async def _check_upstream(self, info: StreamInfo) -> bool:
        """No message arrived for a while. Messages that the filters skip, or that were deleted, count as seen. False if
        the stream was created again, or the ingest is held."""
        now = await self._observe()
        last = now.state.last_seq
        if now.created != info.created or last + 1 < self._remote.next_seq or self._remote.is_paused:
            return False
        if self._remote.next_seq <= last:
            return await self._fetch(now, self._remote.next_seq, last)
        done = await self._offer([], last, last)
        if self._remote.needs_position:
            await self._observe()
        return done

    async def _observe(self) -> StreamInfo:
        """The state of the upstream; the ingest learns from it where a gap in what it was offered ends."""
        info = await self._stream.info(timeout=TIMEOUT)
        self._remote.meet(info.created, info.config)
        if info.config.mirror is None:
            if is_current(info):
                self._remote.confirm(info.config, info.state.last_seq, info.state.messages)
                if not info.cluster.get("replicas"):  # otherwise a follower may have been a moment ahead
                    self._remote.lost(info.state.last_seq)
        elif (last := await self._end_of_mirror(info)) is not None:
            self._remote.confirm(info.config, last, -1)
        self._driver.wake()
        return info

    async def _end_of_mirror(self, info: StreamInfo) -> int | None:
        """The same where the upstream is a mirror itself, and may have a gap. One of our servers says as of what it is;
        otherwise the stream at the end of the chain is asked, if this server knows it."""
        if info.config.allow_direct:
            body = encode_json(GetRequest(seq=max(info.state.last_seq, 1), as_of=True))
            reply = await self._js.client.request(self._direct_get, body, timeout=TIMEOUT)
            said = reply.headers.get(names.AS_OF) if reply.headers is not None else None
            if said is not None:
                return int(said) if int(said) >= info.state.last_seq and is_current(info) else None
        for _ in range(MAX_CHAIN):
            mirror = info.config.mirror
            if mirror is None:
                return info.state.last_seq if is_current(info) else None
            if mirror.external is not None:
                return None
            info = await self._js.stream(mirror.name).info(timeout=TIMEOUT)
        return None

    async def _start_by_time(self, last: int) -> int:
        time = self._remote.source.opt_start_time
        assert time is not None
        request = GetRequest(start_time=format_time(time), next_by_subj=">")
        try:
            return (await self._stream.get_from_leader(request, timeout=TIMEOUT)).seq
        except MessageNotFoundError:
            return last + 1

    async def _fetch(self, info: StreamInfo, start: int, last: int) -> bool:
        """Fetch everything from `start` to `last`; False if it must be tried again."""
        pages = (
            self._by_direct_get
            if info.config.allow_direct and self._foreign_pages < MAX_FOREIGN_PAGES
            else self._from_leader
        )
        async with contextlib.aclosing(pages(start, last)) as chunks:
            async for records in chunks:
                for at in range(0, len(records), CHUNK):
                    part = records[at : at + CHUNK]
                    if not await self._offer(part, part[-1].seq, last):
                        return False
                if not records:
                    return False  # a mirror has answered instead of the stream: try again
        return await self._offer([], last, last)

    async def _by_direct_get(self, start: int, last: int) -> AsyncGenerator[list[Record], None]:
        pattern = "" if self._pattern == ">" else self._pattern
        async for columns in self._stream.read_columns(start=start, end=last, subject=pattern, timeout=TIMEOUT):
            if columns.seqs and columns.stream != self._stream.name:
                # A mirror of the stream has answered: it may filter messages out, and has deletes of its own.
                self._foreign_pages += 1
                yield []
                return
            rows = zip(columns.seqs, columns.times, columns.subjects, columns.headers, columns.data, strict=True)
            if columns.seqs:
                yield [Record(*row) for row in rows]

    async def _from_leader(self, start: int, last: int) -> AsyncGenerator[list[Record], None]:
        while start <= last:
            request = GetRequest(seq=start, next_by_subj=self._pattern)
            try:
                found = await self._stream.get_from_leader(request, timeout=TIMEOUT)
            except MessageNotFoundError:
                return
            start = found.seq + 1
            yield [Record(found.seq, found.time, found.subject, found.header, found.data)]

    async def _offer(self, records: list[Record], up_to: int, last: int) -> bool:
        """Hand over a chunk once the ingest is open; False if it has moved, is held, or did not take all."""
        remote = self._remote
        expected = remote.next_seq
        while not remote.is_open:
            if remote.is_paused:
                return False
            await asyncio.sleep(FULL_WAIT)
        if remote.next_seq != expected:
            return False
        done = remote.offer(records, up_to, last, self._driver.clock())
        self._driver.wake()
        await asyncio.sleep(0 if done else RETRY)
        return done

    async def _wait_for_messages(self, info: StreamInfo, last: int, pause: float) -> bool:
        """Wait for new messages; True if the upstream reported one. A server that supports `min_last_seq` holds the
        request until there is one; others are polled with a pause."""
        if self._remote.is_paused or not info.config.allow_direct:
            await asyncio.sleep(pause)
            return False
        begin = asyncio.get_running_loop().time()
        body = b'{"seq":%d,"min_last_seq":%d}' % (last + 1, last + 1)
        reply = await self._js.client.request(self._direct_get, body, timeout=TIMEOUT)
        if reply.status is None:
            return True
        if asyncio.get_running_loop().time() - begin < pause:
            await asyncio.sleep(pause)
        return False


def is_current(info: StreamInfo) -> bool:
    """Whether the leader gave this answer, and no other can have been elected meanwhile: a leader that is cut off goes
    on answering for some time, but it does not hear of its followers."""
    replicas = info.cluster.get("replicas") or ()
    leader = info.cluster.get("leader")
    if info.cluster and (not leader or any(replica.get("name") == leader for replica in replicas)):
        return False
    return all(replica.get("active", MAX_SILENCE) < MAX_SILENCE and not replica.get("offline") for replica in replicas)
