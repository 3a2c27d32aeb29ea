"""The API calls STREAM.SNAPSHOT and STREAM.RESTORE, with their advisories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from slipstream.api import StreamConfig, encode_json, format_time
from slipstream.errors import BadApiRequestError, ErrorCode, StreamNotFoundError
from slipstream.server.engine.api.requests import Outcome, decode, is_empty, stream_config
from slipstream.server.engine.api.responses import stream_state
from slipstream.server.engine.auth.account_limits import AccountLimits, check_stream
from slipstream.server.engine.consumers.snapshot import exported
from slipstream.server.engine.journal import Source
from slipstream.server.engine.snapshots.reader import RestoreCatalog, SnapshotReader
from slipstream.server.engine.snapshots.writer import SnapshotRequest, SnapshotWriter
from slipstream.server.engine.streams import config as rules
from slipstream.server.engine.streams import source_config
from slipstream.server.engine.streams.stream import Stream
from slipstream.wire import is_valid_subject

TOO_BUSY = "too many snapshots and batches at once"


class RestoreRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of STREAM.RESTORE. The state in the snapshot takes precedence over the one here."""

    config: dict[str, Any] = {}
    state: dict[str, Any] = {}


class SnapshotCatalog(RestoreCatalog, Protocol):
    """The account, as snapshots and restores see it."""

    streams: dict[str, Stream]
    limits: AccountLimits
    restores: dict[str, SnapshotReader]


class CreateApi(Protocol):
    """The part of the stream API that a restore uses."""

    def created_response(self) -> tuple[Source, Callable[[dict[str, Any]], bytes]]:
        """The source and the encoder of the response that a stream was created."""

    def check_overlap(self, config: StreamConfig) -> None: ...


def _consumers(stream: Stream) -> list[tuple[str, bytes]]:
    return [(name, exported(each)) for name, each in stream.consumers.items.items() if each.persistent]


class SnapshotApi:
    """The handlers of one account."""

    def __init__(self, catalog: SnapshotCatalog, streams: CreateApi) -> None:
        self._catalog, self._streams = catalog, streams

    def snapshot(self, name: str, payload: bytes, now: int) -> Outcome:
        """STREAM.SNAPSHOT: the response describes the stream, the chunks follow."""
        if is_empty(payload):
            raise BadApiRequestError
        catalog, stream = self._catalog, self._catalog.streams.get(name)
        if stream is None:
            raise StreamNotFoundError
        request = decode(payload, SnapshotRequest)
        if not is_valid_subject(request.deliver_subject):
            raise ErrorCode.SNAPSHOT_DELIVER_SUBJECT_INVALID.error()
        state = stream_state(stream)

        def ended(reason: str) -> None:
            stream.snapshots.pop(snapshot, None)
            fields = {"start": format_time(now), "end": format_time(catalog.router.now)}
            self._advise("SNAPSHOT_COMPLETE", name, fields | ({"error": reason} if reason else {}))

        snapshot = SnapshotWriter(
            catalog,
            stream.log,
            request,
            state=lambda: stream_state(stream),
            consumers=[] if request.no_consumers else _consumers(stream),
            ack_subject=f"$JS.SNAPSHOT.ACK.{name}.{catalog.advisories.token()}",
            ended=ended,
        )
        stream.snapshots[snapshot] = None
        if not catalog.jobs.start(snapshot):
            snapshot.abandon(TOO_BUSY)
            raise ErrorCode.STREAM_SNAPSHOT.error(err=TOO_BUSY)
        self._advise("SNAPSHOT_CREATE", name, {"state": state})
        return Outcome({"config": stream.config.to_dict(), "state": state})

    def restore(self, name: str, payload: bytes, now: int) -> Outcome:
        """STREAM.RESTORE: the response says where to send the chunks."""
        if is_empty(payload):
            raise BadApiRequestError
        catalog, request = self._catalog, decode(payload, RestoreRequest)
        requested, _ = stream_config(encode_json({"name": name} | request.config), name)
        config = source_config.checked(rules.normalise(requested, compat=catalog.compat), catalog.streams)
        check_stream(catalog.limits, config, catalog.streams.values(), new=True)
        if name in catalog.streams or name in catalog.restores:
            raise ErrorCode.STREAM_NAME_EXIST_RESTORE_FAILED.error()
        self._streams.check_overlap(config)

        def check() -> None:  # other streams may have been created or changed since the request
            check_stream(catalog.limits, config, catalog.streams.values(), new=True)
            self._streams.check_overlap(config)

        def ended(reason: str, size: int) -> None:
            catalog.restores.pop(name, None)
            fields = {"start": format_time(now), "end": format_time(catalog.router.now), "bytes": size}
            self._advise("RESTORE_COMPLETE", name, fields | ({"error": reason} if reason else {}))

        subject = f"$JS.SNAPSHOT.RESTORE.{name}.{catalog.advisories.token()}"
        response, encode = self._streams.created_response()
        catalog.restores[name] = SnapshotReader(
            catalog, config, response, encode,
            subject=subject, check=check, ended=ended, now=now, rules=catalog.router.requester,
        )  # fmt: skip
        self._advise("RESTORE_CREATE", name, {})
        return Outcome({"deliver_subject": subject})

    def _advise(self, event: str, stream: str, fields: dict[str, Any]) -> None:
        subject, payload = self._catalog.advisories.stream_event(event, stream, self._catalog.router.now, fields)
        self._catalog.router.send(subject, b"", payload)
