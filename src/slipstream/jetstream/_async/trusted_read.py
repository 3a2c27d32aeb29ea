"""One request to whichever replica answers becomes an answer that may be judged, or a reason to ask again.

Here is what all trusted reads share: short tries, who is believed (the stream itself and its whole copies, of its own
generation), the leader's state, and another server when this one is cut off. The blocking twin is generated from this
file (`tools/unasync.py`).
"""

from __future__ import annotations

from functools import partial

import msgspec

from slipstream.api import GetRequest, StreamInfo, StreamState, encode_json
from slipstream.client._async.client import Client
from slipstream.errors import (
    ApiError,
    AuthorizationError,
    BadRequestError,
    ConnectionClosedError,
    ConnectionLostError,
    DirectGetNotAllowedError,
    Error,
    MessageNotFoundError,
    RequestTimeoutError,
    StaleReadError,
    StreamNotFoundError,
)
from slipstream.jetstream import requests
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads.direct_get import Replies, StoredMessage, decode_one
from slipstream.jetstream.reads.proof import MOST_DELETED, oldest_time, responder
from slipstream.jetstream.reads.retry import RetryPolicy

_NOTHING = GetRequest()
MOVE_INTERVAL = 5.0  # seconds between two moves to another server: all reads of a connection notice the same silence


class Asking:
    """One read of one stream at or after `wanted`, with its patience: what it may send, and whom it may believe."""

    def __init__(self, context: JetStreamContext, stream: str, *, wanted: int, patience: RetryPolicy) -> None:
        session = context.session
        self._context = context
        self._client = context.client
        self._api = context.api
        self._name = stream
        self._asked = wanted  # by the caller; a session may want more
        self._wanted = wanted if session is None else max(wanted, session.seen(stream))
        self._patience = patience
        self._ledger = context.read_state
        self._session = session
        self._has_looked = False
        self._notes = context.read_state.stream(context.prefix, stream)
        self._direct = f"{context.prefix}.DIRECT.GET.{stream}"  # the name was checked when its handle was made
        self.with_leader = False  # whether the leader's word was part of the proof
        self.reached = 0  # a sequence that the state of the answer is known to have reached

    @property
    def wanted(self) -> int:
        """The sequence that an answer must have reached, for the caller or for the session."""
        return self._wanted

    @property
    def tries(self) -> int:
        """How many tries did not bring the answer."""
        return self._patience.tries

    @property
    def knows_keeping(self) -> bool | None:
        """Whether servers here keep `min_last_seq` themselves, if that is known."""
        return self._ledger.keeps_min.get((self._client.server_info.server_id, self._api.prefix))

    @knows_keeping.setter
    def knows_keeping(self, keeps: bool) -> None:
        self._ledger.keeps_min[self._client.server_info.server_id, self._api.prefix] = keeps

    async def keeps_min_last_seq(self) -> bool:
        """Whether servers here keep `min_last_seq` themselves; asked once per connection, by what they do."""
        while True:
            known = self.knows_keeping
            if known is not None:
                return known
            call = self._api.probe_min_last_seq(self._name)
            try:
                self.knows_keeping = await self._context.run(call, timeout=self._patience.for_one_try())
            except RequestTimeoutError as error:
                await self._unanswered(error)
            except (ConnectionLostError, DirectGetNotAllowedError) as error:
                await self._again(error)

    async def native(self, asked: str, request: GetRequest) -> StoredMessage:
        """A get from a server that keeps `min_last_seq`: its 412 means ask again, anything else is true.

        Also for the first read of a session, which wants nothing yet: then any server will do.
        """
        if self._wanted and self._session is not None and not self._session.created(self._name):
            await self._know_stream()
        while True:
            request = msgspec.structs.replace(request, min_last_seq=self._wanted)
            body = b"" if request == _NOTHING else encode_json(request)
            replies = Replies(asked, min_last_seq=self._wanted)
            token = self._client.start(asked, body, replies)
            try:
                limit = self._patience.for_late_try() if self._wanted else self._patience.for_one_try()
                await self._client.wait(replies.ready, timeout=limit, what=f"an answer on {asked}")
                if replies.error is not None:
                    raise replies.error
            except RequestTimeoutError as error:
                await self._unanswered(error)
                continue
            except (StaleReadError, ConnectionLostError) as error:
                await self._again(error)
                continue
            finally:
                self._client.cancel(token)
            if replies.is_missing:
                raise self._missing(f"nothing fits {encode_json(request).decode()}")
            message = replies.items[0].message
            if message.stream == self._name or await self._is_whole_copy(message.stream):
                self.reached = max(message.seq, self._wanted)
                return message
            await self._pause(self._foreign(message.stream))

    async def last_by_appended(self, asked: str) -> StoredMessage:
        """For users who may ask for one subject and nothing else: its newest message, if that proves itself.

        Servers that keep `min_last_seq` refuse one that is no number, old ones refuse any body, others ignore it.
        """
        wanted, body = self._wanted, encode_json(GetRequest(min_last_seq=self._wanted))
        while True:
            try:
                call = requests.Call(asked, body, partial(decode_one, asked=asked))
                found = await self._context.run(call, timeout=self._patience.left())
                if found.seq >= wanted or (body and await self._refuses(asked)):
                    self.reached = max(found.seq, self.reached)
                    return found
                error: Error = self._behind(found.seq)
            except BadRequestError:
                if not body:
                    raise
                body = b""
                continue
            except MessageNotFoundError:
                if body and await self._refuses(asked):
                    raise
                error = self._behind(0)
            except RequestTimeoutError as silence:
                raise self._patience.why(silence) from silence
            except (ConnectionLostError, StaleReadError) as failed:
                error = failed
            await self._again(error)

    async def _refuses(self, asked: str) -> bool:
        """Whether the server looks at `min_last_seq`."""
        call = requests.Call(asked, b'{"min_last_seq":"?"}', lambda msg: requests.is_bad_request(msg, asked))
        return await self._context.run(call, timeout=self._patience.left())

    async def _try(self, request: GetRequest, *, late: bool = False) -> Replies | None:
        """One request; None if nobody answered, or whoever did is not to be believed: ask again.

        `late`: the server may hold its answer back until it is new enough.
        """
        replies = Replies(self._direct, min_last_seq=request.min_last_seq)
        try:
            token = self._client.start(self._direct, encode_json(request), replies)
            try:
                limit = self._patience.for_late_try() if late else self._patience.for_one_try()
                await self._client.wait(replies.ready, timeout=limit, what=f"an answer on {self._direct}")
            finally:
                self._client.cancel(token)
            if replies.error is not None:
                raise replies.error
        except RequestTimeoutError as error:
            await self._unanswered(error)
            return None
        except (ConnectionLostError, DirectGetNotAllowedError, StaleReadError) as error:
            await self._again(error)
            return None
        self._patience.heard()
        source, oldest = responder(replies.items), oldest_time(replies.items)
        if replies.items and (source != self._name or oldest < self._notes.floor):
            reason = await self._distrust(source, oldest)
            if reason:
                await self._pause(StaleReadError(reason, stream=self._name, min_last_seq=self._wanted))
                return None
        return replies

    async def _distrust(self, source: str, oldest: int | None) -> str:
        """Why an answer is not to be believed; empty if it is."""
        if oldest is None:
            return ""
        if source != self._name and not await self._is_whole_copy(source):
            return str(self._foreign(source))
        notes = self._notes
        if oldest < notes.floor and notes.may_ask(self._client.now()):
            await self._info()
        if oldest < notes.floor:
            return f"{self._name}: an older stream of that name answered"
        return ""

    async def _is_whole_copy(self, mirror: str) -> bool:
        """Whether a mirror holds all that the stream holds, by their configurations; asked once."""
        known = self._notes.mirrors.get(mirror)
        if known is not None:
            return known
        if self._notes.config is None and await self._info() is None:
            return False
        try:
            call = self._api.stream_info(mirror)
            config = (await self._context.run(call, timeout=self._patience.for_one_try())).config
        except (RequestTimeoutError, ConnectionLostError):
            return False
        except (ApiError, AuthorizationError):  # of another account or domain, or none of our business
            is_whole = False
        else:
            is_whole = self._notes.is_whole_copy(config)
        self._notes.mirrors[mirror] = is_whole
        return is_whole

    async def _know_stream(self) -> None:
        """Learn since when the stream exists: what is older is of another stream of that name."""
        notes, session = self._notes, self._session
        if session is not None:
            notes.know(session.created(self._name))
        while not notes.is_known(self._client.now()):
            try:
                info = await self._info()
            except AuthorizationError:  # we may not ask: then it cannot be checked
                notes.asked_at = self._client.now()
                return
            if info is not None or notes.created:
                return
            unknown = f"{self._name}: its leader does not answer, so that nobody knows since when it exists"
            await self._pause(StaleReadError(unknown, stream=self._name, min_last_seq=self._wanted))

    async def _info(self, *, deleted: bool = False, subject: str = "") -> StreamInfo | None:
        """Configuration and state by the leader; None if nobody answered, or one that was deposed long ago did."""
        call = self._api.stream_info(self._name, deleted_details=deleted, subjects_filter=subject)
        try:
            info = await self._context.run(call, timeout=self._patience.for_one_try())
        except RequestTimeoutError as error:
            await self._unanswered(error)
            return None
        except (ConnectionLostError, ApiError) as error:
            if isinstance(error, ApiError) and error.code != 503:
                raise
            await self._again(error)
            return None
        self._patience.heard()
        notes = self._notes
        if info.created < notes.created:
            return None
        notes.made(info, self._client.now())
        if self._session is not None:  # it may turn out to be another stream, of which less was seen
            self._session.made(self._name, info.created, info.state.last_seq)
            self._wanted = max(self._asked, self._session.seen(self._name))
        return info

    async def _state(self, seq: int) -> StreamState | None:
        """The state by the leader, with the deleted sequences where they are needed to tell about `seq`."""
        self.with_leader = True
        info = await self._info()
        if info is None:
            return None
        state = info.state
        if 0 < state.num_deleted <= MOST_DELETED and state.first_seq <= seq <= state.last_seq:
            info = await self._info(deleted=True)
            return None if info is None else info.state
        return state

    async def _again(self, error: Error) -> None:
        """What went wrong is worth another try, or is raised."""
        if isinstance(error, DirectGetNotAllowedError):
            await self._nobody(error)
        elif isinstance(error, ConnectionClosedError):
            raise error
        else:
            await self._pause(error)

    async def _nobody(self, error: DirectGetNotAllowedError) -> None:
        """Nobody answers Direct Gets: for good, or only now?"""
        try:
            info = await self._info()
        except (StreamNotFoundError, AuthorizationError) as cause:
            raise error from cause
        if info is not None and not info.config.allow_direct:
            raise error
        await self._pause(error)

    async def _unanswered(self, error: RequestTimeoutError) -> None:
        """A try was in vain; after several of them our own server may be the one that is cut off."""
        patience = self._patience
        if patience.is_over:
            raise patience.why(error) from error
        patience.tries += 1
        if patience.silent():
            self._move(error)

    def _move(self, error: Error) -> None:
        """Go to another server of the cluster, if there is one and we did not just come from one."""
        ledger, now = self._ledger, self._client.now()
        is_due = ledger.moved_at is None or now - ledger.moved_at >= MOVE_INTERVAL
        if is_due and self._client.leave_server(error):
            ledger.moved_at = now
            ledger.moves += 1
            self._patience.heard()

    async def _pause(self, error: Error) -> None:
        """Rest a little before asking again; raises when the time is up."""
        if self._session is not None and not self._has_looked and isinstance(error, StaleReadError):
            self._has_looked = True
            await self._info()
        await pause(self._client, self._patience, error)
        if self._patience.stuck():
            self._move(error)

    def _behind(self, reached: int, goal: int = 0) -> StaleReadError:
        wanted = goal or self._wanted
        seen = f"a replica with last sequence {reached} answered" if reached else "a replica answered that has less"
        return StaleReadError(f"{self._name}: {seen}, wanted {wanted}", stream=self._name, min_last_seq=wanted)

    def _foreign(self, mirror: str) -> StaleReadError:
        why = f"{self._name}: answered by {mirror!r}, which is not known to be a whole copy of it"
        return StaleReadError(why, stream=self._name, min_last_seq=self._wanted)

    def _missing(self, what: str) -> MessageNotFoundError:
        return MessageNotFoundError(f"{self._name}: {what}")


async def pause(client: Client, patience: RetryPolicy, error: Error) -> None:
    """Rest a little before asking again, which `error` made necessary; raises when the time is up."""
    delay = patience.next_pause(error)
    if delay is None:
        raise patience.why(error)
    await client.sleep(delay)
