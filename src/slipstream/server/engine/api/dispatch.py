"""The JetStream API (`$JS.API.…`): dispatch of requests, the handlers of streams, and the responses.

A handler returns the fields of its response or raises an ApiError. The response to a change waits in the journal of the
stream's store until the change is durable; a report waits as well while the catalog has uncommitted changes.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from slipstream.api import GetRequest, Storage, StoredBody, StreamConfig, encode_json, format_time, parse_time
from slipstream.api.names import API_PREFIX, RESPONSE_TYPE
from slipstream.errors import (
    ApiError,
    BadApiRequestError,
    ErrorCode,
    MessageNotFoundApiError,
    MinLastSequenceError,
    StoreError,
    StreamNameInUseError,
    StreamNotFoundError,
    StreamStoreFailedError,
    StreamSubjectOverlapError,
)
from slipstream.server.engine.api.audit import AUDIT_SUBJECT, AuditAdvisory, AuditedRequest
from slipstream.server.engine.api.consumers import ConsumerApi
from slipstream.server.engine.api.requests import Count, Outcome, Sequence, Work, error_body, level_suffices
from slipstream.server.engine.api.requests import decode as _decode
from slipstream.server.engine.api.requests import is_empty as _is_empty
from slipstream.server.engine.api.requests import optional as _optional
from slipstream.server.engine.api.requests import stream_config as _config
from slipstream.server.engine.api.responses import MAX_DELETED, MAX_SUBJECTS, stream_info
from slipstream.server.engine.auth.account_limits import check_stream, used
from slipstream.server.engine.auth.reply_targets import Targets
from slipstream.server.engine.core.client_info import client_info
from slipstream.server.engine.core.routing import AccountRouter
from slipstream.server.engine.core.session import Session
from slipstream.server.engine.journal import Journal, ReplyPort, Source
from slipstream.server.engine.ports import LogState, Record, Walk
from slipstream.server.engine.reads.direct_get import ReplicaPeer, closing
from slipstream.server.engine.snapshots.api import SnapshotApi, SnapshotCatalog
from slipstream.server.engine.streams import config as rules
from slipstream.server.engine.streams import source_config
from slipstream.server.engine.streams.features import API_LEVEL, server_metadata
from slipstream.server.engine.streams.removals import is_long
from slipstream.server.engine.streams.stream import Stream
from slipstream.server.engine.subject_index import SubjectIndex
from slipstream.wire import is_valid_subject

MAX_NAMES = 1024
MAX_LIST = 256
REQUEST_UNITS = 16  # of work (`engine.jobs`) that a request counts for at least
INFO_UNITS = 10  # for the report of a stream
REPORT_UNITS = 8  # for that of a consumer
ENCODED = 4096  # subjects of a report between two pauses
STREAMS_PER_UNIT = 2  # that are summed up
TOO_MANY = "too many searches at once"
NO_PAGE = {"total": 0, "offset": 0, "limit": 0}
_CUT = len(API_PREFIX) + 1
_GET = "stream_msg_get_response"

# Left to other subscribers; without one, the requester gets "no responders".
_OTHERS = ("DIRECT.GET.", "CONSUMER.MSG.NEXT.")
# Fields that a response has even if it is an error.
_ALWAYS: dict[str, dict[str, Any]] = {
    "stream_info_response": {"total": 0, "offset": 0, "limit": 0},
    "stream_purge_response": {"purged": 0},
    "stream_restore_response": {"deliver_subject": ""},
    "stream_names_response": {"total": 0, "offset": 0, "limit": 0, "streams": None},
    "stream_list_response": {"total": 0, "offset": 0, "limit": 0, "streams": []},
    "consumer_names_response": {"total": 0, "offset": 0, "limit": 0, "consumers": []},
    "consumer_list_response": {"total": 0, "offset": 0, "limit": 0, "consumers": []},
    "consumer_reset_response": {"reset_seq": 0},
    "consumer_pause_response": {"paused": False, "pause_until": "0001-01-01T00:00:00Z"},
}


class InfoRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of STREAM.INFO."""

    offset: Count = 0
    deleted_details: bool = False
    subjects_filter: str = ""


class PageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of STREAM.NAMES and STREAM.LIST."""

    offset: Count = 0
    subject: str = ""


class PurgeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of STREAM.PURGE."""

    filter: str = ""
    seq: Sequence = 0
    keep: Sequence = 0


class DeleteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of STREAM.MSG.DELETE. `no_erase` makes no difference: this server does not overwrite in place."""

    seq: Sequence = 0
    no_erase: bool = False


class StepDownRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of STREAM.LEADER.STEPDOWN."""

    class Placement(msgspec.Struct, forbid_unknown_fields=True):
        cluster: str = ""
        tags: list[str] = []
        preferred: str = ""

    placement: Placement | None = None


class RemovePeerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of STREAM.PEER.REMOVE."""

    peer: str = ""


class Catalog(SnapshotCatalog, Protocol):
    """The account, as the API sees it."""

    version: str
    subjects: SubjectIndex

    def add_stream(self, config: StreamConfig, now: int) -> Stream: ...

    def change_stream(self, stream: Stream, config: StreamConfig, now: int) -> None: ...

    def delete_stream(self, stream: Stream) -> None: ...

    def replace_peer(self, stream: Stream, peer: str, now: int) -> None: ...

    def answer(self, journal: Journal | None, reply: str, payload: bytes, source: Source) -> None:
        """Send once the journal's open group is durable; without a journal, once the catalog is."""


Handler = Callable[[str, bytes, int], Outcome]
Request = tuple[str, str, bytes]  # subject, reply subject, payload


def _not_enabled() -> ApiError:
    return ErrorCode.NOT_ENABLED_FOR_ACCOUNT.error()


class _Response:
    """The response to one request."""

    __slots__ = ("_api", "_failed", "_kind", "_sent", "later")

    def __init__(self, api: Api, kind: str) -> None:
        self._api = api
        self._kind = kind
        self.later: Callable[[], dict[str, Any]] | None = None
        # What was sent: an audit advisory shows it once more.
        self._sent = ""
        self._failed: tuple[ApiError, bytes] | None = None

    @property
    def reply_port(self) -> ReplyPort:
        return self._api.reply_port

    def encode(self, error: dict[str, object] | None, fields: dict[str, Any]) -> bytes:
        body: dict[str, Any] = {"type": RESPONSE_TYPE + self._kind}
        if error is not None:
            body["error"] = error
        return encode_json(body | fields)

    def failure(self, error: ApiError) -> bytes:
        if self._failed is None or self._failed[0] is not error:
            self._api.errors += 1
            self._failed = error, self.encode(error_body(error), _ALWAYS.get(self._kind, {}))
        return self._failed[1]

    def ack(self, seq: int) -> tuple[str, int]:  # noqa: ARG002
        """Encode the response when it is sent, from the state at that time."""
        if not self._sent:
            assert self.later is not None
            try:
                self._sent = self.encode(None, self.later()).decode()
            except ApiError as exc:
                self._sent = self.failure(exc).decode()
            except StoreError as exc:
                self._sent = self.failure(StreamStoreFailedError(str(exc))).decode()
        return self._sent, len(self._sent.encode())


class Api:
    """The API of one account."""

    def __init__(self, catalog: Catalog, *, is_closed: bool = False) -> None:
        """`is_closed`: the account has no JetStream, every request gets that error."""
        self._catalog = catalog
        self._is_closed = is_closed
        self.reply_port: AccountRouter = catalog.router
        self._load = catalog.jobs.load
        self._metadata = server_metadata(catalog.version)
        self.total: int = 0
        self.errors: int = 0
        backups = SnapshotApi(catalog, self)
        self._plain: dict[str, tuple[str, Handler]] = {
            "INFO": ("account_info_response", self._account),
            "STREAM.NAMES": ("stream_names_response", self._names),
            "STREAM.LIST": ("stream_list_response", self._list),
        }
        # Followed by the name of the stream as the last token.
        self._named: dict[str, tuple[str, Handler]] = {
            "STREAM.CREATE": ("stream_create_response", self._create),
            "STREAM.UPDATE": ("stream_update_response", self._update),
            "STREAM.INFO": ("stream_info_response", self._info),
            "STREAM.DELETE": ("stream_delete_response", self._delete),
            "STREAM.PURGE": ("stream_purge_response", self._purge),
            "STREAM.MSG.GET": (_GET, _not_a_handler),  # may be answered later: see `_get_message`
            "STREAM.MSG.DELETE": ("stream_msg_delete_response", self._delete_message),
            "STREAM.SNAPSHOT": ("stream_snapshot_response", backups.snapshot),
            "STREAM.RESTORE": ("stream_restore_response", backups.restore),
            "STREAM.LEADER.STEPDOWN": ("stream_leader_stepdown_response", self._step_down),
            "STREAM.PEER.REMOVE": ("stream_remove_peer_response", self._remove_peer),
        }
        self._consumers = ConsumerApi(self._stream, self._metadata, compat=catalog.compat)

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:
        """Handle a request. An unknown one is not answered, as on nats-server."""
        rest = subject[_CUT:]
        if rest.startswith(_OTHERS):
            return False
        self.total += 1
        kind, handler, stream = self._find(rest)
        if not handler:
            return True

        source = _Response(self, kind)
        if self._is_closed:
            self._answer(None, (subject, reply, payload), source.failure(_not_enabled()), source)
            return True
        if kind == _GET:
            if reply:
                self._get_message(stream, (subject, reply, payload), source, now)
            return True
        journal: Journal | None = None
        self._load.units += REQUEST_UNITS
        try:
            _check_level(header)
            if (rules := self._catalog.router.requester) is not None:
                Targets(kind, payload).check(rules, self._catalog.router.is_served)
            outcome = handler(stream, payload, now)
            if outcome.work is not None:
                self._begin_work(outcome.work, outcome.journal, (subject, reply, payload), source)
                return True
            if outcome.search is not None:
                self._search(outcome.search, outcome.journal, (subject, reply, payload), source)
                return True
            if isinstance(listed := outcome.fields.get("consumers"), list):
                self._load.units += REPORT_UNITS * len(listed)
            journal, source.later = outcome.journal, outcome.later
            answer = source.encode(None, outcome.fields) if outcome.later is None else b""
        except ApiError as exc:
            answer = source.failure(exc)
        except StoreError as exc:
            answer = source.failure(StreamStoreFailedError(str(exc)))
        if journal is None and stream in self._catalog.streams:  # a rejection may be based on uncommitted changes
            journal = self._catalog.streams[stream].journal
        self._answer(journal, (subject, reply, payload), answer, source)
        return True

    def _answer(self, journal: Journal | None, asked: Request, answer: bytes, source: Source) -> None:
        """Send the response, then the audit advisory, both once the journal allows it."""
        if asked[1]:
            self._catalog.answer(journal, asked[1], answer, source)
        self._audit(journal, asked, answer, source)

    def _audit(self, journal: Journal | None, asked: Request, answer: bytes, source: Source) -> None:
        """Send the audit advisory, if it has subscribers."""
        self._audit_for(self._catalog.router.origin, journal, asked, answer, source)

    def _audit_for(
        self, origin: Session | None, journal: Journal | None, asked: Request, answer: bytes, source: Source
    ) -> None:
        """Send the audit advisory about a request that may have been answered in a later turn than it was made."""
        subject, _, payload = asked
        router = self._catalog.router
        if router.interest(AUDIT_SUBJECT)[0]:
            server = self._catalog.leader_name
            client = client_info(origin, server=server) if origin is not None else None
            audited = AuditedRequest(server, client, subject, payload)
            audit = AuditAdvisory(self._catalog.advisories, router, source, audited, answer)
            self._catalog.answer(journal, AUDIT_SUBJECT, b"", audit)

    def _begin_work(
        self,
        begin: Callable[[Callable[[Work], None]], None],
        journal: Journal | None,
        asked: Request,
        source: _Response,
    ) -> None:
        """Begin a change in slices once the open group of the journal is decided; answer once its last group is."""
        asker, load, origin = self._load.asker, self._load, self._catalog.router.origin

        def answer(result: Work) -> None:
            if isinstance(result, dict):
                body = source.encode(None, result)
            elif isinstance(result, ApiError):
                body = source.failure(result)
            else:
                body = source.failure(StreamStoreFailedError(str(result)))
            if asked[1]:
                self._catalog.answer(journal, asked[1], body, source)
            self._audit_for(origin, journal, asked, body, source)

        def start() -> None:
            load.owner = asker
            try:
                begin(answer)
            finally:
                load.owner = None

        if journal is not None and journal.unfinished:
            journal.reports.append(start)
        else:
            start()

    def _search(
        self, begin: Callable[[], Walk[dict[str, Any]]], journal: Journal | None, asked: Request, source: _Response
    ) -> None:
        """Answer with what a search finds, which begins once the open group of the journal is decided."""
        asker, load, origin = self._load.asker, self._load, self._catalog.router.origin

        def answer(body: bytes) -> None:
            if asked[1]:
                self._catalog.answer(None, asked[1], body, source)
            self._audit_for(origin, None, asked, body, source)

        def guarded(walk: Walk[dict[str, Any]]) -> Walk[bytes]:
            try:
                fields = yield from walk
            except ApiError as exc:
                return source.failure(exc)
            return source.encode(None, fields)

        def done(body: bytes) -> None:
            answer(body)

        def failed(error: StoreError) -> None:
            answer(source.failure(StreamStoreFailedError(str(error))))

        def start() -> None:
            load.owner = asker
            try:
                if not self._catalog.jobs.search(guarded(begin()), done, failed):
                    raise ErrorCode.STREAM_GENERAL.error(err=TOO_MANY)
            except ApiError as exc:
                answer(source.failure(exc))
            finally:
                load.owner = None

        if journal is not None and journal.unfinished:
            journal.reports.append(start)
        else:
            start()

    def _find(self, rest: str) -> tuple[str, Handler | None, str]:
        if (entry := self._plain.get(rest)) is not None:
            return *entry, ""
        head, _, name = rest.rpartition(".")
        if (entry := self._named.get(head)) is not None:
            return *entry, name
        family, verb, *tokens = [*rest.split("."), ""][:-1] if rest.count(".") > 1 else ("", "")
        if family == "CONSUMER" and (known := self._consumers.handlers.get(verb)) is not None:
            kind, handler, count = known
            if count is None or count == len(tokens):
                return kind, lambda _, payload, now: handler(tokens, payload, now), tokens[0]
        return "", None, ""

    def _stream(self, name: str) -> Stream:
        stream = self._catalog.streams.get(name)
        if stream is None:
            raise StreamNotFoundError
        return stream

    # Reports.

    def _account(self, _: str, __: bytes, ___: int) -> Outcome:
        streams = self._catalog.streams.values()
        self._load.units += len(streams) // STREAMS_PER_UNIT
        reserved = {Storage.MEMORY.value: 0, Storage.FILE.value: 0}
        for stream in streams:
            reserved[stream.config.storage] += max(stream.config.max_bytes, 0)
        domain = {"domain": self._catalog.domain} if self._catalog.domain else {}
        return Outcome({
            "memory": used(Storage.MEMORY, streams),
            "storage": used(Storage.FILE, streams),
            "reserved_memory": reserved["memory"],
            "reserved_storage": reserved["file"],
            "streams": len(streams),
            "consumers": sum(len(stream.consumers) for stream in streams),
            "limits": self._catalog.limits.report(),
            **domain,
            "api": {"level": API_LEVEL, "total": self.total - 1, "errors": self.errors},  # without this one
        })  # fmt: skip

    def _chosen(self, payload: bytes, limit: int) -> Walk[tuple[dict[str, Any], list[Stream]]]:
        request = _optional(payload, PageRequest)
        streams = self._catalog.streams
        names = self._catalog.subjects.owners_of(request.subject) if request.subject else set(streams)
        chosen = [streams[name] for name in sorted(names)]
        yield max(len(streams), len(chosen)) // STREAMS_PER_UNIT
        offset = min(max(request.offset, 0), len(chosen))
        page = {"total": len(chosen), "offset": offset, "limit": limit}
        return page, chosen[offset : offset + limit]

    def _names(self, _: str, payload: bytes, __: int) -> Outcome:
        def names() -> Walk[dict[str, Any]]:
            page, streams = yield from self._chosen(payload, MAX_NAMES)
            return page | {"streams": [stream.name for stream in streams] or None}

        return Outcome({}, search=names)

    def _list(self, _: str, payload: bytes, now: int) -> Outcome:
        def infos() -> Walk[dict[str, Any]]:
            page, streams = yield from self._chosen(payload, MAX_LIST)
            found = []
            for stream in streams:
                found.append(stream_info(stream, now, domain=self._catalog.domain))
                yield INFO_UNITS + len(stream.config.subjects) // 4
            return page | {"streams": found}

        return Outcome({}, search=infos)

    def _info(self, name: str, payload: bytes, now: int) -> Outcome:
        """The response includes all earlier publishes, acknowledged or not: it waits for the open group."""
        request = _optional(payload, InfoRequest)
        stream = self._stream(name)
        if request.subjects_filter or request.deleted_details:
            return Outcome({}, stream.journal, search=lambda: self._details(stream, request, now))
        return Outcome({}, stream.journal, later=lambda: self._full_report(stream, now))

    def _full_report(
        self,
        stream: Stream,
        now: int,
        *,
        page: dict[str, int] | None = None,
        subjects: dict[str, int] | None = None,
        gaps: list[int] | None = None,
        state: LogState | None = None,
    ) -> dict[str, Any]:
        if state is None:
            self._check_exists(stream)
        info = self._report(stream, now, subjects=subjects, gaps=gaps or (), state=state)
        when = info.pop("ts")
        cluster = info.pop("cluster", {"leader": self._catalog.leader_name})
        return (page or NO_PAGE) | info | {"cluster": cluster, "ts": when}

    def _check_exists(self, stream: Stream) -> None:
        """Reject a report of a stream that was deleted by the group that the response waited for."""
        current = self._catalog.streams.get(stream.name)
        is_deleted = current is None or current.created != stream.created  # a lost deletion opens it again
        if stream.is_gone or (is_deleted and not stream.journal.catalog_unfinished):
            raise StreamNotFoundError

    def _details(self, stream: Stream, request: InfoRequest, now: int) -> Walk[dict[str, Any]]:
        """The report with subjects, deleted sequences, or both, all of one state."""
        self._check_exists(stream)
        if stream.log.is_crowded:
            raise ErrorCode.STREAM_GENERAL.error(err=TOO_MANY)
        snapshot = stream.log.snapshot()

        def details() -> Walk[dict[str, Any]]:
            page, subjects, deleted = None, None, None
            if request.subjects_filter:
                found = yield from snapshot.subjects(request.subjects_filter)
                offset = max(request.offset, 0)
                subjects = yield from _encoded_subjects(found[offset : offset + MAX_SUBJECTS])
                if found:
                    page = {"total": len(found), "offset": offset, "limit": MAX_SUBJECTS}
            state = snapshot.committed
            if request.deleted_details and state.messages < state.last_seq - state.first_seq + 1:
                deleted = encode_json((yield from snapshot.gaps(MAX_DELETED)))
            # What may be long is encoded already.
            report = self._full_report(
                stream,
                now,
                page=page,
                subjects={"": 1} if subjects else None,
                gaps=[1] if deleted else None,
                state=state,
            )
            if subjects:
                report["state"]["subjects"] = msgspec.Raw(subjects)
            if deleted:
                report["state"]["deleted"] = msgspec.Raw(deleted)
            return report

        return closing(snapshot, details())

    def _report(
        self,
        stream: Stream,
        now: int,
        *,
        subjects: dict[str, int] | None = None,
        gaps: abc.Sequence[int] = (),
        state: LogState | None = None,
    ) -> dict[str, Any]:
        """A stream, with what this server adds to its metadata."""
        return stream_info(
            stream,
            now,
            subjects=subjects,
            gaps=gaps,
            state=state,
            metadata=self._metadata,
            domain=self._catalog.domain,
        )

    # Changes.

    def _create(self, name: str, payload: bytes, now: int) -> Outcome:
        requested, pedantic = _config(payload, name)
        rules.check_create(requested)
        config = source_config.checked(
            rules.normalise(requested, pedantic=pedantic, compat=self._catalog.compat), self._catalog.streams
        )
        stream = self._catalog.streams.get(name)
        if name in self._catalog.restores:
            raise StreamNameInUseError
        if stream is None:
            check_stream(self._catalog.limits, config, self._catalog.streams.values(), new=True)
            self.check_overlap(config)
            stream = self._catalog.add_stream(config, now)
            self._tell(stream, "create", now)
        elif stream.config != config:
            raise StreamNameInUseError
        return Outcome(self._made(stream, now) | {"did_create": True}, stream.journal)

    def _made(self, stream: Stream, now: int) -> dict[str, Any]:
        """As other reports, but without the domain, as on nats-server."""
        info = self._report(stream, now, state=stream.log.state)
        info.pop("domain", None)
        return info

    def _update(self, name: str, payload: bytes, now: int) -> Outcome:
        requested, pedantic = _config(payload, name)
        config = rules.normalise(requested, pedantic=pedantic, compat=self._catalog.compat)
        stream = self._stream(name)
        config = source_config.checked(rules.updated(stream.config, config), self._catalog.streams)
        others = [other for other in self._catalog.streams.values() if other is not stream]
        check_stream(self._catalog.limits, config, others, new=False)
        self.check_overlap(config)
        if config != stream.config:
            self._catalog.change_stream(stream, config, now)
        self._tell(stream, "modify", now)
        if stream.limit_trim is not None:
            return Outcome({}, stream.journal, work=self._trimmed(stream, now))
        return Outcome(self._report(stream, now, state=stream.log.state), stream.journal)

    def _trimmed(self, stream: Stream, now: int) -> Callable[[Callable[[Work], None]], None]:
        """Waits until a stream has no more messages than its lowered limits allow."""
        config = stream.config

        def begin(answer: Callable[[Work], None]) -> None:
            def done() -> None:
                if stream.is_stopped:
                    answer(StreamNotFoundError())
                elif stream.config is not config and stream.journal.failure:  # the group of the update was lost
                    answer(StreamStoreFailedError(stream.journal.failure))
                else:
                    answer(self._report(stream, now, state=stream.log.state))

            if stream.limit_trim is None or stream.config is not config:
                done()
            else:
                stream.limit_trim.after.append(done)

        return begin

    def _tell(self, stream: Stream, action: str, now: int) -> None:
        subject, payload = self._catalog.advisories.stream_action(stream.name, action, now)
        stream.journal.events.append((self.reply_port, subject, b"", payload, self._load.asker))

    def check_overlap(self, config: StreamConfig) -> None:
        stream = self._catalog.streams.get(config.name)
        own = stream.config.subjects if stream is not None else ()
        if self._catalog.subjects.is_taken("stream subjects", config.subjects, owner=config.name, own=own):
            raise StreamSubjectOverlapError

    def created_response(self) -> tuple[Source, Callable[[dict[str, Any]], bytes]]:
        """The source and the encoder of the response to a restore."""
        response = _Response(self, "stream_create_response")
        return response, lambda info: response.encode(None, info)

    def restored(self, stream: Stream, now: int) -> dict[str, Any]:
        """The response to a completed restore."""
        self._tell(stream, "create", now)
        return self._made(stream, now)

    def _delete(self, name: str, payload: bytes, now: int) -> Outcome:
        if not _is_empty(payload):
            raise ErrorCode.NOT_EMPTY_REQUEST.error()
        stream = self._stream(name)
        self._catalog.delete_stream(stream)
        self._tell(stream, "delete", now)
        return Outcome({"success": True}, stream.journal)

    def _purge(self, name: str, payload: bytes, _: int) -> Outcome:
        request = _optional(payload, PurgeRequest)
        if (request.seq and request.keep) or request.seq < 0 or request.keep < 0:
            raise BadApiRequestError
        stream = self._stream(name)
        if stream.config.sealed:
            raise ErrorCode.STREAM_SEALED.error()
        if stream.config.deny_purge:
            raise ErrorCode.STREAM_PURGE_FAILED.error(err="stream purge not permitted")
        is_known = self._is_purged_upstream(stream, request)
        if not is_known:
            stream.removed_on_request()
        if is_long(stream.log, request.filter, below=request.seq, keep=request.keep):
            return Outcome({}, stream.journal, work=self._long_purge(stream, request, is_known=is_known))
        purged = stream.log.purge(pattern=request.filter, below=request.seq, keep=request.keep)
        stream.consumers.purged(request.filter)
        return Outcome({"success": True, "purged": purged}, stream.journal)

    def _long_purge(
        self, stream: Stream, request: PurgeRequest, *, is_known: bool
    ) -> Callable[[Callable[[Work], None]], None]:
        """A purge in slices, of what is there now. `is_known`: the upstream of a mirror lacks the messages too."""
        below = stream.log.state.last_seq + 1
        if request.seq:
            below = min(below, request.seq)

        def begins() -> None:
            if not is_known:
                stream.removed_on_request()

        def begin(answer: Callable[[Work], None]) -> None:
            def done(purged: int, error: Exception | None) -> None:
                if error is None:
                    stream.consumers.purged(request.filter)
                answer(error or {"success": True, "purged": purged})

            if stream.is_stopped:
                answer(StreamNotFoundError())
            elif stream.log.is_crowded:
                answer(ErrorCode.STREAM_GENERAL.error(err=TOO_MANY))
            else:
                # The group that the purge waited for may be lost: other messages will have the sequences of its own.
                end = min(below, stream.log.committed.last_seq + 1)
                stream.remove_matching(request.filter, below=end, keep=request.keep, begins=begins, done=done)

        return begin

    def _is_purged_upstream(self, stream: Stream, request: PurgeRequest) -> bool:
        """Whether a mirror removes only what its upstream in this account has not any more: clients repeat the purges
        of a bucket on its replicas, and these are as good as before."""
        mirror = stream.config.mirror
        if mirror is None or mirror.external is not None or not request.seq or not is_valid_subject(request.filter):
            return False
        upstream = self._catalog.streams.get(mirror.name)
        if upstream is None:
            return False
        first = upstream.log.first_seq_of(request.filter)
        return not first or first >= request.seq

    def _delete_message(self, name: str, payload: bytes, _: int) -> Outcome:
        if _is_empty(payload):
            raise BadApiRequestError
        request = _decode(payload, DeleteRequest)
        stream = self._stream(name)
        if stream.config.sealed:
            raise ErrorCode.STREAM_SEALED.error()
        if stream.config.deny_delete:
            raise ErrorCode.STREAM_MSG_DELETE_FAILED.error(err="message delete not permitted")
        if not stream.log.remove(request.seq):
            state, memory = stream.log.state, stream.config.storage == Storage.MEMORY
            if memory or state.first_seq <= request.seq <= state.last_seq:
                raise ErrorCode.SEQUENCE_NOT_FOUND.error(seq=request.seq)
            beyond = request.seq > state.last_seq
            raise ErrorCode.STREAM_MSG_DELETE_FAILED.error(err="stream store EOF" if beyond else "no message found")
        stream.removed_on_request()
        return Outcome({"success": True}, stream.journal)

    # Message Get: the leader answers from committed messages, which include every acknowledged one.

    def _get_message(self, name: str, asked: Request, source: _Response, now: int) -> None:
        send, origin = self._catalog.router.send, self._catalog.router.origin
        _, reply, payload = asked

        def reject(error: ApiError) -> None:
            answer = source.failure(error)
            send(reply, b"", answer)
            self._audit_for(origin, None, asked, answer, source)

        def found(record: Record | None) -> None:
            if record is None:
                reject(MessageNotFoundApiError())
            else:
                send(reply, b"", _message(record, request))

        def failed(error: StoreError) -> None:
            reject(ErrorCode.STREAM_GENERAL.error(err=error))

        def ready(peer: ReplicaPeer) -> None:
            if not peer.look_up(request, found, failed):
                reject(ErrorCode.STREAM_GENERAL.error(err="too many searches at once"))

        try:
            request = _get_request(payload, compat=self._catalog.compat)
            stream = self._stream(name)
        except ApiError as exc:
            reject(exc)
            return
        for peer in stream.replicas.claimants:
            if request.min_last_seq <= peer.as_of():
                ready(peer)
            else:
                peer.park(request.min_last_seq, ready=ready, reject=lambda: reject(MinLastSequenceError()), now=now)

    # Replicas.

    def _step_down(self, name: str, payload: bytes, now: int) -> Outcome:
        stream = self._replicated(name)
        request = _optional(payload, StepDownRequest)
        preferred = request.placement.preferred if request.placement is not None else ""
        if preferred and preferred not in (peer.peer for peer in stream.replicas.peers):
            raise ErrorCode.CLUSTER_NO_PEERS.error(err=f"preferred server {preferred!r} is no replica of the stream")
        if not stream.replicas.step_down(now, to=preferred):
            raise ErrorCode.CLUSTER_NOT_AVAIL.error("no other replica is current enough to lead")
        return Outcome({"success": True})

    def _remove_peer(self, name: str, payload: bytes, now: int) -> Outcome:
        stream = self._replicated(name)
        if _is_empty(payload):
            raise BadApiRequestError
        peer = _decode(payload, RemovePeerRequest).peer
        if not peer:
            raise BadApiRequestError
        if peer not in (other.peer for other in stream.replicas.peers):
            raise ErrorCode.CLUSTER_PEER_NOT_MEMBER.error()
        self._catalog.replace_peer(stream, peer, now)
        return Outcome({"success": True})

    def _replicated(self, name: str) -> Stream:
        stream = self._stream(name)
        if len(stream.replicas.peers) == 1:
            raise ErrorCode.CLUSTER_REQUIRED.error()
        return stream


def _message(record: Record, request: GetRequest) -> bytes:
    body = StoredBody(
        subject=record.subject,
        seq=record.seq,
        hdrs=b"" if request.no_hdr else record.header,
        data=record.payload,
        time=format_time(record.time),
    )
    return encode_json({"type": RESPONSE_TYPE + _GET, "message": body})


def _not_a_handler(_: str, __: bytes, ___: int) -> Outcome:
    raise AssertionError("Message Get is answered by `_get_message`")


class _StrictGet(GetRequest, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Message Get rejects unknown fields; Direct Get ignores them."""


def _get_request(payload: bytes, *, compat: bool) -> GetRequest:
    if _is_empty(payload):
        raise BadApiRequestError
    request = _decode(payload, _StrictGet)
    if compat and request.min_last_seq:
        raise ErrorCode.INVALID_JSON.error(err='json: unknown field "min_last_seq"')
    by_time = request.start_time is not None
    try:
        if request.start_time is not None:
            parse_time(request.start_time)
    except ValueError as exc:
        raise ErrorCode.INVALID_JSON.error(err=exc) from exc
    if (
        request.batch > 0
        or request.max_bytes > 0
        or (request.last_by_subj and (request.seq or by_time or request.next_by_subj))
        or not (request.seq or request.last_by_subj or request.next_by_subj or by_time)
        or (request.seq and by_time)
    ):
        raise BadApiRequestError
    if request.seq < 0 or request.min_last_seq < 0:
        raise ErrorCode.INVALID_JSON.error(err="a sequence cannot be negative")
    return request


def _check_level(header: bytes) -> None:
    if header and not level_suffices(header):
        raise ErrorCode.REQUIRED_API_LEVEL.error()


def _encoded_subjects(subjects: list[tuple[str, int]]) -> Walk[bytes]:
    """Subjects with their numbers of messages, as JSON; empty if there are none."""
    parts = []
    for start in range(0, len(subjects), ENCODED):
        parts.append(encode_json(dict(subjects[start : start + ENCODED]))[1:-1])
        yield ENCODED // 16
    return b"{%b}" % b",".join(parts) if parts else b""
