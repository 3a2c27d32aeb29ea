"""JetStream over the asyncio client: publishing, streams by name, subscriptions and sessions.

Thin: requests, decoders and flow control are pure and live beside this module; here they are sent and waited for. The
blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from slipstream.api import AccountInfo, ConsumerConfig, PubAck, StreamConfig, StreamFields, StreamInfo, names
from slipstream.api.fields_set import configuration
from slipstream.client._async.client import Client
from slipstream.client._async.opening import Openable, opens
from slipstream.client.options import MAX_PENDING_BYTES, MAX_PENDING_MSGS
from slipstream.codecs import Codec
from slipstream.codecs.payloads import encode_payload
from slipstream.errors import NoStreamError, StreamNameInUseError
from slipstream.jetstream import requests
from slipstream.jetstream._async.atomic_batch import AtomicBatch
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.message import Callback
from slipstream.jetstream._async.ordered import OrderedConsumer
from slipstream.jetstream._async.publisher import RETRY_WAIT, Publisher
from slipstream.jetstream._async.push import PushSubscription
from slipstream.jetstream._async.repeats import RepeatedPublish
from slipstream.jetstream._async.stream import Stream
from slipstream.jetstream._async.subscribe import PullSubscription, pull_subscribe, push_subscribe
from slipstream.jetstream.consume.ordered import HEARTBEAT
from slipstream.jetstream.consume.subscribe import Wanted
from slipstream.jetstream.publish.counts import PublishStats
from slipstream.jetstream.publish.repeats import is_repeatable
from slipstream.jetstream.reads.read_state import ReadStats
from slipstream.jetstream.reads.session import SessionState
from slipstream.wire import Headers
from slipstream.wire.arguments import Duration, check_seconds, check_timeout
from slipstream.wire.headers import HeaderValues

T = TypeVar("T")

DEFAULT_TIMEOUT = 5.0
DEFAULT_WINDOW = 4096
RETRIES = 2  # of a publish that no stream took


class JetStream:
    """JetStream of one account: publish, and streams by name."""

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = "",
        domain: str = "",
        timeout: Duration = DEFAULT_TIMEOUT,
        codec: Codec[Any] | None = None,
    ) -> None:
        api_prefix = names.api_prefix(prefix=prefix, domain=domain)
        self._context = JetStreamContext(client, api_prefix, timeout=check_seconds(timeout), codec=codec)

    def __repr__(self) -> str:
        prefix = "" if self.prefix == names.API_PREFIX else f", prefix {self.prefix!r}"
        return f"<{type(self).__name__} of {self.client!r}{prefix}>"

    @property
    def context(self) -> JetStreamContext:
        """What the objects made by this one share: for layers that build on JetStream, as buckets do."""
        return self._context

    @property
    def client(self) -> Client:
        """The connection beneath."""
        return self._context.client

    @property
    def prefix(self) -> str:
        """The subject prefix of the API."""
        return self._context.prefix

    @property
    def timeout(self) -> float:
        """In seconds, for calls that do not say another."""
        return self._context.timeout

    @property
    def codec(self) -> Codec[Any]:
        """The codec for payloads that are not bytes, and for `message.decode()`."""
        return self._context.codec

    @property
    def read_stats(self) -> ReadStats:
        """How the reads of this connection went so far: at once, retried, with the leader's help, failed."""
        return self._context.read_state.stats

    @property
    def publish_stats(self) -> PublishStats:
        """How many messages were published to streams on this connection, and acknowledged."""
        return self._context.publish_counts.stats

    def session(self, token: str = "", *, secret: bytes = b"") -> Session:
        """Read-your-writes and monotonic reads without bookkeeping: `async with js.session() as s`.

        `s` has all methods of this object; every read through it reflects everything written and read through it
        before. With the `token` of another session, possibly of another process, it continues where that one was. With
        a `secret` its tokens are signed, and any other token raises SessionTokenError.
        """
        return Session(self, token, secret=secret)

    async def publish(
        self,
        subject: str,
        payload: object = b"",
        *,
        headers: Headers | HeaderValues | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_msg_id: str | None = None,
        ttl: Duration | None = None,
        rollup: str | None = None,
        timeout: Duration | None = None,
        retries: int = RETRIES,
        retry_wait: Duration = RETRY_WAIT,
    ) -> PubAck:
        """Store one message and wait until the stream has it. For many messages use `publisher()`.

        The payload is bytes, or an object (a Struct, a dataclass, a dict, ...), which the codec encodes.
        Without responders (the stream's leader may be changing) it is retried `retries` times, after pauses that grow
        from `retry_wait` seconds on.

        With a `msg_id` it is also repeated, within `timeout`, when the connection is lost, and up to `retries` times
        when no answer arrives, as long as the stream is certain to recognise the duplicate: in the first half of its
        duplicate window, and not after a restart of the server if messages may have been removed meanwhile (a work
        queue, limits per subject). Otherwise, with an expectation other than `expected_stream`, or with `retries=0`,
        ConnectionLostError or RequestTimeoutError is raised, and it is unknown whether the message was stored.

        Raises WrongLastSequenceError if an expectation is not met, NoStreamError if no stream listens on `subject`.
        """
        if not isinstance(payload, bytes):
            payload, headers = encode_payload(self._context.codec, subject, payload, headers)
        call = requests.publish(
            subject,
            payload,
            headers=headers,
            msg_id=msg_id,
            expected_stream=expected_stream,
            expected_last_seq=expected_last_seq,
            expected_last_subject_seq=expected_last_subject_seq,
            expected_last_msg_id=expected_last_msg_id,
            ttl=ttl,
            rollup=rollup,
        )
        retry_wait = check_seconds(retry_wait, "retry_wait")
        counts = self._context.publish_counts
        counts.published += 1
        if retries and is_repeatable(call.header):
            limit = self._context.timeout if timeout is None else check_seconds(timeout)
            ack = await RepeatedPublish(self._context, call).run(timeout=limit, retries=retries, retry_wait=retry_wait)
            counts.acknowledged(ack.duplicate)
            self._context.note_ack(ack, subject, call.header)
            return ack
        tried = 0
        while True:
            try:
                ack = await self._context.run(call, timeout=timeout)
            except NoStreamError:
                if tried >= retries:
                    raise
                await self._context.client.sleep(retry_wait * 2**tried)
                tried += 1
            else:
                counts.acknowledged(ack.duplicate)
                self._context.note_ack(ack, subject, call.header)
                return ack

    def publisher(
        self,
        *,
        max_in_flight: int = DEFAULT_WINDOW,
        timeout: Duration | None = None,
        retries: int = 0,
        retry_wait: Duration = RETRY_WAIT,
    ) -> Publisher:
        """Publish many messages, each acknowledged, with up to `max_in_flight` acks outstanding: the fast way.

        With `retries`, messages without responders are sent again, after those that followed them. After a lost
        connection, messages with a `msg_id` are repeated in order, under the conditions of `publish`.
        """
        timeout = self._context.timeout if timeout is None else timeout
        return Publisher(
            self._context, max_in_flight=max_in_flight, timeout=timeout, retries=retries, retry_wait=retry_wait
        )

    def atomic_batch(self, *, timeout: Duration | None = None) -> AtomicBatch:
        """Messages for one stream that are all stored or none: `async with js.atomic_batch() as batch`.

        The stream must have `allow_atomic`, which needs nats-server 2.12 or newer.
        """
        return AtomicBatch(self._context, timeout=self._context.timeout if timeout is None else timeout)

    async def create_stream(
        self, config: StreamConfig | str, *, timeout: Duration | None = None, **fields: Unpack[StreamFields]
    ) -> Stream:
        """Create a stream, or return an existing one with the same configuration: `create_stream("ORDERS",
        subjects=["orders.>"])`, or with a StreamConfig.

        Raises StreamNameInUseError if a stream of that name has another configuration. `allow_direct` is compared only
        if it was set.
        """
        config = configuration(StreamConfig, config, fields)
        context, session = self._context, self._context.session
        call = context.api.create_stream(config)
        mark = 0 if session is None else session.mark(config.name)
        try:
            info = await context.run(call, timeout=timeout)
        except StreamNameInUseError:
            if "allow_direct" in config.fields_set:
                raise
            # Made by an earlier version of this library, or by a client that leaves the field out.
            other = config.replace(allow_direct=False)
            info = await context.run(context.api.create_stream(other), timeout=timeout)
        name = info.config.name
        if config.mirror is None:  # the messages of a mirror are as old as those of the stream it copies
            if session is not None:
                session.made(name, info.created, info.state.last_seq, mark=mark, is_ours=True, config=info.config)
            context.read_state.stream(context.prefix, name).learn(info, context.client.now())
        return Stream(context, name)

    async def update_stream(
        self, config: StreamConfig | str, *, timeout: Duration | None = None, **fields: Unpack[StreamFields]
    ) -> StreamInfo:
        """Change a stream's configuration. Fields that are not set get their defaults, except `allow_direct`, which
        then stays unchanged. To change only some fields: `update_stream(info.config.replace(max_age=3600))`."""
        config = configuration(StreamConfig, config, fields)
        context = self._context
        if "allow_direct" not in config.fields_set:
            now = await context.run(context.api.stream_info(config.name), timeout=timeout)
            config = config.replace(allow_direct=now.config.allow_direct)
        return await context.run(context.api.update_stream(config), timeout=timeout)

    async def delete_stream(self, name: str, *, timeout: Duration | None = None) -> None:
        """Remove a stream and all its messages."""
        await self._context.run(self._context.api.delete_stream(name), timeout=timeout)

    async def stream_names(self, *, subject: str = "", timeout: Duration | None = None) -> AsyncIterator[str]:
        """The names of all streams, or of those that listen on a subject; asked for page by page."""
        async for name in self._context.each(partial(self._context.api.stream_names, subject=subject), timeout=timeout):
            yield name

    async def streams(self, *, subject: str = "", timeout: Duration | None = None) -> AsyncIterator[StreamInfo]:
        """The infos of all streams, or of those that listen on a subject; asked for page by page."""
        async for info in self._context.each(partial(self._context.api.stream_list, subject=subject), timeout=timeout):
            yield info

    async def account_info(self, *, timeout: Duration | None = None) -> AccountInfo:
        """The JetStream usage and limits of this account."""
        return await self._context.run(self._context.api.account_info(), timeout=timeout)

    def stream(self, name: str) -> Stream:
        """A handle on the stream of that name; nothing is asked of the server yet."""
        return Stream(self._context, requests.check_name(name))

    async def stream_of(self, subject: str, *, timeout: Duration | None = None) -> Stream:
        """The one stream that listens on a subject; raises StreamLookupError if it is none or several."""
        return Stream(self._context, await self._context.stream_name_of(subject, timeout=timeout))

    async def run(self, call: requests.Call[T], *, timeout: Duration | None = None) -> T:
        """Send a request and decode its answer."""
        return await self._context.run(call, timeout=timeout)

    @opens
    async def subscribe(
        self,
        subject: str = "",
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        queue: str = "",
        config: ConsumerConfig | None = None,
        callback: Callback | None = None,
        max_pending_msgs: int = MAX_PENDING_MSGS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        timeout: Duration | None = None,
    ) -> PushSubscription:
        """Have messages pushed: those of `subject`, from the one stream that listens on it or from `stream`.

        `consumer` names an existing push consumer; `durable` names one that is created if it does not exist; with
        neither, an ephemeral consumer is created from `config`. `queue` makes the subscription a member of a queue
        group that shares the messages (the durable has the group's name unless it is given another). Messages are read
        from the subscription, or passed to `callback` one after the other.

        Raises a subclass of SubscribeError for conflicting options, StreamLookupError or ConsumerNotFoundError if the
        stream or consumer does not exist.
        """
        timeout = check_timeout(timeout)
        wanted = Wanted(subject, stream, consumer, durable, queue, is_pull=False, config=config)
        return await push_subscribe(
            self._context,
            wanted,
            callback=callback,
            max_pending_msgs=max_pending_msgs,
            max_pending_bytes=max_pending_bytes,
            timeout=timeout,
        )

    @opens
    async def pull_subscribe(
        self,
        subject: str = "",
        *,
        stream: str = "",
        consumer: str = "",
        durable: str = "",
        config: ConsumerConfig | None = None,
        timeout: Duration | None = None,
    ) -> PullSubscription:
        """The same for a pull consumer, whose messages are fetched."""
        timeout = check_timeout(timeout)
        wanted = Wanted(subject, stream, consumer, durable, is_pull=True, config=config)
        return await pull_subscribe(self._context, wanted, timeout=timeout)

    @opens
    async def ordered(
        self,
        subject: str,
        *,
        stream: str = "",
        start_seq: int = 0,
        start_time: int | datetime | None = None,
        deliver_policy: str = "",
        headers_only: bool = False,
        heartbeat: Duration = HEARTBEAT,
        min_last_seq: int = 0,
        timeout: Duration | None = None,
    ) -> OrderedConsumer:
        """An ordered consumer of `subject`, of the one stream that listens on it or of `stream`.

        See `Stream.ordered_consumer`, which does the same for several subjects.
        """
        timeout = check_timeout(timeout)
        found = self.stream(stream) if stream else await self.stream_of(subject, timeout=timeout)
        return found.ordered_consumer(
            subject,
            start_seq=start_seq,
            start_time=start_time,
            deliver_policy=deliver_policy,
            headers_only=headers_only,
            heartbeat=heartbeat,
            min_last_seq=min_last_seq,
        )


class Session(JetStream, Openable):
    """JetStream with a memory: every read has seen all that was written and read through it before.

    Messages that are deleted or purged in place are not covered, nor is what happens outside of the session.
    """

    def __init__(self, js: JetStream, token: str = "", *, secret: bytes = b"") -> None:
        super().__init__(js.client, prefix=js.prefix, timeout=js.timeout, codec=js.codec)
        self._session = SessionState(token, secret=secret)
        self._context = self._context.in_session(self._session)

    def seen(self, stream: str) -> int:
        """The highest sequence that was written to or read from a stream; 0 for none."""
        return self._session.seen(stream)

    def note(self, stream: str, seq: int) -> None:
        """A message with that sequence was seen elsewhere: by a consumer, or by another program."""
        self._session.note(requests.check_name(stream), requests.check_seq(seq, "seq"))

    def token(self) -> str:
        """The session as a small text, for `js.session(token)` here or in another process.

        It names the streams, and for each up to 16 subjects of which the session knows the newest message. It is
        signed if the session has a secret, and never encrypted.
        """
        return self._session.token()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to be given back: a session is a memory, no resource."""
