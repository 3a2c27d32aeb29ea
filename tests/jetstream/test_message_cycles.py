"""A message refers to its client, the client to the user's callbacks: what these keep is collected with them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from slipstream.client._async import subscription as aio
from slipstream.client._sync import subscription as blocking
from slipstream.jetstream._async import message as aio_js
from slipstream.jetstream._sync import message as blocking_js
from slipstream.wire import Msg


class Program:
    """A user's object: it keeps the last message, and the client calls one of its methods."""

    last: Any = None

    def on_event(self, event: object) -> None: ...


class ClientOf:
    """What matters of a client: it refers to a callback."""

    def __init__(self, program: Program) -> None:
        self.on_event = program.on_event


@pytest.mark.parametrize("kind", [aio.Message, blocking.Message, aio_js.JsMessage, blocking_js.JsMessage])
def test_a_program_that_keeps_a_message_and_is_called_back_is_collected(kind: Any) -> None:
    program = Program()
    program.last = kind(Msg("a", b"2", "", b"", b""), ClientOf(program))
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None
