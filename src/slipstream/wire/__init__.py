"""The NATS wire protocol: parser, encoder, headers, subjects, routing. No I/O, no clock."""

from slipstream.wire.encode import (
    connect,
    err,
    hmsg,
    info,
    msg,
    ping,
    pong,
    pub,
    sub,
    unsub,
)
from slipstream.wire.events import (
    Connect,
    Err,
    Event,
    Info,
    Msg,
    Ok,
    Ping,
    Pong,
    Pub,
    Sub,
    Unsub,
    Violation,
)
from slipstream.wire.handshake import ConnectOptions, ServerInfo
from slipstream.wire.headers import Headers, Status, parse_status
from slipstream.wire.inbox import Inbox
from slipstream.wire.mapping import SubjectMapping, check_mapping
from slipstream.wire.parser import Parser, Side
from slipstream.wire.router import Match, Router
from slipstream.wire.subject_set import SubjectSet, most_steps
from slipstream.wire.subjects import (
    check_filter,
    check_subject,
    has_wildcard,
    is_valid_filter,
    is_valid_subject,
    matcher,
    matches,
    overlaps,
    subset_of,
)

__all__ = [
    "Connect",
    "ConnectOptions",
    "Err",
    "Event",
    "Headers",
    "Inbox",
    "Info",
    "Match",
    "Msg",
    "Ok",
    "Parser",
    "Ping",
    "Pong",
    "Pub",
    "Router",
    "ServerInfo",
    "Side",
    "Status",
    "Sub",
    "SubjectMapping",
    "SubjectSet",
    "Unsub",
    "Violation",
    "check_filter",
    "check_mapping",
    "check_subject",
    "connect",
    "err",
    "has_wildcard",
    "hmsg",
    "info",
    "is_valid_filter",
    "is_valid_subject",
    "matcher",
    "matches",
    "most_steps",
    "msg",
    "overlaps",
    "parse_status",
    "ping",
    "pong",
    "pub",
    "sub",
    "subset_of",
    "unsub",
]
