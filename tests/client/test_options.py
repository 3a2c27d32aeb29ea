"""The options of a client: one declaration for `connect`, contexts and the command line."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from slipstream import Context, connect, connect_blocking
from slipstream.cli.common import shared_options
from slipstream.client.options import ClientOptions
from slipstream.errors import UsageError


@pytest.mark.parametrize("function", [connect, connect_blocking])
def test_connect_takes_the_parameters_of_the_options(function: Any) -> None:
    declared = inspect.signature(ClientOptions).parameters
    assert dict(inspect.signature(function).parameters) == dict(declared)
    assert "`max_pings_out`" in inspect.getdoc(function)  # type: ignore[operator]


def test_fields_of_contexts_and_flags_are_those_of_the_settings() -> None:
    known = {each.name for each in fields(Context)}
    flags = shared_options(is_root=True).format_help()
    for setting in ClientOptions.settings().values():
        assert not setting.context or setting.context in known
        assert setting.flag in flags
        assert setting.variable in flags


def test_a_stronger_login_replaces_the_other() -> None:
    merged = ClientOptions.merge({"user": "u", "password": "p", "timeout": 1}, {"token": "t"})
    assert merged == {"timeout": 1, "token": "t"}
    assert ClientOptions.merge({"user": "u", "password": "p"}, {"timeout": 1}).keys() == {"user", "password", "timeout"}


@pytest.mark.parametrize(
    ("arguments", "login"),
    [
        ({"credentials": "c", "nkey": "n", "token": "t", "user": "u", "password": "p"}, {"credentials": "c"}),
        ({"nkey": "n", "token": "t", "user": "u"}, {"nkey": "n"}),
        ({"token": "t", "user": "u", "password": "p"}, {"token": "t"}),
        ({"user": "u", "password": "p"}, {"user": "u", "password": "p"}),
        ({"user": "u"}, {"token": "u"}),
        ({"password": "p"}, {}),
    ],
)
def test_one_way_to_log_in_is_left_as_the_nats_tool_does(arguments: dict[str, str], login: dict[str, str]) -> None:
    assert ClientOptions.with_one_login({**arguments, "name": "n"}) == {**login, "name": "n"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"servers": []}, "servers must have at least one address"),
        ({"timeout": 0}, "timeout must be a timedelta or a number of seconds, more than 0, got 0"),
        (
            {"wait_for_server": 0},
            "wait_for_server must be a bool, or a timedelta or a number of seconds of",
        ),
        ({"wait_for_server": "30"}, "of seconds of more than 0, got '30'"),
        ({"wait_for_server": math.nan}, "of seconds of more than 0, got nan"),
        ({"max_reconnects": -1}, "max_reconnects must be 0 or more, or None for no limit, got -1"),
        ({"token": "t", "nkey": "n"}, "expected one way to log in, got token, nkey"),
    ],
)
def test_options_are_checked(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ClientOptions(**arguments)


@pytest.mark.parametrize(
    ("wait", "seconds"), [(False, 0.0), (True, math.inf), (2, 2.0), (timedelta(minutes=1), 60.0)], ids=str
)
def test_the_wait_for_a_server_is_a_bool_or_a_duration(wait: bool | float | timedelta, seconds: float) -> None:
    assert ClientOptions(wait_for_server=wait).first_wait == seconds


def test_repr_shows_addresses_and_no_secret() -> None:
    shown = repr(ClientOptions("nats://me:hunter2@one", name="n"))
    assert "host='one'" in shown
    assert "hunter2" not in shown
