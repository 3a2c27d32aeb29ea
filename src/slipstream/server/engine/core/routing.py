"""The router of one account: subscriptions of clients and of the server's own parts, delivery, each client's output.

Two shortcuts past the subject matcher decide the speed of streams under load. Both hold for as long as no subscription
changes that could matter to them (`_invalidate`):

- `sole_receivers`: a literal subject whose only subscriber is a stream, or the only replica that answers its Direct
  Gets. The first publish to a subject goes through `Router.match` and `route`; the engine then remembers the receiver
  here, and calls it directly for further publishes (`Engine.receive`).
- `_inboxes`: a prefix `a.b` such that every `a.b.<token>` reaches one client subscription and nothing else. The acks
  of a group for one inbox are then written as one piece (`answer_all`), and Direct Gets are answered without a look
  at the matcher (`answer`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Final, NamedTuple, Protocol

from slipstream.server.engine.auth.permissions import Rules
from slipstream.server.engine.auth.reply_targets import INBOX, is_reserved
from slipstream.server.engine.core.output import Output
from slipstream.server.engine.core.session import ClientSub, GuardedSub, Session
from slipstream.server.engine.jobs import RECEIVE_UNITS, Job, Load, Progress
from slipstream.server.engine.journal import Answer
from slipstream.wire import Match, Router, has_wildcard, hmsg, matches, overlaps

MAX_SHORTCUTS = 32 * 1024
MANY_TARGETS = 64  # subscribers of one message, from which on they count as work (`engine.jobs`)
TARGETS_PER_UNIT = 8
MOST_TARGETS = RECEIVE_UNITS * TARGETS_PER_UNIT  # in one go
LISTENERS_PER_UNIT = 4  # that look at a subscription
MATCHED_PER_UNIT = 64  # subscribers that are only found
REMOVALS = 1024  # subscriptions that are removed in one go
SHARED: Final = 64 * 1024  # bytes of a message from which on its subscribers share one copy
MAX_INNER_WILDCARDS = 64  # beyond that, looking through them costs more than the shortcut saves
ACKS = "$JS.ACK.>"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def _run_at_once(job: Job, owner: Hashable) -> None:  # noqa: ARG001
    while job.run()[0] is Progress.MORE:
        pass


class Random(Protocol):
    """The source of randomness: a `random.Random`, seeded in tests."""

    def random(self) -> float: ...


class Subscriber(Hashable, Protocol):
    """A subscriber inside the server: a stream, the API, a responder of Direct Get, …"""

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:
        """Take a message; False if it does not want it after all: the next member of a queue group gets it."""


class InterestListener(Hashable, Protocol):
    """A part of the server that depends on whether a subject has subscribers (a push consumer)."""

    def interest_changed(self, now: int) -> None:
        """A subscription on the subject was made or ended."""


class AccountRouter:
    """Subscriptions, delivery and output of one account."""

    def __init__(self, random: Random, now: int, output: Output, load: Load | None = None) -> None:
        """`output` collects the sessions with output, and `load` counts the work; the routers of all accounts share
        them."""
        self._load = load or Load()
        # Under way, by the client whose input waits for them. Those of the server itself are under None; messages about
        # commits are under `_COMMITS`, of all publishers: subscribers see them in the order of the stream.
        self._fan_outs: dict[Session | _Commits | None, FanOut] = {}
        self.resume: Callable[[Session], None] = _nothing  # handles the input of a client that waited
        self.now = now  # the time of the event that is being handled
        self.origin: Session | None = None  # the client whose message is being handled, if it is one's
        self.matcher: Router[ClientSub | Subscriber] = Router()
        self.sole_receivers: dict[str, Subscriber] = {}  # literal subject -> the part of the server that alone has it
        self._inboxes: dict[str, ClientSub | None] = {}  # `a.b` -> the only subscriber of every `a.b.<token>`, if any
        self._literals: dict[str, int] = {}  # `a.b` -> number of subscriptions on literal subjects `a.b.<token>`
        self._inner_wildcards: dict[str, int] = {}  # patterns such as `a.*.c` -> number of subscriptions
        self.inserts: int = 0
        self.removes: int = 0
        self.defer: Callable[[Job, Hashable], None] = _run_at_once  # the account starts it as a job
        self._random = random
        self._output = output
        self.acks: Subscriber | None = None  # receives all acks past the matcher, while nothing else subscribes to them
        self._ack_router: Subscriber | None = None
        self._ack_subscriptions = 0  # beside that of the ack router
        self._interest: dict[str, dict[InterestListener, None]] = {}  # by literal subject
        self.requester: Rules | None = None  # of the client whose request is being handled, if it has permissions

    def chance(self) -> float:
        """At least 0, less than 1."""
        return self._random.random()

    def count_subscribers(self, subject: str) -> int:
        """The number of subscriptions that match a subject, with every member of a queue group."""
        found = self.matcher.match_once(subject)
        return len(found.plain) + sum(len(members) for _, members in found.queues)

    def token(self, size: int) -> str:
        """A random name."""
        return "".join(_LETTERS[int(self._random.random() * len(_LETTERS))] for _ in range(size))

    # Subscriptions.

    def add(self, pattern: str, target: ClientSub | Subscriber, queue: str = "") -> None:
        self.matcher.add(pattern, target, queue)
        self.inserts += 1
        self._invalidate(pattern, 1)

    def discard(self, pattern: str, target: ClientSub | Subscriber, queue: str = "") -> None:
        if self.matcher.remove(pattern, target, queue):
            self.removes += 1
            self._invalidate(pattern, -1)

    def route_acks(self, ack_router: Subscriber) -> None:
        """Send all acks of consumers to `ack_router`, past the matcher while nothing else subscribes to them."""
        self._ack_router = ack_router
        self.add(ACKS, ack_router)
        self._ack_subscriptions = 0
        self.acks = ack_router

    def watch_interest(self, subject: str, listener: InterestListener, on: bool) -> None:
        """Call the listener whenever a subscription on exactly this subject is made or ends (`on`), or no longer."""
        if on:
            self._interest.setdefault(subject, {})[listener] = None
        else:
            listeners = self._interest.get(subject, {})
            listeners.pop(listener, None)
            if not listeners:
                self._interest.pop(subject, None)

    def subscribers(self, subject: str, queue: str) -> list[ClientSub]:
        """The clients that subscribed to exactly this subject, in that queue group (or in none, if it is empty)."""
        found = self.matcher.match_once(subject)
        subs = found.plain if not queue else next((group for name, group in found.queues if name == queue), ())
        return [sub for sub in subs if isinstance(sub, ClientSub) and sub.subject == subject and not sub.session.closed]

    def _invalidate(self, pattern: str, change: int) -> None:
        """A subscription was made or ended: drop the shortcuts that may be wrong now."""
        if pattern[0] in "$*>" and overlaps(pattern, ACKS):
            self._ack_subscriptions += change
            self.acks = self._ack_router if self._ack_subscriptions <= 0 else None
        if self._interest and pattern in self._interest:
            listeners = list(self._interest[pattern])
            self._load.units += len(listeners) // LISTENERS_PER_UNIT
            for listener in listeners:
                listener.interest_changed(self.now)
        if has_wildcard(pattern):
            # A wildcard may match many subjects: drop all. Those of inboxes are never in `sole_receivers`.
            self._inboxes.clear()
            if not pattern.startswith(INBOX):
                self.sole_receivers.clear()
            if pattern[-1] not in "*>":
                self._count(self._inner_wildcards, pattern, change)
            return
        self.sole_receivers.pop(pattern, None)
        parent = pattern.rpartition(".")[0]
        self._count(self._literals, parent, change)
        self._inboxes.pop(parent, None)

    def _count(self, counts: dict[str, int], key: str, change: int) -> None:
        counts[key] = counts.get(key, 0) + change
        if not counts[key]:
            del counts[key]

    def remember_sole_receiver(self, subject: str, receiver: Subscriber) -> None:
        """Let further publishes to `subject` skip the matcher: `receiver` is its only subscriber for now."""
        if not has_wildcard(subject):
            if len(self.sole_receivers) >= MAX_SHORTCUTS:
                self.sole_receivers.clear()
            self.sole_receivers[subject] = receiver

    def remove(self, sub: ClientSub) -> None:
        """End a client's subscription."""
        if sub.session.subs.pop(sub.sid, None) is not None:
            sub.session.past_msgs += sub.delivered
            self.discard(sub.subject, sub, sub.queue)

    def replace(self, sub: ClientSub, new: ClientSub) -> None:
        """Put a subscription in the place of one with the same subject, whose permissions have changed."""
        new.delivered, new.max_msgs = sub.delivered, sub.max_msgs
        sub.session.subs[sub.sid] = new
        self.add(sub.subject, new, sub.queue)  # first, so that a consumer never sees its subscriber leave
        self.discard(sub.subject, sub, sub.queue)

    def end_after(self, sub: ClientSub, max_msgs: int) -> None:
        """End a client's subscription once `max_msgs` messages were delivered in all."""
        if sub.delivered < max_msgs:
            sub.max_msgs = max_msgs
            self._inboxes.clear()
        else:
            self.remove(sub)

    def interest(self, subject: str) -> tuple[bool, bool]:
        """Whether a subject has subscribers, and whether one of them is congested."""
        found = self.matcher.match_once(subject)
        every = (*found.plain, *(member for _, members in found.queues for member in members))
        there, congested = False, None in self._fan_outs and len(every) > MANY_TARGETS
        for sub in every:
            if not isinstance(sub, ClientSub):
                there = True
            elif not sub.session.closed:
                there, congested = True, congested or sub.session.congested
        return there, congested

    def sole_client(self, subject: str, *, limited: bool = False) -> ClientSub | None:
        """The client subscription that is the only subscriber of a subject and takes any number of messages; with
        `limited` also one that ends after some (the caller must call `remove` then)."""
        found = self.matcher.match_once(subject)
        if found.queues or len(found.plain) != 1:
            return None
        sub = found.plain[0]
        if (
            type(sub) is not ClientSub
            or (sub.max_msgs and not limited)
            or not sub.session.headers
            or sub.session.closed
            or not sub.sid.isascii()
        ):
            return None
        return sub

    def is_served(self, subject: str) -> bool:
        """Whether a part of the server receives what is published to a subject."""
        if is_reserved(subject):
            return True
        found = self.matcher.match_once(subject)
        every = (*found.plain, *(member for _, members in found.queues for member in members))
        return any(not isinstance(target, ClientSub) for target in every)

    def may_reply(self, rules: Rules, reply: str) -> bool:
        """Whether a client with permissions may have its request answered on a subject (`auth.reply_targets`)."""
        return reply.startswith(INBOX) or rules.may_publish(reply) or not self.is_served(reply)

    # Routing.

    def send(self, subject: str, header: bytes, payload: bytes) -> bool:
        """Publish from within the server on a subject that is used once; whether it was delivered."""
        return self._send(subject, subject, "", header, payload)

    def request(self, subject: str, reply: str, header: bytes, payload: bytes) -> bool:
        """As `send`, with a reply subject."""
        return self._send(subject, subject, reply, header, payload)

    def forward(self, to: str, subject: str, reply: str, header: bytes, payload: bytes) -> bool:
        """Deliver to the subscribers of `to` a message that shows another subject; whether it was delivered."""
        return self._send(to, subject, reply, header, payload)

    def _send(self, to: str, subject: str, reply: str, header: bytes, payload: bytes) -> bool:
        if self._fan_outs:
            order = self._order
            before = self._fan_outs.get(order)
            # Its subscribers are found in its turn. What is for few, and for no client, does not wait for other things.
            if before is not None and (order is not None or to in before.subjects):
                before.add(None, (to, subject, reply, header, payload), None, self._load.asker)
                return True
        return self.route(self.matcher.match_once(to), subject, reply, header, payload, None, to=to)

    def route(
        self, found: Match[ClientSub | Subscriber], subject: str, reply: str, header: bytes, payload: bytes,
        origin: Session | None, *, to: str = "", at_once: bool = False,
    ) -> bool:  # fmt: skip
        """Deliver a message to every plain subscriber and to one member of each queue group; whether any took it.
        With `to`, the subscribers are those of `to`, and `subject` is what they see: permissions apply to `to`. To very
        many it is delivered in slices, unless `at_once` says that this is one."""
        targets = len(found.plain) + len(found.queues)
        if targets > MANY_TARGETS and not at_once:
            load = self._load
            if load.units >= RECEIVE_UNITS or targets > MOST_TARGETS or self._order in self._fan_outs:
                return self._fan_out(found, (to or subject, subject, reply, header, payload), origin)
            load.units += targets // TARGETS_PER_UNIT
        # The choice by kind of subscriber is written out twice: this is the hottest code of core NATS, where one more
        # call per subscriber would be felt.
        taken = False
        lead = tail = b""
        size = len(header) + len(payload)
        for target in found.plain:
            if type(target) is not ClientSub:
                if type(target) is GuardedSub:
                    done = self._guarded(target, to or subject, subject, reply, header, payload, origin)
                else:
                    done = target.receive(subject, reply, header, payload, self.now)  # type: ignore[union-attr]
                taken = done or taken
                continue
            if header and not target.session.headers:
                done = self.deliver(target, _frame(subject, target.sid, reply, payload), origin, len(payload))
                taken = done or taken
                continue
            if not lead:
                lead, tail = _halves(subject, reply, header, payload)
            if size < SHARED:
                done = self.deliver(target, lead + target.sid + tail, origin, size)
            else:
                done = self._deliver_large(target, lead + target.sid, tail, origin, size)
            taken = done or taken
        for _, members in found.queues:
            count = len(members)
            first = int(self._random.random() * count) if count > 1 else 0
            for i in range(count):  # a member may decline (no echo): then the next one is tried
                target = members[(first + i) % count]
                if type(target) is GuardedSub:
                    done = self._guarded(target, to or subject, subject, reply, header, payload, origin)
                elif type(target) is not ClientSub:
                    done = target.receive(subject, reply, header, payload, self.now)  # type: ignore[union-attr]
                elif header and not target.session.headers:
                    done = self.deliver(target, _frame(subject, target.sid, reply, payload), origin, len(payload))
                else:
                    if not lead:
                        lead, tail = _halves(subject, reply, header, payload)
                    done = self.deliver(target, lead + target.sid + tail, origin, size)
                if done:
                    taken = True
                    break
        return taken

    def _fan_out(
        self,
        found: Match[ClientSub | Subscriber],
        message: RoutedMessage,
        origin: Session | None,
    ) -> bool:
        """Deliver a message to the parts of the server now, and to clients in slices. The client on whose behalf that
        is done waits for it with its further input."""
        inside = Match(
            tuple([target for target in found.plain if not isinstance(target, ClientSub)]),
            tuple([group for group in found.queues if not _are_clients(group[1])]),
        )
        if inside.plain or inside.queues:
            to, subject, reply, header, payload = message
            self.route(inside, subject, reply, header, payload, origin, to=to, at_once=True)
            found = Match(
                tuple([target for target in found.plain if isinstance(target, ClientSub)]),
                tuple([group for group in found.queues if _are_clients(group[1])]),
            )
        order, asker = self._order, self._load.asker
        under_way = self._fan_outs.get(order)
        if under_way is None:
            under_way = self._fan_outs[order] = FanOut(self, order)
            self.defer(under_way, order if isinstance(order, Session) else under_way)
        under_way.add(found, message, origin, asker)
        return True

    @property
    def _order(self) -> Session | _Commits | None:
        """What is sent now keeps its place among all that is sent in the same order."""
        return _COMMITS if self._load.is_about_commit else self._load.asker

    def fan_out_ended(self, order: Session | _Commits | None) -> None:
        """All that was to be delivered in an order is delivered."""
        del self._fan_outs[order]

    def _guarded(
        self, sub: GuardedSub, to: str, subject: str, reply: str, header: bytes, payload: bytes, origin: Session | None
    ) -> bool:
        """Deliver a message to a subscription with permissions, if they allow it."""
        if not sub.admits(to):
            return False
        lead, tail = _halves(subject, reply, header if sub.session.headers else b"", payload)
        if not self.deliver(sub, b"".join((lead, sub.sid, tail)), origin, len(header) + len(payload)):
            return False
        if reply:
            sub.grant.expect(reply, self.now)
        return True

    def _deliver_large(self, sub: ClientSub, lead: bytes, tail: bytes, origin: Session | None, size: int) -> bool:
        """As `deliver`, with the rest of the frame apart, in one copy for all subscribers."""
        if not self.deliver(sub, lead, origin, size):
            return False
        self.push(sub.session, tail)
        return True

    def deliver(self, sub: ClientSub, frame: bytes, origin: Session | None, size: int) -> bool:
        """Queue one message, with `size` bytes of header and payload, for a subscription; whether it was taken."""
        session = sub.session
        if session.closed or (session is origin and not session.echo):
            return False
        sub.delivered += 1
        if sub.max_msgs and sub.delivered >= sub.max_msgs:
            self.remove(sub)
        self.push(session, frame, size)
        return True

    def send_no_responders(self, session: Session, subject: str, reply: str) -> None:
        """Answer a request that had no subscriber with status 503."""
        found = self.matcher.match_once(reply)
        for sub in (*found.plain, *(member for _, members in found.queues for member in members)):
            if isinstance(sub, ClientSub) and sub.session is session:
                block = f"NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n".encode()
                self.deliver(sub, hmsg(reply.encode(), sub.sid, block, b""), None, len(block))
                return

    def answer(self, reply: str, header: bytes, payload: bytes) -> None:
        """As `send`, quicker for an inbox that is one client's."""
        prefix = reply.rpartition(".")[0]
        sub = self._inboxes[prefix] if prefix in self._inboxes else self._inbox(prefix)
        if sub is None or not sub.session.headers:
            self.send(reply, header, payload)
        elif not sub.session.closed:
            sub.delivered += 1
            size = len(header)
            whole = size + len(payload)
            sid = sub.sid.decode()
            line = f"HMSG {reply} {sid} {size} {whole}\r\n" if header else f"MSG {reply} {sid} {whole}\r\n"
            self.push(sub.session, b"".join((line.encode(), header, payload, b"\r\n")), whole)

    def _inbox(self, prefix: str) -> ClientSub | None:
        """The one client subscription that receives every message on `prefix.<token>`, or None."""
        if len(self._inboxes) >= MAX_SHORTCUTS:
            self._inboxes.clear()
        sub: ClientSub | None = None
        named = not prefix or prefix in self._literals or len(self._inner_wildcards) > MAX_INNER_WILDCARDS
        if not named and not any(matches(pattern.rpartition(".")[0], prefix) for pattern in self._inner_wildcards):
            sub = self.sole_client(f"{prefix}.\0")  # no subscription names such a token: only wildcards match it
        self._inboxes[prefix] = sub
        return sub

    def answer_all(self, answers: list[Answer]) -> None:
        """Send the answers of a group, the acks for one inbox in one piece."""
        inboxes = self._inboxes
        current: ClientSub | None = None
        sid = ""
        total = 0
        texts: list[str] = []
        # Consecutive acks for one inbox are collected as text and encoded once: that is most of the cost of an ack.
        for reply, seq, source, payload, client in answers:
            sub = None
            if seq:
                prefix = reply.rpartition(".")[0]
                sub = inboxes[prefix] if prefix in inboxes else self._inbox(prefix)
            if sub is not current and texts:
                assert current is not None
                current.delivered += len(texts)
                self.push(current.session, "".join(texts).encode(), total)
                texts, total = [], 0
            current = sub
            if sub is not None:
                if not texts:
                    sid = sub.sid.decode()
                text, size = source.ack(seq)
                texts.append(f"MSG {reply} {sid} {size}\r\n{text}\r\n")
                total += size
            else:
                self._load.owner = client
                self.send(reply, b"", payload or source.ack(seq)[0].encode())
        self._load.owner = None
        if current is not None and texts:
            current.delivered += len(texts)
            self.push(current.session, "".join(texts).encode(), total)

    # Output.

    def push(self, session: Session, data: bytes, size: int = 0) -> None:
        """Queue bytes for a client, `size` of them headers and payloads of messages. A client that does not read them
        in time is closed as a slow consumer."""
        session.out_bytes += size
        if session.closed:
            return
        out = session.out
        if not out:
            self._output.dirty.append(session)
        out.append(data)
        session.out_capacity -= len(data)
        if session.out_capacity < 0:
            self._look_at(session)

    def _look_at(self, session: Session) -> None:
        """A session has used up a tranche of its capacity: give it the next one, or close it; have the driver take what
        all sessions have queued, if that is much."""
        used = session.next_tranche()
        if not used:
            session.out.clear()
            self.close(session, "Slow Consumer")
        else:
            self._output.add(used)

    def close(self, session: Session, text: str) -> None:
        """End a session with `-ERR`; the driver closes the connection when it takes the output."""
        if session.closed:
            return
        self.drop(session)
        self._output.dirty.append(session)  # twice does no harm
        session.close(text)

    def drop(self, session: Session) -> None:
        """End all subscriptions of a client that leaves: many of them as a job. Until then nothing is delivered to
        them, since the session is closed, and they count as no interest."""
        session.past_msgs = session.out_msgs
        removal = _Removal(self, list(session.subs.values()))
        session.subs.clear()
        if removal.run()[0] is Progress.MORE:
            self.defer(removal, removal)


# The subject whose subscribers get it, the one that they see, reply, header, payload.
RoutedMessage = tuple[str, str, str, bytes, bytes]


class _Commits(Enum):
    """The order of all messages about commits."""

    ORDER = "commits"


_COMMITS: Final = _Commits.ORDER


class FanOut:
    """Messages to very many subscribers, as a job: in order, so many deliveries at a time.

    A client on whose behalf one of them is sent waits until that is delivered. A subscription that ends before its turn
    gets nothing, and one that is made meanwhile only what is published later.
    """

    def __init__(self, router: AccountRouter, order: Session | _Commits | None) -> None:
        self._router, self._order = router, order
        self._waiting: deque[_Waiting] = deque()
        self._left: dict[Session, int] = {}  # messages on behalf of each client
        self._at = 0  # targets of the first message that have it
        self.subjects: dict[str, int] = {}  # messages for the subscribers of each

    def add(
        self,
        found: Match[ClientSub | Subscriber] | None,
        message: RoutedMessage,
        origin: Session | None,
        asker: Session | None,
    ) -> None:
        """One more message; without `found` its subscribers are looked up in its turn."""
        self._waiting.append(_Waiting(found, message, origin, asker))
        self.subjects[message[0]] = self.subjects.get(message[0], 0) + 1
        if asker is not None:
            count = self._left.get(asker, 0)
            self._left[asker] = count + 1
            if not count:
                asker.searches += 1

    def run(self) -> tuple[Progress, int]:
        """Deliver some of it."""
        left, units, waiting = MOST_TARGETS, 0, self._waiting
        while waiting and left > 0:
            found, message, origin, asker = waiting[0]
            to, subject, reply, header, payload = message
            if found is None:
                found = self._router.matcher.match_once(to)
                waiting[0] = _Waiting(found, message, origin, asker)
                matched = len(found.plain) + len(found.queues)
                units += 1 + matched // MATCHED_PER_UNIT
                left -= 1 + matched * TARGETS_PER_UNIT // MATCHED_PER_UNIT
            plain, at = len(found.plain), self._at
            end = min(at + max(left, 1), plain + len(found.queues))
            part = Match(
                tuple([sub for sub in found.plain[at:end] if not _has_ended(sub)]),
                found.queues[max(0, at - plain) : max(0, end - plain)],
            )
            self._router.route(part, subject, reply, header, payload, origin, to=to, at_once=True)
            units += (end - at) // TARGETS_PER_UNIT
            left -= end - at
            self._at = end
            if end == plain + len(found.queues):
                waiting.popleft()
                self._at = 0
                self.subjects[to] -= 1
                if not self.subjects[to]:
                    del self.subjects[to]
                if asker is not None:
                    self._delivered(asker)
        if waiting:
            return Progress.MORE, units
        self._router.fan_out_ended(self._order)
        return Progress.DONE, units

    def _delivered(self, asker: Session) -> None:
        """One message less on behalf of a client: it goes on behind the last one."""
        self._left[asker] -= 1
        if self._left[asker]:
            return
        del self._left[asker]
        asker.searches -= 1
        if not asker.searches:
            self._router.resume(asker)


class _Waiting(NamedTuple):
    """A message of a fan-out."""

    found: Match[ClientSub | Subscriber] | None
    message: RoutedMessage
    origin: Session | None
    asker: Session | None


def _has_ended(target: ClientSub | Subscriber) -> bool:
    return isinstance(target, ClientSub) and target.session.subs.get(target.sid) is not target


def _are_clients(members: tuple[ClientSub | Subscriber, ...]) -> bool:
    return isinstance(members[0], ClientSub) and isinstance(members[-1], ClientSub)


def _nothing(_: Session) -> None:
    """Without an account no input waits."""


class _Removal:
    """A job that removes the subscriptions of a client that has left."""

    def __init__(self, router: AccountRouter, subs: list[ClientSub]) -> None:
        self._router = router
        self._subs = subs

    def run(self) -> tuple[Progress, int]:
        part = self._subs[-REMOVALS:]
        del self._subs[-REMOVALS:]
        for sub in part:
            self._router.discard(sub.subject, sub, sub.queue)
        return (Progress.MORE if self._subs else Progress.DONE), len(part)


def _halves(subject: str, reply: str, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """A frame without its sid, which goes between: encoded once for all subscribers."""
    gap = f" {reply} " if reply else " "
    if header:
        size = len(header)
        sizes = f"{gap}{size} {size + len(payload)}\r\n".encode()
        return f"HMSG {subject} ".encode(), b"".join((sizes, header, payload, b"\r\n"))
    return f"MSG {subject} ".encode(), b"".join((f"{gap}{len(payload)}\r\n".encode(), payload, b"\r\n"))


def _frame(subject: str, sid: bytes, reply: str, payload: bytes) -> bytes:
    """A whole frame without headers, for a client that does not know them."""
    lead, tail = _halves(subject, reply, b"", payload)
    return lead + sid + tail
