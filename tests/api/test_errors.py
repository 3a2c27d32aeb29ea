"""Errors: one family, constructed by code, with every field, across processes."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from slipstream import errors
from slipstream.errors import ApiError, Error, ErrorCode

EVERY_CODE = sorted(ApiError._by_err_code)
EXAMPLES: list[Error] = [
    errors.UsageError("u"),
    errors.RemoteProtocolError("r"),
    errors.ConnectionLostError("l"),
    errors.ConnectionClosedError("c"),
    errors.ServerError("Stale Connection"),
    errors.AuthorizationError("Authorization Violation"),
    errors.SlowConsumerError("s"),
    errors.RequestTimeoutError("t"),
    errors.NoRespondersError("a.b", "hint"),
    errors.DirectGetNotAllowedError("a.b"),
    errors.NoStreamError("a.b", "no stream"),
    errors.MessageNotFoundError("m"),
    errors.StaleReadError("s", stream="S", min_last_seq=5),
    errors.BadRequestError("b"),
    errors.KeyNotFoundError("bucket", "key", "deleted"),
    errors.KeyExistsError("bucket", "key", 7),
    errors.BucketNotFoundError("b"),
    errors.CorruptRecordError("c"),
    errors.ApiError("plain", code=599, err_code=1),
    errors.StreamNotFoundError(),
    errors.MinLastSequenceError(),
    errors.MessageNotFoundApiError("no message found"),
    errors.WrongLastSequenceError("wrong last sequence: 5"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_an_error_survives_the_way_between_processes(error: Error, again: Any) -> None:
    other = again(error)
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert other.args == error.args
    assert vars(other) == vars(error)


@pytest.mark.parametrize("err_code", EVERY_CODE)
def test_every_code_gives_its_class(err_code: int) -> None:
    error = ApiError.of(499, err_code, "the text")
    assert type(error) is ApiError._by_err_code[err_code]
    assert (error.code, error.err_code, error.description) == (499, err_code, "the text")
    assert str(error) == f"the text (code 499, err_code {err_code})"
    assert isinstance(error, Error)
    default = type(error)()
    assert default.err_code == err_code
    assert default.code in (400, 404, 412, 500, 503)
    assert default.description
    assert str(default).startswith(default.description)


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_every_code_makes_its_error_with_the_text_of_the_table(code: ErrorCode) -> None:
    fields: dict[str, Any] = dict.fromkeys(re.findall(r"\{(\w+)\}", code.description), "it")
    error = code.error(**fields)
    assert type(error) is ApiError._by_err_code.get(code, ApiError)
    assert (error.code, error.err_code) == (code.status, code.value)
    assert error.description == re.sub(r"\{\w+\}", "it", code.description)
    assert type(error.err_code) is int  # the wire, logs and pickles see a plain number


def test_an_error_may_replace_the_text_and_the_status_of_the_table() -> None:
    error = ErrorCode.STREAM_NOT_FOUND.error("gone", status=410)
    assert isinstance(error, errors.StreamNotFoundError)
    assert (error.code, error.err_code, error.description) == (410, 10059, "gone")


def test_error_codes_are_declared_in_the_table_only() -> None:
    assert len({code.value for code in ErrorCode}) == len(ErrorCode.__members__)  # no alias: a code occurs once
    source = Path(errors.__file__).parent
    numbers = "|".join(str(code.value) for code in ErrorCode)
    for path in source.rglob("*.py"):
        if path != Path(errors.__file__):
            text = path.read_text()
            assert "err_code=" not in text, path
            assert not re.search(rf"\b({numbers})\b", text), path


def test_an_unknown_code_is_a_plain_api_error() -> None:
    error = ApiError.of(418, 77777, "teapot")
    assert type(error) is ApiError
    assert (error.code, error.err_code, str(error)) == (418, 77777, "teapot (code 418, err_code 77777)")
    assert str(ApiError()) == "JetStream API error (code 500, err_code 0)"
    assert ApiError.code == 500  # the class is not touched


def test_errors_of_two_families_are_caught_by_both() -> None:
    stale = ApiError.of(412, 10180, "min last sequence")
    assert isinstance(stale, errors.MinLastSequenceError)
    assert isinstance(stale, errors.StaleReadError)
    assert (stale.stream, stale.min_last_seq, stale.code) == ("", 0, 412)
    missing = ApiError.of(404, 10037, "no message found")
    assert isinstance(missing, errors.MessageNotFoundError)
    assert isinstance(ApiError.of(400, 10164, "wrong last sequence"), errors.WrongLastSequenceError)


def test_a_subclass_of_a_users_own_keeps_the_code() -> None:
    class Mine(errors.StreamNotFoundError):
        pass

    assert (Mine.code, Mine.err_code, Mine().description) == (404, 10059, "stream not found")
    assert ApiError._by_err_code[10059] is errors.StreamNotFoundError


def test_errors_are_built_in_ones_as_well() -> None:
    for error, builtin in (
        (errors.UsageError("x"), ValueError),
        (errors.ConnectionClosedError("x"), ConnectionError),
        (errors.RequestTimeoutError("x"), TimeoutError),
        (errors.KeyNotFoundError("b", "k"), KeyError),
    ):
        assert isinstance(error, builtin)


def test_messages_say_what_was_seen() -> None:
    missing = errors.KeyNotFoundError("b", "k")
    assert str(missing) == "no value for key 'k' in bucket 'b'"
    assert (missing.bucket, missing.key) == ("b", "k")
    assert str(errors.KeyNotFoundError("b", "k", "purged")).endswith("'b': purged")
    exists = errors.KeyExistsError("b", "k", 7)
    assert str(exists) == "key 'k' in bucket 'b' already has a value (revision 7)"
    assert exists.revision == 7
    no_responders = errors.NoRespondersError("a.b")
    assert (str(no_responders), no_responders.subject) == ("no responders on subject 'a.b'", "a.b")
    assert str(errors.NoRespondersError("a.b", "why")) == "no responders on subject 'a.b': why"
    said = errors.ServerError("Stale Connection")
    assert (str(said), said.text) == ("the server said: Stale Connection", "Stale Connection")
