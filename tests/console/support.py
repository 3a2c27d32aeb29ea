"""A console on a free port, served by a thread of the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from slipstream import BlockingJetStream
from slipstream.console.serving import Site as Serving
from slipstream.console.state import Settings
from slipstream.spark.pipelines import load
from slipstream.spark.pipelines.state import QueryState, StateFolder


class Site(NamedTuple):
    base: str
    token: str

    @property
    def address(self) -> str:
        return f"{self.base}/?token={self.token}"


@contextlib.contextmanager
def console(url: str, *, write: bool = False, **settings: Any) -> Iterator[Site]:
    """A running console of the server at `url`."""
    serving = Serving(Settings(connect={"servers": url}, write=write, **settings))
    with serving.in_background() as site:
        yield Site(site.base, site.access.token)


PIPELINE = """
[pipeline]
name = "orders"
dead_letter = "ORDERS_DEAD"

[sources.orders]
stream = "ORDERS"
format = "json"
schema = "id BIGINT, customer STRING"

[steps.per_customer]
sql = "SELECT customer, count(*) AS orders FROM orders GROUP BY customer"

[outputs.customers]
from = "per_customer"
bucket = "settings"
key = "customer"

[outputs.history]
from = "orders"
path = "history"
"""


def recorded_pipeline(folder: Path, url: str, *, rows: int = 4_000) -> tuple[str, Callable[[int], None]]:
    """A pipeline file with the state of a run, as Spark's checkpoints and the runner leave it; and what makes the run
    go on to another number of rows."""
    file = folder / "orders.toml"
    file.write_text(f'{PIPELINE}\n[connection]\nservers = "{url}"\n', "utf-8")
    pipeline = load(str(file))
    state = StateFolder(pipeline)

    def go_on(count: int) -> None:
        queries = {}
        for name in ("customers", "history", "dead-orders"):
            checkpoint = state.checkpoint(name)
            for kind, text in (("offsets", f'v1\n{{}}\n{{"seq": {count}}}\n'), ("commits", "v1\n{}\n")):
                (checkpoint / kind).mkdir(parents=True, exist_ok=True)
                (checkpoint / kind / "7").write_text(text, "utf-8")
            queries[name] = QueryState(
                rows=count, batch=7, rate=900.0, at="2026-01-31T12:00:00Z", sequences={"0": count}, batch_rows=500,
                batch_seconds=0.6, written=count,
            )  # fmt: skip
        state.write_run(url, queries)

    go_on(rows)
    return str(file), go_on


def dead_letter(js: BlockingJetStream, seq: int, subject: str, data: bytes, reason: str) -> None:
    """A dead letter of the source `orders`, as the pipeline writes it."""
    headers = {"Slipstream-Reason": reason, "Slipstream-Subject": subject, "Slipstream-Sequence": str(seq)}
    js.publish("ORDERS_DEAD.orders", data, headers=headers)
