"""Preparation in the background: what goes wrong there is not the run's."""

from __future__ import annotations

import threading
from unittest import mock

from slipstream.spark.pipelines import parse
from slipstream.spark.pipelines.preparation import prepare
from tests.spark.pipelines.support import SMALL


def test_failure_is_silent() -> None:
    spark, called = mock.Mock(), threading.Event()

    def load(_: str) -> None:
        called.set()
        raise RuntimeError("there is no stream yet")

    spark.read.format.return_value.options.return_value.option.return_value.load = load
    errors: list[object] = []
    before, threading.excepthook = threading.excepthook, errors.append
    try:
        prepare(spark, parse(SMALL, file="p.toml"), {"servers": "nats://127.0.0.1:1"})
        assert called.wait(30)
        for thread in threading.enumerate():
            if thread.name.startswith("Thread-") and "_prepare" in thread.name:
                thread.join(30)
    finally:
        threading.excepthook = before
    assert not errors
