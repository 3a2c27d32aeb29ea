"""Server options are declared once: constructor, configuration file, flags, help and reference follow."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import fields

import pytest

from slipstream.errors import UsageError
from slipstream.server import AccountLimits, Server, ServerOptions, User, WebSocketOptions
from slipstream.server.engine.settings import Settings
from slipstream.server.options import COMMAND_DEFAULTS, Option, options_of
from slipstream.server.process import flags
from slipstream.server.process.conf import load
from slipstream.server.process.conf.tree import parse
from slipstream.server.process.options import ProcessOptions
from tools import server_options

SERVER, PROCESS = options_of(ServerOptions), options_of(ProcessOptions)
SAMPLES: dict[type, tuple[str, object]] = {
    bool: ("true", True), int: ("7000000", 7_000_000), float: ("'1m'", 60.0), str: ("word", "word")
}  # fmt: skip


def test_the_constructor_takes_exactly_the_declared_options() -> None:
    signature = inspect.signature(Server)
    assert list(signature.parameters) == [field.name for field in fields(ServerOptions) if field.init]
    assert [field.name for field in fields(ServerOptions)] == [option.name for option in SERVER]
    server = Server("::1", 4333, name="s1", max_pings_out=5)
    assert server.options == ServerOptions("::1", 4333, name="s1", max_pings_out=5)
    with pytest.raises(TypeError, match="nope"):
        Server(nope=1)  # type: ignore[call-arg]


def test_only_port_and_jetstream_have_other_defaults_for_the_command() -> None:
    embedded = ServerOptions()
    differing = {o.name for o in SERVER if getattr(embedded, o.name) != getattr(COMMAND_DEFAULTS, o.name)}
    assert differing == {"port", "jetstream"}
    assert (embedded.port, embedded.jetstream) == (0, True)
    assert (COMMAND_DEFAULTS.port, COMMAND_DEFAULTS.jetstream) == (4222, False)


def test_every_key_is_read_by_its_declaration_or_by_hand() -> None:
    readers = {*load.SERVER, *load.PROCESS, *load.TLS, *load.JETSTREAM}
    by_declaration = {option.name for option in readers}
    with_keys = {option.name for option in (*SERVER, *PROCESS) if option.keys}
    assert with_keys == by_declaration | (load.BY_HAND - {"headers"})
    assert {option.name for option in load.WEBSOCKET} == {"same_origin", "allowed_origins", "handshake_timeout"}


@pytest.mark.parametrize("option", [o for o in (*SERVER, *PROCESS) if o.name not in load.BY_HAND and o.keys],
                         ids=lambda option: option.name)  # fmt: skip
def test_every_spelling_of_a_key_sets_its_option(option: Option) -> None:
    text, value = (f"'{option.choices[-1]}'", option.choices[-1]) if option.choices else SAMPLES[option.kind]
    for key in option.keys:
        line = f"{key}: {text}"
        if option.block == "tls":
            line = f"tls {{cert_file: c, key_file: k, ca_file: a, {line}}}"
        elif option.block:
            line = f"{option.block} {{{line}}}"
        found = load.load(parse(line, "f", read=str, environment=lambda _: None), str)
        assert getattr(found if option in PROCESS else found.server, option.name) == value, line


def test_every_flag_has_one_meaning() -> None:
    spellings = Counter(spelling for flag in flags.FLAGS for spelling in flag.spellings)
    assert [spelling for spelling, count in spellings.items() if count > 1] == []


def test_the_help_names_every_flag_in_80_columns() -> None:
    text = flags.help_text()
    assert max(map(len, text.splitlines())) <= 80
    words = set(text.replace(",", " ").split())
    for flag in flags.FLAGS:
        assert all(f"-{s}" in words or f"--{s}" in words for s in flag.spellings), flag


def test_the_reference_table_is_up_to_date() -> None:
    page = server_options.PAGE.read_text("utf-8")
    assert server_options.page(page) == page, "run tools/server_options.py"


def test_the_engine_uses_the_names_of_the_options() -> None:
    about_itself = {"server_id", "server_name", "slipstream", "version", "tls_required"}
    assert {field.name for field in fields(Settings)} - {option.name for option in SERVER} == about_itself


def test_limits_of_one_kind_hold_for_every_account() -> None:
    limits = AccountLimits(max_streams=1)
    user = User(name="a", password="b", account="A")
    assert ServerOptions(limits=limits, users=[user]).account_limits() == {"$G": limits, "A": limits}
    assert ServerOptions(limits={"A": limits}, users=[user]).account_limits() == {"A": limits}


def test_secrets_are_left_out_of_the_repr() -> None:
    options = ServerOptions(user="joe", password="s3cret", users=[User(token="t0ken")])
    assert "s3cret" not in repr(options)
    assert "t0ken" not in repr(options)


def test_a_websocket_listener_has_tls_options_of_its_own() -> None:
    assert not WebSocketOptions().has_tls
    assert WebSocketOptions(tls_cert="c", tls_key="k").has_tls


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_payload", 0, "max_payload must be at least 1, got 0"),
        ("ping_interval", 0, "ping_interval must be more than 0 s, got 0 s"),
        ("domain", "a.b", "domain must be one subject token other than 'API', got 'a.b'"),
        ("domain", "API", "domain must be one subject token other than 'API', got 'API'"),
        ("lame_duck_grace", 200, r"lame_duck_grace must be between 0 and lame_duck_duration \(120 s\), got 200 s"),
    ],
)
def test_a_value_out_of_range_is_rejected(name: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        ServerOptions(**{name: value})  # type: ignore[arg-type]
