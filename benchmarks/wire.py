"""The wire alone, on one core: 128-byte messages parsed, encoded and routed, beside nats-py's parser on the same bytes.

The bytes arrive in reads of 64 KiB, so that frames are cut at their borders, over 1,000 subjects; every check is on.
The parsers must reach 500 thousand messages a second: their target, as a ratio, is that floor over the peer's rate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from nats.protocol.parser import Parser as PeerParser

from benchmarks.report import Row, row, table
from slipstream.wire import Headers, Parser, Router, Side, encode

MESSAGES = 100_000
CHUNK = 64 * 1024
FLOOR = 500_000.0
ROUNDS = 5
PAYLOAD = b"x" * 128
HEADER = Headers({"Nats-Msg-Id": "0123456789", "Trace": "abcdef"}).encode()
DIRECT = Headers(
    {
        "Nats-Stream": "ORDERS",
        "Nats-Subject": "orders.eu.17",
        "Nats-Sequence": "123456",
        "Nats-Time-Stamp": "2026-01-02T03:04:05.678901234Z",
        "Nats-Num-Pending": "4711",
    }
).encode()
SUBJECTS = [f"orders.eu.{n}" for n in range(1000)]


def chunks(frame: Callable[[int, str], bytes]) -> list[bytes]:
    """The reads in which the messages arrive."""
    data = b"".join(frame(n, SUBJECTS[n % 1000]) for n in range(MESSAGES))
    return [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]


FRAMES: dict[str, tuple[Side, Callable[[int, str], bytes]]] = {
    "MSG": (Side.SERVER, lambda _, subject: encode.msg(subject.encode(), b"7", PAYLOAD)),
    "MSG with reply (a consumer's)": (
        Side.SERVER,
        lambda n, subject: encode.msg(
            subject.encode(), b"7", PAYLOAD, b"$JS.ACK.ORDERS.C.1.%d.%d.1767323045.0" % (n, n)
        ),
    ),
    "HMSG": (Side.SERVER, lambda _, subject: encode.hmsg(subject.encode(), b"7", HEADER, PAYLOAD)),
    "HMSG (of a Direct Get)": (Side.SERVER, lambda _, __: encode.hmsg(b"_INBOX.abc.17", b"7", DIRECT, PAYLOAD)),
    "PUB": (Side.CLIENT, lambda _, subject: encode.pub(subject, PAYLOAD)),
    "PUB with reply": (Side.CLIENT, lambda n, subject: encode.pub(subject, PAYLOAD, f"_INBOX.abc.{n}")),
    "HPUB": (Side.CLIENT, lambda n, subject: encode.pub(subject, PAYLOAD, f"_INBOX.abc.{n}", HEADER)),
}


def best(work: Callable[[], int]) -> float:
    """Things per second, in the best of some rounds: the others measure the machine."""
    rates = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        done = work()
        rates.append(done / (time.perf_counter() - begin))
    return max(rates)


def parse_ours(side: Side, reads: list[bytes]) -> float:
    """Our parser."""

    def work() -> int:
        parser = Parser(side)
        count = 0
        for read in reads:
            count += len(parser.feed(read))
        assert count == MESSAGES
        return count

    return best(work)


class _Stub:
    """Stands where nats-py's client does."""

    count = 0

    async def _process_msg(self, *_: object) -> None:
        self.count += 1


def parse_peer(reads: list[bytes]) -> float:
    """nats-py's parser, which serves clients only."""

    def work() -> int:
        stub = _Stub()
        parser = PeerParser(stub)

        async def run() -> None:
            for read in reads:
                await parser.parse(read)

        asyncio.run(run())
        assert stub.count == MESSAGES
        return stub.count

    return best(work)


def encode_ours() -> dict[str, float]:
    """Our encoder, one call a message."""

    def pub() -> int:
        for subject in SUBJECTS * (MESSAGES // 1000):
            encode.pub(subject, PAYLOAD)
        return MESSAGES

    def hpub() -> int:
        for subject in SUBJECTS * (MESSAGES // 1000):
            encode.pub(subject, PAYLOAD, "_INBOX.abc.1", HEADER)
        return MESSAGES

    def msg() -> int:
        for subject in [subject.encode() for subject in SUBJECTS] * (MESSAGES // 1000):
            encode.msg(subject, b"7", PAYLOAD)
        return MESSAGES

    return {"PUB encoded": best(pub), "HPUB encoded, with reply": best(hpub), "MSG encoded": best(msg)}


def route_ours() -> dict[str, float]:
    """Our routing table with 100 thousand subscriptions."""
    router: Router[int] = Router()
    for n in range(50_000):
        router.add(f"orders.eu.{n}", n)
        router.add(f"orders.*.{n}", n, "workers")

    def cached() -> int:
        for subject in SUBJECTS * (MESSAGES // 1000):
            router.match(subject)
        return MESSAGES

    def once() -> int:
        for subject in SUBJECTS * (MESSAGES // 1000):
            router.match_once(subject)
        return MESSAGES

    name = "routed among 100 k subscriptions"
    return {f"{name}, seen before": best(cached), f"{name}, new": best(once)}


def run() -> list[Row]:
    """Measure everything."""
    rows = []
    for name, (side, frame) in FRAMES.items():
        reads = chunks(frame)
        peer = parse_peer(reads) if side is Side.SERVER else None
        target = FLOOR / peer if peer else None
        rows.append(row(f"{name} parsed (floor 500 k/s)", parse_ours(side, reads), peer, target=target))
    rows += [row(name, rate) for name, rate in {**encode_ours(), **route_ours()}.items()]
    return rows


def main() -> None:
    """Print the table, and whether the floor was reached."""
    rows = run()
    print(table(rows))
    slowest = min(one["ours"] for one in rows if "floor" in one["work"])
    verdict = "reached" if slowest >= FLOOR else "NOT reached"
    print(f"the parser's floor of {FLOOR:,.0f} messages/s is {verdict}: the slowest form has {slowest:,.0f}")


if __name__ == "__main__":
    main()
