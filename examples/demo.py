"""Demo of a pipeline, from messages to views: `make demo`, or `python -m examples.demo [ORDERS]`.

100,000 generated orders, a few of them broken, are published to an embedded server. The pipeline of
`examples/orders.toml` keeps a view per customer and a view per minute in Key-Value buckets, publishes alerts, writes
the history as Parquet and sends the broken orders to a dead-letter stream. Then the Key-Value client reads the views,
with read-your-writes, and they are checked against plain Python. It ends with the address of a console, which in a
terminal stays until Enter is pressed.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from slipstream import BlockingJetStream, Error, Server, StreamConfig, connect_blocking
from slipstream.console.serving import Site
from slipstream.console.state import Settings
from slipstream.spark.pipelines import Pipeline, load
from slipstream.spark.pipelines.runner import Runner
from slipstream.spark.pipelines.state import QueryState

ORDERS = 100_000
BROKEN_EVERY = 10_000
CUSTOMERS = ["ada", "alan", "barbara", "claude", "donald", "edsger", "grace", "john", "leslie", "margaret"]
ITEMS = {"book": 1_990, "lamp": 4_550, "chair": 12_900, "desk": 38_000, "pen": 250}
OPENING = datetime(2026, 1, 31, 9, tzinfo=UTC)
PIPELINE = Path(__file__).with_name("orders.toml")

Totals = dict[str, tuple[int, int]]  # orders, and revenue in cents


class Expected(NamedTuple):
    """The expected totals, computed in plain Python."""

    customers: Totals
    minutes: Totals
    orders: int
    broken: int


def publish_orders(js: BlockingJetStream, count: int) -> Expected:
    """Send the orders of one hour, each acknowledged by the stream."""
    chance = random.Random(2026)
    customers: Totals = defaultdict(lambda: (0, 0))
    minutes: Totals = defaultdict(lambda: (0, 0))
    broken = 0
    with js.publisher() as publisher:
        for number in range(count):
            customer, (item, price) = chance.choice(CUSTOMERS), chance.choice(list(ITEMS.items()))
            amount = price * chance.randint(1, 5)
            placed = OPENING + timedelta(seconds=3600 * number / count)
            order = {"id": number, "customer": customer, "item": item, "amount": amount, "placed": placed.isoformat()}
            data = json.dumps(order).encode()
            if number % BROKEN_EVERY == BROKEN_EVERY // 2:
                data, broken = data[:-9], broken + 1
            else:
                for totals, key in ((customers, customer), (minutes, placed.strftime("%Y-%m-%dT%H_%M"))):
                    orders, revenue = totals[key]
                    totals[key] = orders + 1, revenue + amount
            publisher.publish(f"orders.{customer}", data)
    return Expected(dict(customers), dict(minutes), count - broken, broken)


def read_view(js: BlockingJetStream, bucket: str) -> Totals:
    """A view as any client sees it, at least as new as the bucket's last write, whichever replica answers."""
    kv = js.key_value(bucket)
    newest = kv.status().stream_info.state.last_seq
    view: Totals = {}
    for key in sorted(kv.keys(min_last_revision=newest)):
        value = json.loads(kv.get(key, min_last_revision=newest).value)
        view[key] = value["orders"], value["revenue"]
    return view


def show(title: str, view: Totals, *, most: int = 10) -> None:
    """The first lines of a view as a table."""
    print(f"\n{title:<20}{'orders':>10}{'revenue':>18}")
    for key, (orders, revenue) in list(view.items())[:most]:
        print(f"{key:<20}{orders:>10,}{revenue / 100:>18,.2f}")
    if len(view) > most:
        print(f"... and {len(view) - most} more")


def count_rows(folder: Path) -> int:
    """How many rows the Parquet files hold."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in folder.rglob("*.parquet"))


def differences(js: BlockingJetStream, folder: Path, expected: Expected) -> list[str]:
    """What came out otherwise than plain Python says; nothing, if all is well."""
    found = {
        "the view per customer": (read_view(js, "customers"), expected.customers),
        "the view per minute": (read_view(js, "minutes"), expected.minutes),
        "the rows of the history": (count_rows(folder / "orders-state" / "history"), expected.orders),
        "the orders put aside": (js.stream("ORDERS_DEAD").info().state.messages, expected.broken),
    }
    return [f"{what}: {seen}, expected {wanted}" for what, (seen, wanted) in found.items() if seen != wanted]


def main(count: int = ORDERS) -> int:
    begin = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="slipstream-demo-") as name,
        Server(data_dir=Path(name, "server")) as server,
        connect_blocking(server.url) as client,
    ):
        folder, js = Path(name), client.jetstream()
        js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.>",), allow_direct=True))
        print(f"publishing {count:,} orders to an embedded server, {server.url} ...", flush=True)
        start = time.perf_counter()
        expected = publish_orders(js, count)
        publishing = time.perf_counter() - start

        file = folder / PIPELINE.name
        file.write_text(PIPELINE.read_text("utf-8"), "utf-8")
        pipeline = load(str(file))
        runner = Runner(pipeline, once=True, servers=server.url)
        states = runner.run()
        start = time.perf_counter()
        show("customer", read_view(js, "customers"))
        show("minute", read_view(js, "minutes"), most=5)
        reading = time.perf_counter() - start
        wrong = differences(js, folder, expected)
        report(begin, count, publishing, reading, runner, states, expected, wrong)
        if not wrong:
            look_around(server, pipeline)
    return 1 if wrong else 0


def look_around(server: Server, pipeline: Pipeline) -> None:
    """The console on what the demo has made; where there is a terminal, until Enter is pressed."""
    settings = Settings(connect={"servers": server.url}, pipelines=[pipeline.file], pipeline_servers=server.url)
    with Site(settings).in_background() as site:
        print(f"console: {site.address}", flush=True)
        if sys.stdin.isatty():
            with suppress(KeyboardInterrupt, EOFError):
                input("open it to look around; Enter ends the demo and its server ")


def report(
    begin: float, count: int, publishing: float, reading: float, runner: Runner, states: dict[str, QueryState],
    expected: Expected, wrong: list[str],
) -> None:  # fmt: skip
    """What was done, how fast, and whether it is right."""
    rows = sum(state.rows for state in states.values())
    print(f"\n{count:,} orders published, stored on disk and acknowledged: {count / publishing:,.0f} a second")
    print(f"{rows:,} rows through Spark into {len(states)} outputs: {rows / runner.seconds:,.0f} a second")
    print(f"{runner.rows_read:,} rows read from the stream for them: outputs without state share a read")
    keys = len(expected.customers) + len(expected.minutes)
    print(f"{keys} keys of the views read back with read-after-write in {reading * 1000:,.0f} ms")
    print(f"{time.perf_counter() - begin:.1f} seconds in total")
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    if not wrong:
        print(f"views and history equal the sum of the {expected.orders:,} orders; {expected.broken} broken put aside")


if __name__ == "__main__":
    try:
        sys.exit(main(*map(int, sys.argv[1:2])))
    except Error as error:
        sys.exit(f"error: {error}")
