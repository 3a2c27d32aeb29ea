"""`slipstream server check …`: probes of a running server, for cron, Nagios, systemd and Kubernetes.

A probe prints one line and exits with the codes of monitoring plug-ins: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (a
mistake on the command line). These are its own, not those of other commands. What is missing or does not answer is
CRITICAL.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from slipstream.cli import values
from slipstream.cli.common import Commands, Parser, Shell
from slipstream.cli.exit_codes import USAGE, exit_code
from slipstream.cli.output import BAD, GOOD, WARNING, Colored
from slipstream.cli.values import show_duration
from slipstream.errors import Error, KeyNotFoundError, MessageNotFoundError

if TYPE_CHECKING:
    from slipstream import BlockingClient

OK, WARN, CRITICAL, UNKNOWN = 0, 1, 2, 3
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_STYLES = (GOOD, WARNING, BAD, BAD)
_SECOND = 10**9


class Verdict:
    """What a probe found: the worst of its findings counts."""

    def __init__(self) -> None:
        self.code: int = OK
        self.texts: list[str] = []
        self.metrics: dict[str, float] = {}

    def say(self, text: str, code: int = OK) -> None:
        """Add a finding."""
        self.code = max(self.code, code)
        self.texts.append(text)

    def above(self, what: str, value: float, warn: float | None, critical: float | None, shown: str = "") -> None:
        """Add a value that must not be above its bounds."""
        self._judge(what, value, shown, warn is not None and value > warn, critical is not None and value > critical)

    def below(self, what: str, value: float, warn: float | None, critical: float | None, shown: str = "") -> None:
        """Add a value that must not be below its bounds."""
        self._judge(what, value, shown, warn is not None and value < warn, critical is not None and value < critical)

    def _judge(self, what: str, value: float, shown: str, is_odd: bool, is_bad: bool) -> None:
        self.metrics[re.sub(r"\W+", "_", what)] = value
        self.say(f"{shown or f'{value:,}'} {what}", CRITICAL if is_bad else WARN if is_odd else OK)


Probe = Callable[[Shell, "BlockingClient", Verdict], None]


def add(group: Commands) -> Commands:
    """Declare the probes; returns the group, for other checks."""
    checks = group.group("check", "probe a running server, or check a store; exits 0, 1 (warning) or 2 (critical)")
    probes = checks.section("probes of a running server")

    def declare(name: str, probe: Probe, text: str, examples: str) -> Parser:
        parser = probes.add(name, partial(_run, name, probe), text, examples=f"  slipstream server check {examples}")
        parser.usage_code = UNKNOWN
        return parser

    parser = declare("connection", _connection, "connect and measure a round trip", "connection --rtt-critical 250ms")
    _bounds(parser, "connect", values.seconds, "DURATION", "the time to connect", "above", ("500ms", "1s"))
    _bounds(parser, "rtt", values.seconds, "DURATION", "the round trip", "above", ("500ms", "1s"))
    parser = declare("jetstream", _jetstream, "usage of the account's limits", "jetstream --storage-critical 95")
    for name in ("memory", "storage", "streams", "consumers"):
        _bounds(parser, name, values.whole, "PERCENT", f"{name} in percent of the limit", "above", ("75", "90"))
    parser = declare("stream", _stream, "a stream, its replicas and its origin", "stream ORDERS --idle-critical 10m")
    parser.add_argument("stream", metavar="STREAM")
    _bounds(parser, "messages", values.whole, "N", "the number of messages", "below")
    _bounds(parser, "idle", values.seconds, "DURATION", "the time since the last message", "above")
    _bounds(parser, "lag", values.whole, "N", "messages that a mirror, source or replica is behind", "above")
    parser.add_argument("--replicas", type=values.count, metavar="N", help="critical if fewer replicas are current")
    parser = declare(
        "consumer", _consumer, "a consumer and its lag", "consumer ORDERS workers --pending-critical 10000"
    )
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("name", metavar="CONSUMER")
    _bounds(parser, "pending", values.whole, "N", "messages to be delivered", "above")
    _bounds(parser, "unacked", values.whole, "N", "unacknowledged messages", "above")
    _bounds(parser, "redelivered", values.whole, "N", "redelivered messages", "above")
    _bounds(parser, "delivery", values.seconds, "DURATION", "the time since the last delivery", "above")
    _bounds(parser, "ack", values.seconds, "DURATION", "the time since the last ack", "above")
    parser = declare("message", _message, "the newest message of a subject", "message CLOCK clock --age-critical 1m")
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("subject", metavar="SUBJECT")
    _bounds(parser, "age", values.seconds, "DURATION", "its age", "above")
    parser.add_argument("--content", metavar="REGEX", help="critical if the payload does not match")
    parser = declare("kv", _kv, "a bucket, and a key of it", "kv SETTINGS --key theme")
    parser.add_argument("bucket", metavar="BUCKET")
    parser.add_argument("--key", default="", metavar="KEY", help="critical if the key has no value")
    _bounds(parser, "values", values.whole, "N", "the number of values", "below")
    return checks


NAMES = ("connection", "jetstream", "stream", "consumer", "message", "kv")


def _bounds(
    parser: Parser,
    name: str,
    read: Callable[[str], Any],
    metavar: str,
    text: str,
    side: str,
    defaults: Iterable[str] = (),
) -> None:
    """Declare the options of two bounds of a value."""
    values = dict(zip(("warn", "critical"), defaults, strict=False))
    for level in ("warn", "critical"):
        default = f" (default: {values[level]})" if values else ""
        parser.add_argument(
            f"--{name}-{level}", type=read, default=read(values[level]) if values else None, metavar=metavar,
            help=f"{level} if {text} is {side} this{default}",
        )  # fmt: skip


def _run(name: str, probe: Probe, shell: Shell) -> int:
    verdict = Verdict()
    begin = time.perf_counter()
    try:
        with shell.connect() as client:
            verdict.metrics["connect"] = time.perf_counter() - begin
            probe(shell, client, verdict)
    except Error as error:
        is_mistake = exit_code(error) == USAGE
        verdict.say(" ".join(str(error).split()), UNKNOWN if is_mistake else CRITICAL)
    except OSError as error:
        verdict.say(str(error), CRITICAL)
    if name != "connection":
        verdict.metrics.pop("connect", None)
    word = _WORDS[verdict.code]
    if shell.out.is_json:
        shell.out.json({"check": name, "status": word, "code": verdict.code, "findings": verdict.texts,
                        "metrics": verdict.metrics})  # fmt: skip
    else:
        metrics = " ".join(f"{key}={value:g}" for key, value in verdict.metrics.items())
        line = f"{word} {name}: {'; '.join(verdict.texts)}" + (f" | {metrics}" if metrics else "")
        shell.out.text(Colored(line, _STYLES[verdict.code]))
    return verdict.code


def _bound(shell: Shell, name: str) -> tuple[float | None, float | None]:
    return getattr(shell.options, f"{name}_warn"), getattr(shell.options, f"{name}_critical")


def _connection(shell: Shell, client: BlockingClient, verdict: Verdict) -> None:
    connected = verdict.metrics["connect"]
    verdict.say(f"connected to {client.server_info.server_name}")
    verdict.above("connect", connected, *_bound(shell, "connect"), f"{connected * 1000:.1f} ms")
    begin = time.perf_counter()
    client.flush(timeout=shell.timeout)
    rtt = time.perf_counter() - begin
    verdict.above("rtt", rtt, *_bound(shell, "rtt"), f"{rtt * 1000:.2f} ms")


def _jetstream(shell: Shell, client: BlockingClient, verdict: Verdict) -> None:
    info = shell.jetstream(client).account_info()
    limits = info.limits
    for name, used, limit in (
        ("memory", info.memory, limits.max_memory), ("storage", info.storage, limits.max_storage),
        ("streams", info.streams, limits.max_streams), ("consumers", info.consumers, limits.max_consumers),
    ):  # fmt: skip
        if limit > 0:
            percent = used * 100 / limit
            verdict.above(name, percent, *_bound(shell, name), f"{percent:.0f} % of")
        else:
            verdict.say(f"{name} unlimited")


def _age(instant: int) -> float:
    return max(time.time_ns() - instant, 0) / _SECOND


def _shown(seconds: float) -> str:
    return show_duration(timedelta(seconds=int(seconds))) if seconds >= 1 else f"{seconds * 1000:.0f}ms"


def _stream(shell: Shell, client: BlockingClient, verdict: Verdict) -> None:
    info = shell.jetstream(client).stream(shell.options.stream).info()
    verdict.below("messages", info.state.messages, *_bound(shell, "messages"))
    idle = _age(max(info.state.last_ts, info.created))
    verdict.above("idle", idle, *_bound(shell, "idle"), _shown(idle))
    peers = info.cluster.get("replicas") or ()
    origins = [origin for origin in (info.mirror, *info.sources) if origin]
    lag = max((int(each.get("lag") or 0) for each in (*peers, *origins)), default=0)
    if peers or origins:
        verdict.above("lag", lag, *_bound(shell, "lag"))
    current = 1 + sum(1 for peer in peers if peer.get("current") and not peer.get("offline"))
    wanted = shell.options.replicas
    if wanted is not None:
        verdict.say(f"{current} of {wanted} replicas current", CRITICAL if current < wanted else OK)


def _consumer(shell: Shell, client: BlockingClient, verdict: Verdict) -> None:
    options = shell.options
    info = shell.jetstream(client).stream(options.stream).consumer(options.name).info()
    for name, value in (
        ("pending", info.num_pending), ("unacked", info.num_ack_pending), ("redelivered", info.num_redelivered),
    ):  # fmt: skip
        verdict.above(name, value, *_bound(shell, name))
    for name, instant in (("delivery", info.delivered.last_active), ("ack", info.ack_floor.last_active)):
        bounds = _bound(shell, name)
        if bounds != (None, None):  # one that never was is as old as the consumer
            age = _age(instant or info.created)
            verdict.above(f"since the last {name}", age, *bounds, _shown(age))
    if info.paused:
        verdict.say("paused", WARN)


def _message(shell: Shell, client: BlockingClient, verdict: Verdict) -> None:
    options = shell.options
    try:
        pattern = re.compile((options.content or "").encode())
    except re.error as error:
        verdict.say(f"--content must be a regular expression: {error}", UNKNOWN)
        return
    try:
        message = shell.jetstream(client).stream(options.stream).get_last(options.subject)
    except MessageNotFoundError:
        verdict.say(f"{options.stream} has no message on {options.subject}", CRITICAL)
        return
    age = _age(message.time)
    verdict.above("old", age, *_bound(shell, "age"), _shown(age))
    if options.content is not None:
        is_found = pattern.search(message.data) is not None
        verdict.say("the payload matches" if is_found else "the payload does not match", OK if is_found else CRITICAL)


def _kv(shell: Shell, client: BlockingClient, verdict: Verdict) -> None:
    options = shell.options
    kv = shell.jetstream(client).key_value(options.bucket)
    verdict.below("values", kv.status().values, *_bound(shell, "values"))
    if options.key:
        try:
            verdict.say(f"{options.key} has revision {kv.get(options.key).revision:,}")
        except KeyNotFoundError:
            verdict.say(f"{options.key} has no value", CRITICAL)
