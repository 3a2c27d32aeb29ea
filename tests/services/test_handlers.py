"""What a handler takes and returns, as its annotations say."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from slipstream import BlockingServiceRequest, ServiceRequest
from slipstream.errors import UsageError
from slipstream.services.handlers import read_handler

if TYPE_CHECKING:
    from decimal import Decimal as Unknown

    from slipstream import ServiceRequest as Hidden


class Order:
    """A type of a body."""


class Shop:
    def sell(self, order: Order) -> None: ...

    def __call__(self, request: ServiceRequest) -> None: ...


def plain(request): ...  # type: ignore[no-untyped-def]


async def typed(request: BlockingServiceRequest) -> None: ...


def body(order: Order) -> None: ...


def body_first(order: Order, request: ServiceRequest) -> Order: ...  # type: ignore[empty-body]


def request_first(request: ServiceRequest, order: Order, *, more: int = 1) -> Order | None: ...


def nothing() -> dict[str, int]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("handler", "arguments", "takes_request", "is_empty"),
    [
        pytest.param(plain, ("request",), True, True, id="no annotation"),
        pytest.param(typed, ("request",), True, True, id="request"),
        pytest.param(lambda request: print(request), ("request",), True, True, id="lambda"),
        pytest.param([].append, ("request",), True, True, id="built in"),
        pytest.param(body, ("body",), False, True, id="body"),
        pytest.param(body_first, ("body", "request"), False, False, id="body and request"),
        pytest.param(request_first, ("request", "body"), False, False, id="request and body"),
        pytest.param(nothing, (), False, False, id="nothing"),
        pytest.param(Shop().sell, ("body",), False, True, id="method"),
        pytest.param(Shop(), ("request",), True, True, id="object"),
        pytest.param(partial(body_first, Order()), ("request",), True, False, id="partial"),
    ],
)
def test_parameters_are_read_from_annotations(
    handler: Any, arguments: tuple[str, ...], takes_request: bool, is_empty: bool
) -> None:
    read = read_handler(handler, may_be_async=True)
    places = {read.request_at: "request", read.body_at: "body"}
    assert tuple(places[at] for at in sorted(places) if at >= 0) == arguments
    assert (read.takes_request, read.is_empty) == (takes_request, is_empty)
    if "body" in arguments:
        assert read.body_type is Order


def test_a_type_of_an_enclosing_function_is_found() -> None:
    class Local:
        """A type of a body."""

    def handler(local: Local) -> Local:
        assert isinstance(local, Local)  # only names that the function uses are in its closure
        return local

    assert read_handler(handler, may_be_async=True).body_type is Local


def test_a_request_type_that_only_type_checkers_import_is_known_by_its_name() -> None:
    def handler(request: ServiceRequest, more: Hidden) -> None: ...

    def alone(request: "slipstream.ServiceRequest") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    assert read_handler(alone, may_be_async=True).takes_request
    with pytest.raises(UsageError, match=r"annotations of handler .*handler must name types"):
        read_handler(handler, may_be_async=True)


def unknown(number: Unknown) -> None: ...


def too_many(order: Order, other: Order) -> None: ...


def two_requests(one: ServiceRequest, two: ServiceRequest) -> None: ...


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        pytest.param(unknown, "annotations of handler unknown must name types .* 'Unknown'", id="unknown type"),
        pytest.param(too_many, r"handler too_many must take a request, .* got \(order, other\)", id="two bodies"),
        pytest.param(two_requests, "handler two_requests must take a request", id="two requests"),
        pytest.param(b"body", "handler must be callable, got b'body'", id="not callable"),
    ],
)
def test_a_handler_that_cannot_be_called_is_rejected(handler: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read_handler(handler, may_be_async=True)


def test_a_coroutine_function_is_rejected_by_the_blocking_client() -> None:
    with pytest.raises(UsageError, match="handler typed must be a plain function with the blocking client"):
        read_handler(typed, may_be_async=False)
