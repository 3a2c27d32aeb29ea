"""`slipstream req`, `reply` and `rtt`: requests, answers and round trips."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterable

from slipstream.cli import values
from slipstream.cli.common import Commands, Shell, body
from slipstream.cli.messages.publish import body_and_headers
from slipstream.cli.messages.show import Shown, show
from slipstream.cli.messages.templates import facts, fill
from slipstream.cli.output import readable
from slipstream.errors import RequestTimeoutError


def add(commands: Commands) -> None:
    """Declare the commands."""
    parser = commands.add(
        "req",
        _request,
        "send a request and print the replies",
        aliases=("request",),
        examples="  slipstream req service.time ''\n  slipstream req --replies 0 --wait 500ms who.is.there",
    )
    parser.add_argument("subject", metavar="SUBJECT")
    body_and_headers(parser)
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
        metavar="DURATION",
        help="maximum wait for another reply (default: 300ms)",
    )
    parser.add_argument("--raw", action="store_true", help="print payloads only")
    _add_reply(commands)
    rtt = commands.add("rtt", _rtt, "measure the round-trip time to the server")
    rtt.add_argument("--count", type=values.count, default=5, metavar="N", help="number of round trips (default: 5)")


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
    parser.add_argument("subject", metavar="SUBJECT")
    parser.add_argument("body", nargs="?", default="", help="body of the reply; {{Request}} is the request's")
    parser.add_argument("--echo", action="store_true", help="reply with the body of the request")
    parser.add_argument("--command", metavar="COMMAND", help="reply with its output; {{0}}, {{1}} are subject tokens")
    parser.add_argument("--queue", default="NATS-RPLY-22", metavar="NAME", help="queue group (default: NATS-RPLY-22)")
    parser.add_argument("--count", type=values.count, metavar="N", help="exit after this number of messages")


def _request(shell: Shell) -> None:
    options = shell.options
    data, headers = body(options.body), values.headers(options.header) or None
    with shell.connect() as client:
        replies: Iterable[Shown]
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


def _answer(shell: Shell, message: Shown, number: int) -> bytes:
    options = shell.options
    if options.echo:
        return message.data
    known = facts(number) | {"Request": message.data.decode(errors="replace")}
    if not options.command:
        return fill(options.body, known).encode()
    tokens = {str(index): token for index, token in enumerate(message.subject.split("."))}
    # Words are split before templates are expanded: a request cannot add arguments to the command.
    words = [fill(word, known | tokens) for word in shlex.split(options.command)]
    env = os.environ | {"NATS_REQUEST_SUBJECT": message.subject, "NATS_REQUEST_BODY": known["Request"]}
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
