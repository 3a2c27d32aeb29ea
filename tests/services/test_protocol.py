"""Names, versions, subjects and headers of the services protocol."""

from __future__ import annotations

import pytest

from slipstream.errors import UsageError
from slipstream.services.protocol import (
    EndpointConfig,
    Scope,
    ServiceConfig,
    Verb,
    control_subject,
    error_headers,
    service_config,
)
from slipstream.wire import Headers
from slipstream.wire.service_errors import error_of


def config(name: str = "calc", version: str = "1.0.0") -> ServiceConfig:
    return service_config(name, version, description="", metadata=None, queue_group=None, prefix="$SRV")


@pytest.mark.parametrize("name", ["a", "A-b_9", "0"])
def test_names_of_letters_digits_dash_and_underscore_are_accepted(name: str) -> None:
    assert config(name).name == name


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a>", "*", "é", "a\n", "٣"])
def test_other_names_are_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="name of a service must be letters, digits, '-' and '_', got"):
        config(name)


@pytest.mark.parametrize(
    "version", ["0.0.4", "1.2.3", "1.0.0-alpha.1", "1.0.0-0A.is.legal", "1.0.0--", "1.0.0+build.01", "1.0.0-rc.1+7"]
)
def test_semantic_versions_are_accepted(version: str) -> None:
    assert config(version=version).version == version


@pytest.mark.parametrize(
    "version", ["", "1", "1.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0+", "1.0.0 ", "v1.0.0", "1.0.0.0", "1.0.0-a..b"]
)
def test_other_versions_are_rejected(version: str) -> None:
    with pytest.raises(UsageError, match="version of service 'calc' must be a semantic version"):
        config(version=version)


def test_control_subjects_name_all_services_those_of_a_name_and_one_instance() -> None:
    assert control_subject(Verb.PING) == "$SRV.PING"
    assert control_subject(Verb.INFO, "calc") == "$SRV.INFO.calc"
    assert control_subject(Verb.STATS, "calc", "id", prefix="east.SRV") == "east.SRV.STATS.calc.id"
    with pytest.raises(UsageError, match="name of the service must be set for instance 'id'"):
        control_subject(Verb.PING, "", "id")


def endpoint(scope: Scope, queue_group: str | None = None) -> EndpointConfig:
    return scope.endpoint("add", subject="", queue_group=queue_group, metadata=None)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        pytest.param(("q", None, None, None), "q", id="default"),
        pytest.param(("q", "g", None, None), "g", id="group"),
        pytest.param(("q", "g", None, "e"), "e", id="endpoint"),
        pytest.param(("q", "", None, None), "", id="off for a group"),
        pytest.param(("q", "", "g", None), "g", id="on again below"),
        pytest.param(("", None, None, None), "", id="off for the service"),
        pytest.param(("", None, None, "e"), "e", id="on for an endpoint"),
    ],
)
def test_the_nearest_queue_group_applies(levels: tuple[str, str | None, str | None, str | None], expected: str) -> None:
    service, outer, inner, own = levels
    scope = Scope("", service).group("a", outer).group("b", inner)
    assert endpoint(scope, own) == EndpointConfig("add", "a.b.add", expected, {})


def test_metadata_is_a_copy() -> None:
    metadata = {"a": "b"}
    made = service_config("calc", "1.0.0", description="", metadata=metadata, queue_group=None, prefix="$SRV")
    metadata["a"] = "c"
    assert made.metadata == {"a": "b"}


def test_an_error_is_one_line_in_the_headers_and_is_read_back() -> None:
    headers = error_headers(404, "no\r\n such \0order", {"A": ["1", "2"], "Nats-Service-Error": "old"})
    assert headers.items() == [
        ("A", "1"),
        ("A", "2"),
        ("Nats-Service-Error", "no such order"),
        ("Nats-Service-Error-Code", "404"),
    ]
    error = error_of("orders.get", headers, b"data")
    assert error is not None
    assert (error.code, error.description, error.data, error.subject) == (404, "no such order", b"data", "orders.get")
    assert len(error_headers(1, "x" * 5000)["Nats-Service-Error"]) == 1024
    assert error_headers(1, "\ud800")["Nats-Service-Error"] == "?"
    for code in (-1, "404", True, 4.0):
        with pytest.raises(UsageError, match="code of a service error must be a number of at least 0"):
            error_headers(code, "text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"Nats-Service-Error": "text"}, (0, "text"), id="no code"),
        pytest.param({"Nats-Service-Error-Code": "7"}, (7, ""), id="no description"),
        pytest.param(
            {"Nats-Service-Error": "text", "Nats-Service-Error-Code": "BAD"}, (0, "text (code 'BAD')"), id="a word"
        ),
        pytest.param({"Nats-Service-Error-Code": "9" * 40}, (0, f"(code '{'9' * 40}')"), id="a number of many digits"),
        pytest.param({"nats-service-error": "text"}, None, id="another case"),
    ],
)
def test_errors_of_other_implementations_are_read(headers: dict[str, str], expected: tuple[int, str] | None) -> None:
    error = error_of("s", Headers(headers), b"")
    assert (None if error is None else (error.code, error.description)) == expected
