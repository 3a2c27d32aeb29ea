"""Messages become frames for those who want them: the router of an account, and each client's output.

Two shortcuts past the router make the difference for streams under load: a subject whose only subscriber is a stream,
and an inbox whose only subscriber is one client. Both are forgotten whenever a subscription changes that could matter
to them.
"""

from __future__ import annotations

from typing import Protocol

from slipstream.server.engine.auth.permissions import GuardedSub
from slipstream.server.engine.core.session import ClientSub, Session
from slipstream.server.engine.journal import Answer
from slipstream.server.engine.services import Interested, Target
from slipstream.wire import Match, Router, has_wildcard, hmsg, matches, overlaps

SHORTCUTS = 32 * 1024
MAX_ODD = 64  # beyond that, looking through them costs more than the shortcut saves
INBOX = "_INBOX."
ACKS = "$JS.ACK.>"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class Dice(Protocol):
    """Where the choice within a queue group comes from; a `random.Random` will do."""

    def random(self) -> float: ...


class AccountRouter:
    """Subscriptions of clients and of the server's own parts, and what goes out."""

    def __init__(self, dice: Dice, now: int, dirty: list[Session]) -> None:
        """`dirty` takes the sessions that have output; the switches of all accounts share it."""
        self.now = now  # the time of what is being handled
        self.router: Router[ClientSub | Target] = Router()
        self.straight: dict[str, Target] = {}  # literal subject -> the stream that is its only subscriber
        self._inboxes: dict[str, ClientSub | None] = {}  # `a.b` -> the only subscriber of every `a.b.<token>`, if any
        self._literals: dict[str, int] = {}  # `a.b` -> how many subscriptions there are on some literal `a.b.<token>`
        self._odd: dict[str, int] = {}  # patterns such as `a.*.c`, with how often they are subscribed to
        self.inserts = self.removes = 0
        self._dice = dice
        self._dirty = dirty
        self.acks: Target | None = None  # who takes all acks, as long as nobody else listens to them
        self._desk: Target | None = None
        self._ack_listeners = 0
        self._interested: dict[str, dict[Interested, None]] = {}  # literal subject -> whom its subscribers concern

    def chance(self) -> float:
        """At least 0, less than 1."""
        return self._dice.random()

    def audience(self, subject: str) -> int:
        """How many subscriptions there are on a subject, each member of a queue group counted."""
        found = self.router.match_once(subject)
        return len(found.plain) + sum(len(members) for _, members in found.queues)

    def token(self, size: int) -> str:
        """A name that nobody has."""
        return "".join(_LETTERS[int(self._dice.random() * len(_LETTERS))] for _ in range(size))

    # Subscriptions.

    def add(self, pattern: str, target: ClientSub | Target, queue: str = "") -> None:
        self.router.add(pattern, target, queue)
        self.inserts += 1
        self._forget(pattern, 1)

    def discard(self, pattern: str, target: ClientSub | Target, queue: str = "") -> None:
        if self.router.remove(pattern, target, queue):
            self.removes += 1
            self._forget(pattern, -1)

    def hand_acks(self, desk: Target) -> None:
        """All acks of consumers go to `desk`, past the router while nobody else wants them."""
        self._desk = desk
        self.add(ACKS, desk)
        self._ack_listeners = 0
        self.acks = desk

    def attend(self, subject: str, interested: Interested, yes: bool) -> None:
        """Tell somebody whenever a subscription on exactly this subject comes or goes (or no more)."""
        if yes:
            self._interested.setdefault(subject, {})[interested] = None
        else:
            those = self._interested.get(subject, {})
            those.pop(interested, None)
            if not those:
                self._interested.pop(subject, None)

    def members(self, subject: str, queue: str) -> list[ClientSub]:
        """The clients that subscribed to exactly this subject, in that queue group or in none."""
        found = self.router.match_once(subject)
        those = found.plain if not queue else next((group for name, group in found.queues if name == queue), ())
        return [sub for sub in those if isinstance(sub, ClientSub) and sub.subject == subject]

    def _forget(self, pattern: str, change: int) -> None:
        """A subscription came or went: drop the shortcuts that may be wrong now."""
        if pattern[0] in "$*>" and overlaps(pattern, ACKS):
            self._ack_listeners += change
            self.acks = self._desk if self._ack_listeners <= 0 else None
        if self._interested and pattern in self._interested:
            for interested in list(self._interested[pattern]):
                interested.interest_changed(self.now)
        if has_wildcard(pattern):
            self._inboxes.clear()
            if not pattern.startswith(INBOX):
                self.straight.clear()
            if pattern[-1] not in "*>":
                self._count(self._odd, pattern, change)
            return
        self.straight.pop(pattern, None)
        parent = pattern.rpartition(".")[0]
        self._count(self._literals, parent, change)
        self._inboxes.pop(parent, None)

    def _count(self, counts: dict[str, int], key: str, change: int) -> None:
        counts[key] = counts.get(key, 0) + change
        if not counts[key]:
            del counts[key]

    def remember(self, subject: str, stream: Target) -> None:
        """Nobody but `stream` wants `subject`, until a subscription changes."""
        if not has_wildcard(subject):
            if len(self.straight) >= SHORTCUTS:
                self.straight.clear()
            self.straight[subject] = stream

    def remove(self, sub: ClientSub) -> None:
        """End a client's subscription."""
        if sub.session.subs.pop(sub.sid, None) is not None:
            sub.session.past_msgs += sub.delivered
            self.discard(sub.subject, sub, sub.queue)

    def end_after(self, sub: ClientSub, max_msgs: int) -> None:
        """End a client's subscription once it got so many messages in all."""
        if sub.delivered < max_msgs:
            sub.max_msgs = max_msgs
            self._inboxes.clear()
        else:
            self.remove(sub)

    def listeners(self, subject: str) -> tuple[bool, bool]:
        found = self.router.match_once(subject)
        every = (*found.plain, *(member for _, members in found.queues for member in members))
        return bool(every), any(isinstance(sub, ClientSub) and sub.session.congested for sub in every)

    def sole_client(self, subject: str, *, limited: bool = False) -> ClientSub | None:
        found = self.router.match_once(subject)
        if found.queues or len(found.plain) != 1:
            return None
        sub = found.plain[0]
        if (
            type(sub) is not ClientSub
            or (sub.max_msgs and not limited)
            or not sub.session.headers
            or not sub.sid.isascii()
        ):
            return None
        return sub

    # Routing.

    def send(self, subject: str, header: bytes, payload: bytes) -> bool:
        """Publish from within the server, once on this subject; whether anybody got it."""
        return self.route(self.router.match_once(subject), subject, "", header, payload, None)

    def pass_on(self, to: str, subject: str, reply: str, header: bytes, payload: bytes) -> bool:
        """Give whoever listens on `to` a message that shows another subject; whether anybody got it."""
        return self.route(self.router.match_once(to), subject, reply, header, payload, None, to=to)

    def route(
        self, found: Match[ClientSub | Target], subject: str, reply: str, header: bytes, payload: bytes,
        origin: Session | None, *, to: str = "",
    ) -> bool:  # fmt: skip
        """Give a message to every plain subscriber and to one of each queue group; whether anybody took it. With `to`
        that is where it goes, and `subject` only what it shows: permissions are asked about the former."""
        taken = False
        lead = tail = b""
        size = len(header) + len(payload)
        for target in found.plain:
            if type(target) is not ClientSub:
                if type(target) is GuardedSub:
                    taken |= self._guarded(target, to or subject, subject, reply, header, payload, origin)
                else:
                    taken |= target.receive(subject, reply, header, payload, self.now)  # type: ignore[union-attr]
                continue
            if header and not target.session.headers:
                taken |= self.deliver(target, _frame(subject, target.sid, reply, payload), origin, len(payload))
                continue
            if not lead:
                lead, tail = _halves(subject, reply, header, payload)
            taken |= self.deliver(target, b"".join((lead, target.sid, tail)), origin, size)
        for _, members in found.queues:
            count = len(members)
            first = int(self._dice.random() * count) if count > 1 else 0
            for i in range(count):  # a member may not take it (no echo): then the next one is asked
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
                    done = self.deliver(target, b"".join((lead, target.sid, tail)), origin, size)
                if done:
                    taken = True
                    break
        return taken

    def _guarded(
        self, sub: GuardedSub, to: str, subject: str, reply: str, header: bytes, payload: bytes, origin: Session | None
    ) -> bool:
        """Give a message to a subscription with permissions, if it may have it."""
        if not sub.admits(to):
            return False
        lead, tail = _halves(subject, reply, header if sub.session.headers else b"", payload)
        if not self.deliver(sub, b"".join((lead, sub.sid, tail)), origin, len(header) + len(payload)):
            return False
        if reply:
            sub.grant.expect(reply, self.now)
        return True

    def deliver(self, sub: ClientSub, frame: bytes, origin: Session | None, size: int) -> bool:
        """Queue one message, with `size` bytes of header and payload, for a subscription; whether it took it."""
        session = sub.session
        if session.closed or (session is origin and not session.echo):
            return False
        sub.delivered += 1
        session.out_bytes += size
        if sub.max_msgs and sub.delivered >= sub.max_msgs:
            self.remove(sub)
        self.push(session, frame)
        return True

    def tell_nobody(self, session: Session, subject: str, reply: str) -> None:
        found = self.router.match_once(reply)
        for sub in (*found.plain, *(member for _, members in found.queues for member in members)):
            if isinstance(sub, ClientSub) and sub.session is session:
                block = f"NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n".encode()
                self.deliver(sub, hmsg(reply.encode(), sub.sid, block, b""), None, len(block))
                return

    def _inbox(self, prefix: str) -> ClientSub | None:
        """The one client subscription that gets every message on `prefix.<token>`, if that is so."""
        if len(self._inboxes) >= SHORTCUTS:
            self._inboxes.clear()
        sub: ClientSub | None = None
        named = not prefix or prefix in self._literals or len(self._odd) > MAX_ODD
        if not named and not any(matches(pattern.rpartition(".")[0], prefix) for pattern in self._odd):
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
        for reply, seq, source, payload in answers:
            sub = None
            if seq:
                prefix = reply.rpartition(".")[0]
                sub = inboxes[prefix] if prefix in inboxes else self._inbox(prefix)
            if sub is not current and texts:
                assert current is not None
                self.push_to(current, "".join(texts).encode(), len(texts), total)
                texts, total = [], 0
            current = sub
            if sub is not None:
                if not texts:
                    sid = sub.sid.decode()
                text, size = source.ack(seq)
                texts.append(f"MSG {reply} {sid} {size}\r\n{text}\r\n")
                total += size
            else:
                self.send(reply, b"", payload or source.ack(seq)[0].encode())
        if current is not None and texts:
            self.push_to(current, "".join(texts).encode(), len(texts), total)

    # Output.

    def push_to(self, sub: ClientSub, frames: bytes, count: int, size: int) -> None:
        """Queue `count` messages, with `size` bytes of headers and payloads, for a subscription."""
        sub.delivered += count
        sub.session.out_bytes += size
        self.push(sub.session, frames)

    def push(self, session: Session, data: bytes) -> None:
        if session.closed:
            return
        out = session.out
        if not out:
            self._dirty.append(session)
        out.append(data)
        session.room -= len(data)
        if session.room < 0:
            out.clear()
            self.close(session, "Slow Consumer")

    def close(self, session: Session, text: str) -> None:
        if session.closed:
            return
        self.drop(session)
        self._dirty.append(session)  # twice does no harm
        session.close(text)

    def drop(self, session: Session) -> None:
        session.past_msgs = session.out_msgs
        for sub in session.subs.values():
            self.discard(sub.subject, sub, sub.queue)
        session.subs.clear()


def _halves(subject: str, reply: str, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """A frame without its sid, which goes between: encoded once for all subscribers."""
    gap = f" {reply} " if reply else " "
    if header:
        size = len(header)
        tail = b"%b%d %d\r\n%b%b\r\n" % (gap.encode(), size, size + len(payload), header, payload)
        return f"HMSG {subject} ".encode(), tail
    return f"MSG {subject} ".encode(), b"%b%d\r\n%b\r\n" % (gap.encode(), len(payload), payload)


def _frame(subject: str, sid: bytes, reply: str, payload: bytes) -> bytes:
    """A whole frame without headers, for a client that does not know them."""
    lead, tail = _halves(subject, reply, b"", payload)
    return lead + sid + tail
