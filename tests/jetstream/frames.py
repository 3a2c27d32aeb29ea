"""Frames as a consumer's subscription gets them, for tests without a server."""

from __future__ import annotations

from slipstream.wire import Msg
from slipstream.wire.headers import status_block


def message(
    seq: int, *, cseq: int = 0, subject: str = "a", data: bytes = b"x", delivered: int = 1, pending: int = 0
) -> Msg:
    """A message with the nine-token ack subject."""
    reply = f"$JS.ACK.S.C.{delivered}.{seq}.{cseq or seq}.1700000000000000000.{pending}"
    return Msg(subject, b"7", reply, b"", data)


def message_v2(seq: int, *, domain: str = "_", extra: str = "") -> Msg:
    """The same with domain and account hash, and with what future servers may add."""
    reply = f"$JS.ACK.{domain}.hash.S.C.1.{seq}.{seq}.1700000000000000000.0{extra}"
    return Msg("a", b"7", reply, b"", b"x")


def status(code: int, text: str, *, subject: str = "_INBOX.x.0", reply: str = "", **headers: str) -> Msg:
    """A status; underscores in header names are dashes."""
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Msg(subject, b"7", reply, status_block(code, text, pairs), b"")


def heartbeat(last_consumer: int, *, last_stream: int = 0, stalled: str = "") -> Msg:
    """An idle heartbeat of a push consumer."""
    extra = {"Nats_Consumer_Stalled": stalled} if stalled else {}
    return status(
        100,
        "Idle Heartbeat",
        Nats_Last_Consumer=str(last_consumer),
        Nats_Last_Stream=str(last_stream or last_consumer),
        **extra,
    )


def flow_control(subject: str) -> Msg:
    """A flow control request."""
    return status(100, "FlowControl Request", reply=subject)
