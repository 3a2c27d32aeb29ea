"""`slipstream events`: advisories and metrics of JetStream, and events of the system account, as they happen."""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

from slipstream import BlockingMessage
from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.cli.output import BAD, Colored, readable

ADVISORIES, METRICS, AUDIT = "$JS.EVENT.ADVISORY.>", "$JS.EVENT.METRIC.>", "$JS.EVENT.ADVISORY.API"
SYSTEM = (
    "$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.*.DISCONNECT", "$SYS.SERVER.*.CLIENT.AUTH.ERR", "$SYS.SERVER.*.SHUTDOWN",
)  # fmt: skip
FOREVER = 3600.0  # seconds of one wait; then it waits again
# What of an event says most, in this order. The rest is in --json.
_SHOWN = ("stream", "consumer", "action", "stream_seq", "consumer_seq", "deliveries", "reason", "template", "leader",
          "subject", "ack_time", "delay", "error", "pause_until", "paused", "group")  # fmt: skip
_BAD = ("max deliver", "terminated", "nak", "lost", "exceed", "err", "disconnect")


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "events",
        _events,
        "print advisories of JetStream as they happen",
        examples="  slipstream events\n  slipstream events --stream ORDERS --json\n  slipstream events --system",
    )
    parser.add_argument("--stream", default="", metavar="STREAM", help="only events of this stream")
    parser.add_argument("-a", "--all", action="store_true", help="include each request to the API")
    parser.add_argument("--metrics", action="store_true", help="include samples of acks")
    parser.add_argument(
        "--system", action="store_true", help="show connections and servers (needs a user of the system account)"
    )
    parser.add_argument(
        "--subject",
        action="append",
        default=[],
        metavar="SUBJECT",
        help="print messages on this subject instead; may be repeated",
    )
    parser.add_argument("--count", type=values.count, metavar="N", help="exit after this number of events")
    parser.add_argument("--wait", type=values.seconds, metavar="DURATION", help="exit after this time without an event")


def _events(shell: Shell) -> None:
    options = shell.options
    extra = [METRICS] * options.metrics + list(SYSTEM) * options.system
    subjects = options.subject or [ADVISORIES, *extra]
    with shell.connect() as client:
        # One inbox for all of them, so that events are printed in the order of their arrival.
        inbox: queue.SimpleQueue[BlockingMessage] = queue.SimpleQueue()
        for subject in subjects:
            client.subscribe(subject, callback=inbox.put)
        client.flush(timeout=shell.timeout)
        shell.out.note(f"waiting for events on {', '.join(subjects)}")
        number = 0
        while not options.count or number < options.count:
            try:
                message = inbox.get(timeout=options.wait or FOREVER)
            except queue.Empty:
                if options.wait:
                    return
                continue
            if message.subject == AUDIT and not (options.all or options.subject):
                continue
            event = _parsed(message.data)
            if options.stream and event.get("stream") != options.stream:
                continue
            number += 1
            _show(shell, message.subject, message.data, event)
            sys.stdout.flush()


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _show(shell: Shell, subject: str, data: bytes, event: dict[str, Any]) -> None:
    if shell.out.is_json:
        shell.out.json({"subject": subject, "event": event} if event else {"subject": subject, "data": readable(data)})
        return
    kind = str(event.get("type") or subject).rpartition(".")[2].replace("_", " ")
    when = str(event.get("timestamp") or "")[11:19] or "--:--:--"
    facts = " ".join(f"{name}={_short(event[name])}" for name in _SHOWN if event.get(name) not in (None, "", {}, []))
    is_bad = any(word in f"{kind} {subject}".lower() for word in _BAD)
    shell.out.text(Colored(f"{when} {kind:24} {facts}".rstrip(), BAD if is_bad else ""))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
