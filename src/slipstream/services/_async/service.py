"""A service over the asyncio client: its endpoints, its answers to discovery, its end.

Invariants: a request that was received is answered with the handler's result or its error, unless the handler took the
answer upon itself; the failure of a handler is never silent, and ends nothing else: only SystemExit and
KeyboardInterrupt end the service, and `wait` raises them; `stop` returns when the server sends no more requests and
every one that it has sent was handled. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import msgspec

from slipstream.client._async.client import Client
from slipstream.client._async.subscription import Message, Subscription
from slipstream.client._async.tasks import Guard, Lock, Worker
from slipstream.client.base import DRAIN_TIMEOUT
from slipstream.client.options import MAX_PENDING_BYTES, MAX_PENDING_MSGS
from slipstream.client.reporter import failure_of
from slipstream.errors import (
    ConnectionLostError,
    Error,
    MessageDecodeError,
    RequestTimeoutError,
    ServiceError,
    SlowConsumerError,
    UsageError,
)
from slipstream.services._async.request import ServiceRequest
from slipstream.services.handlers import Handler, read_handler
from slipstream.services.protocol import EndpointConfig, Scope, ServiceConfig, Verb, control_subject, describe
from slipstream.services.reports import (
    EndpointCounters,
    EndpointInfo,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
)
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration, check_seconds, check_timeout

StatsHandler = Callable[[EndpointStats], Any]

BAD_REQUEST, INTERNAL_ERROR = 400, 500
STOP_POLL = 0.1  # seconds between two looks of `wait`

# Whether a handler may be a coroutine function.
may_be_async = False
# unasync: off
may_be_async = True
# unasync: on


class Endpoint:
    """One endpoint: a subscription, and the workers that handle its requests."""

    def __init__(self, client: Client, service: Service, config: EndpointConfig, handler: Handler) -> None:
        self.config = config
        self._client = client
        self._owner = service
        self._service = service.name
        self._handler = handler
        self._counters = EndpointCounters()
        self._lock = Lock()  # of the counters
        self._reading = Guard()  # one worker waits for the next request, the others for their turn
        self._subscription: Subscription | None = None
        self._workers: list[Worker] = []
        self._is_alone = False  # the one worker there is

    def __repr__(self) -> str:
        return f"<Endpoint {self.config.name} of service {self._service} on {self.config.subject!r}>"

    async def start(self, *, concurrency: int, max_pending_msgs: int, max_pending_bytes: int, timeout: float) -> None:
        """Subscribe; raises what the server has against it."""
        config, client = self.config, self._client
        subscription = await client.subscribe(
            config.subject,
            queue=config.queue_group,
            max_pending_msgs=max_pending_msgs,
            max_pending_bytes=max_pending_bytes,
        )
        await confirm(client, [subscription], timeout=timeout)
        self._subscription, self._is_alone = subscription, concurrency == 1
        name = f"endpoint {config.subject}"
        self._workers = [client.spawn(self._serve, name) for _ in range(concurrency)]

    def drain_soon(self) -> None:
        """Take no new requests; those that have arrived are handled."""
        if self._subscription is not None:
            self._subscription.drain_soon()

    async def join(self, deadline: float) -> bool:
        """Wait until all requests are handled, but for the one that the caller handles; False if that takes longer."""
        client = self._client
        for worker in self._workers:
            if not worker.is_own and not await worker.join(max(0.0, deadline - client.now())):
                return False
        return True

    @property
    def info(self) -> EndpointInfo:
        """What INFO says of it."""
        config = self.config
        return EndpointInfo(
            name=config.name, subject=config.subject, queue_group=config.queue_group, metadata=config.metadata
        )

    @property
    def stats(self) -> EndpointStats:
        """What STATS says of it."""
        config = self.config
        with self._lock:
            return self._counters.stats(name=config.name, subject=config.subject, queue_group=config.queue_group)

    def reset(self) -> None:
        """Start counting again."""
        with self._lock:
            self._counters.reset()

    async def _serve(self) -> None:
        while True:
            try:
                msgs = await self._next()
            except SlowConsumerError as exc:
                self._failed(str(exc))
            except StopAsyncIteration:
                return
            except Error as exc:  # the server denied it after a reconnect, or the client was closed by an error
                self._failed(str(exc))
                return
            except BaseException as exc:  # cancelled: by the end of the client, or by a watchdog that came late
                if self._client.is_own_end(exc):
                    raise
            else:
                for msg in msgs:
                    await self._handle(ServiceRequest(msg, self._client))

    async def _next(self) -> list[Msg]:
        """The next requests for this worker: all that have arrived if it is the only one."""
        subscription = self._subscription
        assert subscription is not None
        if self._is_alone and (msgs := subscription.take_now()[0]):
            return msgs
        async with self._reading:
            message = await anext(subscription)
        return [message.raw]

    async def _handle(self, request: ServiceRequest) -> None:
        counters, now, error = self._counters, self._client.now, ""
        began = now()
        with self._lock:
            counters.requests += 1
        try:
            await self._call(request)
            error = request.error
        except BaseException as exc:  # the user's code
            if self._client.is_own_end(exc):
                raise
            if isinstance(exc, SystemExit | KeyboardInterrupt):
                self._owner.end(exc)
            elif not isinstance(exc, Exception):
                cancelled, exc = exc, RuntimeError(f"the handler was cancelled: {exc!r}")
                exc.__cause__ = cancelled
            await self._refuse(request, exc)
        with self._lock:
            counters.processing_time += round((now() - began) * 1e9)
            if error:
                counters.failed(error)

    async def _call(self, request: ServiceRequest) -> None:
        handler, client = self._handler, self._client
        arguments = (request,) if handler.takes_request else self._arguments(request)
        result = handler.function(*arguments)
        # unasync: off
        if handler.is_async or inspect.isawaitable(result):
            result = await result
        # unasync: on
        if (result is None and handler.takes_request) or request.is_answered or not request.reply:
            return
        payload, headers = handler.answer(request, result, client.codec)
        await request.respond(payload, headers=headers)

    def _arguments(self, request: ServiceRequest) -> tuple[object, ...]:
        try:
            return self._handler.arguments(request, self._client.codec)
        except MessageDecodeError as exc:
            raise ServiceError(BAD_REQUEST, str(exc)) from exc

    async def _refuse(self, request: ServiceRequest, error: BaseException) -> None:
        """Answer a request that failed, and say so in the log unless the handler meant it."""
        what = f"endpoint {self.config.name!r} of service {self._service!r}: the request on {request.subject!r}"
        if isinstance(error, ServiceError):
            code, description, data = error.code, error.description, error.data
        else:
            code, description, data = INTERNAL_ERROR, describe(error), b""
            self._client.callback_failed(what, failure_of(error))
        self._failed(f"{code}:{description}")  # before the answer: the caller may look at once
        if not request.reply or request.is_answered:
            return
        try:
            await request.respond_error(code, description, data=data)
        except ConnectionLostError:
            return  # the client was closed meanwhile
        except Error as exc:  # an impossible code, or too much data
            self._client.callback_failed(what, exc)
            with suppress(Error):
                await request.respond_error(INTERNAL_ERROR, describe(exc))

    def _failed(self, error: str) -> None:
        with self._lock:
            self._counters.failed(error)


class ServiceGroup:
    """A prefix of subjects, and a queue group, for the endpoints and groups that are added to it."""

    def __init__(self, service: Service, scope: Scope) -> None:
        self._service = service
        self._scope = scope

    def __repr__(self) -> str:
        return f"<ServiceGroup {self._scope.prefix!r} of service {self._service.name}>"

    def add_group(self, name: str, *, queue_group: str | None = None) -> ServiceGroup:
        """A group inside this one: its prefix is added to that of this group."""
        return ServiceGroup(self._service, self._scope.group(name, queue_group))

    async def add_endpoint(
        self,
        name: str,
        handler: Callable[..., Any],
        *,
        subject: str = "",
        queue_group: str | None = None,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = 1,
        max_pending_msgs: int = MAX_PENDING_MSGS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        timeout: Duration = 5.0,
    ) -> None:
        """Handle the requests to `subject` (default: the name) below the prefix of this group.

        The handler takes a `ServiceRequest`, or the body decoded to the type of its annotation, and returns the answer:
        `async def add(numbers: Numbers) -> Sum`. Up to `concurrency` requests are handled at once. An exception is
        logged, and the caller gets an error of code 500; a ServiceError is sent as it is. `queue_group`: None for that
        of the group or service, "" for none, so that every instance gets every request.
        """
        timeout = check_seconds(timeout)
        config = self._scope.endpoint(name, subject=subject, queue_group=queue_group, metadata=metadata)
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise UsageError(f"concurrency must be 1 or more, got {concurrency!r}")
        await self._service.serve(
            config,
            read_handler(handler, may_be_async=may_be_async),
            concurrency=concurrency,
            max_pending_msgs=max_pending_msgs,
            max_pending_bytes=max_pending_bytes,
            timeout=timeout,
        )


class Service(ServiceGroup):
    """One instance of a service, made by `nc.add_service`. It is stopped at the end of `async with`."""

    def __init__(self, client: Client, config: ServiceConfig, stats_handler: StatsHandler | None = None) -> None:
        if stats_handler is not None and not callable(stats_handler):
            raise UsageError(f"stats_handler must be callable, got {stats_handler!r}")
        super().__init__(self, Scope("", config.queue_group))
        self.id: str = secrets.token_hex(11)
        self._client = client
        self._config = config
        self._stats_handler = stats_handler
        self._started = datetime.now(UTC)
        self._endpoints: list[Endpoint] = []
        self._control: list[Subscription] = []
        self._is_stopping = False
        self._is_stopped = False
        self._error: BaseException | None = None  # of a handler that ended it

    @property
    def name(self) -> str:
        """The name that all instances share."""
        return self._config.name

    @property
    def version(self) -> str:
        """The version, as declared."""
        return self._config.version

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, or ended with its client."""
        return self._is_stopped or self._client.is_closed

    def __repr__(self) -> str:
        state = "stopped" if self.is_stopped else f"{len(self._endpoints)} endpoints"
        return f"<Service {self.name} {self.version} {self.id}: {state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def info(self) -> ServiceInfo:
        """What discovery says of it."""
        config = self._config
        return ServiceInfo(
            name=config.name,
            id=self.id,
            version=config.version,
            metadata=config.metadata,
            description=config.description,
            endpoints=tuple(endpoint.info for endpoint in self._endpoints),
        )

    def stats(self) -> ServiceStats:
        """The counters of all endpoints, with the data of the stats handler."""
        config = self._config
        return ServiceStats(
            name=config.name,
            id=self.id,
            version=config.version,
            metadata=config.metadata,
            started=self._started,
            endpoints=tuple(self._with_data(endpoint.stats) for endpoint in self._endpoints),
        )

    def reset(self) -> None:
        """Start all counters again, and with them the time in `started`."""
        for endpoint in self._endpoints:
            endpoint.reset()
        self._started = datetime.now(UTC)

    async def stop(self, *, timeout: Duration = DRAIN_TIMEOUT) -> None:
        """Take no more requests, and return when those that were received are handled. Can be called again.

        Raises RequestTimeoutError if handlers are still running after `timeout` seconds; they continue, and can still
        answer.
        """
        timeout = check_seconds(timeout)
        client = self._client
        deadline = client.now() + timeout
        self._is_stopping = True
        try:
            self._drain_soon()
            with suppress(ConnectionLostError):  # a server that is gone sends no requests
                if client.is_connected:
                    await client.flush(timeout=timeout)
            late = [one.config.subject for one in self._endpoints if not await one.join(deadline)]
        finally:
            self._is_stopped = True
        if late:
            raise RequestTimeoutError(
                f"stop of service {self.name!r}: handlers of {', '.join(late)} are still running after {timeout:g} s"
            )

    async def wait(self, *, timeout: Duration | None = None) -> bool:
        """Wait until the service is stopped or its client closed; False if that takes longer than `timeout` seconds.

        Raises the SystemExit or KeyboardInterrupt of a handler, which ended the service.
        """
        timeout = check_timeout(timeout)
        client = self._client
        deadline = None if timeout is None else client.now() + timeout
        while not self.is_stopped:
            left = STOP_POLL if deadline is None else min(STOP_POLL, deadline - client.now())
            if left <= 0:
                return False
            with suppress(ConnectionLostError):  # closed
                await client.sleep(left)
        if self._error is not None:
            raise self._error
        return True

    def _drain_soon(self) -> None:
        for endpoint in self._endpoints:
            endpoint.drain_soon()
        for subscription in self._control:
            subscription.drain_soon()

    # For `nc.add_service`, groups and endpoints

    def end(self, error: BaseException) -> None:
        """A handler wants the program to end: no more requests are taken, and `wait` raises the error."""
        self._error = self._error or error
        self._is_stopping = self._is_stopped = True
        self._drain_soon()

    async def start(self, *, timeout: Duration) -> None:
        """Answer discovery from now on."""
        timeout = check_seconds(timeout)
        config, client = self._config, self._client
        answers = {Verb.PING: self._answer_ping, Verb.INFO: self._answer_info, Verb.STATS: self._answer_stats}
        for verb, answer in answers.items():
            for name, instance in (("", ""), (config.name, ""), (config.name, self.id)):
                subject = control_subject(verb, name, instance, prefix=config.prefix)
                self._control.append(await client.subscribe(subject, callback=answer))
        await confirm(client, self._control, timeout=timeout)

    async def serve(self, config: EndpointConfig, handler: Handler, **options: Any) -> None:
        """Start an endpoint."""
        if self._is_stopping:
            raise UsageError(f"service {self.name!r} is stopped: endpoint {config.name!r} cannot be added")
        endpoint = Endpoint(self._client, self, config, handler)
        await endpoint.start(**options)
        self._endpoints = [*self._endpoints, endpoint]  # replaced, not changed: threads may read it

    async def _answer_ping(self, message: Message) -> None:
        config = self._config
        ping = ServicePing(name=config.name, id=self.id, version=config.version, metadata=config.metadata)
        await self._answer(message, ping.to_json())

    async def _answer_info(self, message: Message) -> None:
        await self._answer(message, self.info().to_json())

    async def _answer_stats(self, message: Message) -> None:
        await self._answer(message, self.stats().to_json())

    async def _answer(self, message: Message, payload: bytes) -> None:
        if message.reply:
            await message.respond(payload)

    def _with_data(self, stats: EndpointStats) -> EndpointStats:
        if self._stats_handler is None:
            return stats
        try:
            return replace(stats, data=msgspec.to_builtins(self._stats_handler(stats), str_keys=True))
        except Exception as exc:  # the user's code
            self._client.callback_failed(f"the stats handler of service {self.name!r}", exc)
            return stats


async def confirm(client: Client, subscriptions: list[Subscription], *, timeout: float) -> None:
    """Return when the server has taken these subscriptions; if it denies one, end all of them and raise its error."""
    try:
        await client.flush(timeout=timeout)
        for subscription in subscriptions:
            if subscription.is_over:
                await subscription.next(timeout=timeout)  # raises the reason
    except BaseException:
        for subscription in subscriptions:
            subscription.end()
        raise
