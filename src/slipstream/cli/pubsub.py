"""`slipstream pub`, `sub`, `req`, `reply`, `rtt`: core NATS."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

from slipstream import BlockingJetStream, BlockingJsMessage, Headers, PubAck
from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell, body
from slipstream.cli.output import payload, readable
from slipstream.errors import RequestTimeoutError, UsageError

_PLACEHOLDER = re.compile(r"\{\{\s*\.?(\w+)\s*\}\}")


class _Message(Protocol):
    @property
    def subject(self) -> str: ...
    @property
    def reply(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Headers: ...


def add(commands: Commands) -> None:
    """Declare the commands."""
    _add_pub(commands)
    _add_sub(commands)
    parser = commands.add(
        "req",
        _request,
        "send a request and print the replies",
        aliases=("request",),
        examples="  slipstream req service.time ''\n  slipstream req --replies 0 --wait 500ms who.is.there",
    )
    parser.add_argument("subject")
    _body_and_headers(parser)
    parser.add_argument(
        "--replies",
        type=values.whole,
        default=1,
        metavar="N",
        help="number of replies to wait for; 0: all (default: 1)",
    )
    parser.add_argument(
        "--wait",
        type=values.seconds,
        default=0.3,
        metavar="TIME",
        help="maximum wait for another reply (default: 300ms)",
    )
    parser.add_argument("--raw", action="store_true", help="print payloads only")
    _add_reply(commands)
    rtt = commands.add("rtt", _rtt, "measure the round-trip time to the server")
    rtt.add_argument("--count", type=values.count, default=5, metavar="N", help="number of round trips (default: 5)")


def _add_pub(commands: Commands) -> None:
    parser = commands.add(
        "pub",
        _publish,
        "publish messages; without a body, from stdin",
        aliases=("publish",),
        examples=(
            "  slipstream pub orders.new '{\"id\": 1}'\n"
            "  slipstream pub -J orders.new @ --count 100   # acknowledged by a stream\n"
            "  date | slipstream pub clock\n"
            "  slipstream pub test 'message {{Count}} at {{Time}}' --count 3"
        ),
    )
    parser.add_argument("subject")
    _body_and_headers(parser)
    parser.add_argument("--reply", default="", metavar="SUBJECT", help="reply subject")
    parser.add_argument("--count", type=values.count, default=1, metavar="N", help="number of messages (default: 1)")
    parser.add_argument("--sleep", type=values.seconds, default=0.0, metavar="TIME", help="pause between messages")
    parser.add_argument("-J", "--jetstream", action="store_true", help="wait for the ack of a stream")
    parser.add_argument("--msg-id", metavar="ID", help="with -J: message id for deduplication")
    parser.add_argument("--ttl", type=values.duration, metavar="TIME", help="with -J: time to live of the message")
    parser.add_argument("--no-templates", action="store_true", help="do not expand {{Count}} and other templates")


def _add_sub(commands: Commands) -> None:
    parser = commands.add(
        "sub",
        _subscribe,
        "print messages as they arrive",
        aliases=("subscribe",),
        examples=(
            "  slipstream sub 'orders.>'\n"
            "  slipstream sub --queue workers --count 10 jobs\n"
            "  slipstream sub --raw log >> log.txt"
        ),
    )
    parser.add_argument("subject")
    parser.add_argument("--queue", default="", metavar="NAME", help="queue group to join")
    parser.add_argument("--count", type=values.count, metavar="N", help="exit after this number of messages")
    parser.add_argument("--wait", type=values.seconds, metavar="TIME", help="exit after this time without a message")
    _show_options(parser)


def _add_reply(commands: Commands) -> None:
    parser = commands.add(
        "reply",
        _reply,
        "answer requests",
        examples=(
            "  slipstream reply service.echo --echo\n"
            "  slipstream reply service.time '{{Time}}'\n"
            "  slipstream reply 'weather.*' --command 'curl -s wttr.in/{{1}}?format=3'"
        ),
    )
    parser.add_argument("subject")
    parser.add_argument("body", nargs="?", default="", help="body of the reply; {{Request}} is the request's")
    parser.add_argument("--echo", action="store_true", help="reply with the body of the request")
    parser.add_argument("--command", metavar="COMMAND", help="reply with its output; {{0}}, {{1}} are subject tokens")
    parser.add_argument("--queue", default="NATS-RPLY-22", metavar="NAME", help="queue group (default: NATS-RPLY-22)")
    parser.add_argument("--count", type=values.count, metavar="N", help="exit after this number of messages")


def _body_and_headers(parser: Parser) -> None:
    parser.add_argument("body", nargs="?", help="body of the message (default: stdin, if it is piped)")
    parser.add_argument(
        "-H", "--header", type=values.header, action="append", metavar="NAME:VALUE", help="may be repeated"
    )


def _show_options(parser: Parser) -> None:
    parser.add_argument("--raw", action="store_true", help="print payloads only")
    parser.add_argument("--headers-only", action="store_true", help="without payloads")


def fill(text: str, facts: dict[str, str]) -> str:
    """Expand `{{Name}}` templates; raises UsageError for an unknown name."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in facts:
            raise UsageError(
                f"unknown template {found[0]}; known: {', '.join(facts)}; --no-templates leaves them unchanged"
            )
        return facts[found[1]]

    return _PLACEHOLDER.sub(value, text)


def _facts(count: int) -> dict[str, str]:
    now = datetime.now(UTC)
    return {
        "Count": str(count), "Time": f"{now:%H:%M:%S}", "TimeStamp": now.isoformat(), "Unix": str(int(now.timestamp())),
        "UnixNano": str(time.time_ns()), "ID": os.urandom(11).hex(),
    }  # fmt: skip


def _publish(shell: Shell) -> None:
    options = shell.options
    data, templates = body(options.body), options.body is not None and not options.no_templates
    headers = values.headers(options.header) or None
    if (options.msg_id or options.ttl) and not options.jetstream:
        raise UsageError("--msg-id and --ttl need -J")
    with shell.connect() as client:
        js = shell.jetstream(client)

        def message_of(number: int) -> bytes:
            return fill(data.decode(), _facts(number)).encode() if templates and b"{{" in data else data

        if options.jetstream and options.count > 1 and not options.sleep:
            _publish_many(shell, js, message_of, headers)
            return
        for number in range(1, options.count + 1):
            message = message_of(number)
            if options.jetstream:
                ack = js.publish(options.subject, message, headers=headers, msg_id=options.msg_id, ttl=options.ttl)
                _show_ack(shell, ack)
            else:
                client.publish(options.subject, message, reply=options.reply, headers=headers)
            if options.sleep and number < options.count:
                client.flush(timeout=shell.timeout)
                time.sleep(options.sleep)
        client.flush(timeout=shell.timeout)
    if not options.jetstream:
        each = f"{len(data):,} bytes" + (" each" if options.count > 1 else "")
        shell.out.note(f"published {_messages(options.count)} ({each}) to {options.subject}")


def _publish_many(shell: Shell, js: BlockingJetStream, message_of: Callable[[int], bytes], headers: Any) -> None:
    """Publish with many acks outstanding; one line at the end says what was stored."""
    options = shell.options
    with shell.out.count(options.subject, options.count) as meter, js.publisher(retries=2) as publisher:
        for number in range(1, options.count + 1):
            publisher.publish(
                options.subject, message_of(number), headers=headers, msg_id=options.msg_id, ttl=options.ttl
            )
            if meter is not None and number % 100 == 0:
                meter(publisher.acked)
        publisher.flush()
    ack, duplicates = publisher.last_ack, publisher.duplicates
    assert ack is not None  # the publisher raises if a message was not stored
    if shell.out.is_json:
        fields = {"stream": ack.stream, "last_seq": ack.seq, "messages": options.count, "duplicates": duplicates}
        shell.out.json(fields)
    else:
        again = f", {duplicates:,} of them duplicates" if duplicates else ""
        shell.out.note(f"stored {_messages(options.count)} in {ack.stream}, the last as sequence {ack.seq:,}{again}")


def _messages(count: int) -> str:
    return f"{count:,} message" + ("" if count == 1 else "s")


def _show_ack(shell: Shell, ack: PubAck) -> None:
    if shell.out.is_json:
        shell.out.json({"stream": ack.stream, "seq": ack.seq, "duplicate": ack.duplicate})
    else:
        duplicate = ", a duplicate" if ack.duplicate else ""
        shell.out.note(f"stored in {ack.stream} as sequence {ack.seq}{duplicate}")


def show(shell: Shell, message: _Message, number: int) -> None:
    """Print a message in the form that the options choose."""
    options, out = shell.options, shell.out
    if getattr(options, "raw", False):
        out.data(message.data + b"\n")
        return
    bare = getattr(options, "headers_only", False)
    if out.is_json:
        fields: dict[str, object] = {"subject": message.subject}
        if isinstance(message, BlockingJsMessage):
            origin = message.metadata
            fields |= {"stream": origin.stream, "consumer": origin.consumer, "seq": message.seq}
            fields |= {"time": values.rfc3339(message.time), "delivery": message.num_delivered}
        if message.reply:
            fields["reply"] = message.reply
        headers: dict[str, list[str]] = {}
        for name, value in message.headers.items():
            headers.setdefault(name, []).append(value)
        out.json(fields | ({"headers": headers} if headers else {}) | ({} if bare else payload(message.data)))
        return
    reply = f" with reply {message.reply!r}" if message.reply else ""
    out.text(f"[#{number}] Received on {message.subject!r}{reply}")
    for name, value in message.headers.items():
        out.text(f"{name}: {value}")
    if not bare:
        out.text(("\n" if message.headers else "") + readable(message.data) + "\n")


def _subscribe(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client, client.subscribe(options.subject, queue=options.queue) as subscription:
        client.flush(timeout=shell.timeout)
        shell.out.note(f"subscribed to {options.subject}" + (f" in group {options.queue}" if options.queue else ""))
        if options.count:
            subscription.unsubscribe(options.count)
        number = 0
        while not options.count or number < options.count:
            try:
                message = subscription.next(timeout=options.wait or 3600.0)
            except RequestTimeoutError:
                if options.wait:
                    return
                continue
            number += 1
            show(shell, message, number)
            sys.stdout.flush()


def _request(shell: Shell) -> None:
    options = shell.options
    data, headers = body(options.body), values.headers(options.header) or None
    with shell.connect() as client:
        replies: Iterable[_Message]
        if options.replies == 1:
            replies = [client.request(options.subject, data, headers=headers, timeout=shell.timeout)]
        else:
            replies = client.request_many(
                options.subject,
                data,
                headers=headers,
                timeout=shell.timeout,
                max_messages=options.replies or None,
                idle_timeout=options.wait,
            )
        number = 0
        for number, message in enumerate(replies, 1):
            show(shell, message, number)
        if number < options.replies:
            raise RequestTimeoutError(f"{number} of {options.replies} replies arrived in time")


def _reply(shell: Shell) -> None:
    options = shell.options
    with shell.connect() as client, client.subscribe(options.subject, queue=options.queue) as subscription:
        client.flush(timeout=shell.timeout)
        shell.out.note(f"answering requests to {options.subject}")
        number = 0
        while not options.count or number < options.count:
            try:
                message = subscription.next(timeout=3600.0)
            except RequestTimeoutError:
                continue
            number += 1
            shell.out.note(f"[#{number}] {message.subject}: {readable(message.data)[:200]}")
            if message.reply:
                message.respond(_answer(shell, message, number))
        client.flush(timeout=shell.timeout)


def _answer(shell: Shell, message: _Message, number: int) -> bytes:
    options = shell.options
    if options.echo:
        return message.data
    facts = _facts(number) | {"Request": message.data.decode(errors="replace")}
    if not options.command:
        return fill(options.body, facts).encode()
    tokens = {str(index): token for index, token in enumerate(message.subject.split("."))}
    # Words are split before templates are expanded: a request cannot add arguments to the command.
    words = [fill(word, facts | tokens) for word in shlex.split(options.command)]
    env = os.environ | {"NATS_REQUEST_SUBJECT": message.subject, "NATS_REQUEST_BODY": facts["Request"]}
    try:
        done = subprocess.run(words, capture_output=True, env=env, timeout=shell.timeout * 6, check=False)
    except (OSError, subprocess.TimeoutExpired, ValueError) as exc:
        shell.out.note(f"the command failed: {exc}")
        return b""
    if done.returncode:
        shell.out.note(f"the command exited with {done.returncode}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _rtt(shell: Shell) -> None:
    with shell.connect() as client:
        client.flush(timeout=shell.timeout)
        times = []
        for _ in range(shell.options.count):
            begin = time.perf_counter()
            client.flush(timeout=shell.timeout)
            times.append(time.perf_counter() - begin)
        server = client.server_info
    if shell.out.is_json:
        shell.out.json({"server": server.server_name, "rtt_ms": [round(each * 1000, 3) for each in times]})
    else:
        shell.out.facts("", [("server", server.server_name), ("fastest", f"{min(times) * 1000:.3f} ms"),
                             ("average", f"{sum(times) / len(times) * 1000:.3f} ms")])  # fmt: skip
