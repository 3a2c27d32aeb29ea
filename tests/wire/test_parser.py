"""The parser: total, bounded, linear, and blind to how the bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.wire import (
    Connect,
    ConnectOptions,
    Err,
    Event,
    Headers,
    Info,
    Msg,
    Ok,
    Parser,
    Ping,
    Pong,
    Pub,
    ServerInfo,
    Side,
    Sub,
    Unsub,
    Violation,
    encode,
)
from slipstream.wire.parser import MAX_CONTROL_LINE, MAX_SERVER_LINE, SERVER_HEADROOM
from tests.wire import strategies as my

MIB = 1024 * 1024


def from_server(data: bytes) -> list[Event]:
    return Parser(Side.SERVER).feed(data)


def from_client(data: bytes) -> list[Event]:
    return Parser(Side.CLIENT).feed(data)


def refused(events: list[Event]) -> Violation:
    """The violation, which must be the only event."""
    assert len(events) == 1
    assert isinstance(events[0], Violation)
    return events[0]


# --- every operation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (b"MSG foo 7 2\r\nhi\r\n", Msg("foo", b"7", "", b"", b"hi")),
        (b"MSG foo 7 _R_.1 2\r\nhi\r\n", Msg("foo", b"7", "_R_.1", b"", b"hi")),
        (b"MSG foo 7 0\r\n\r\n", Msg("foo", b"7", "", b"", b"")),
        (b"HMSG foo 7 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", Msg("foo", b"7", "", b"NATS/1.0\r\n\r\n", b"hi")),
        (b"HMSG foo 7 re 12 12\r\nNATS/1.0\r\n\r\n\r\n", Msg("foo", b"7", "re", b"NATS/1.0\r\n\r\n", b"")),
        (b"HMSG foo 7 0 2\r\nhi\r\n", Msg("foo", b"7", "", b"", b"hi")),
        (b"PING\r\n", Ping()),
        (b"PONG\r\n", Pong()),
        (b"+OK\r\n", Ok()),
        (b"-ERR 'Authorization Violation'\r\n", Err("Authorization Violation")),
        (b"-ERR Slow\r\n", Err("Slow")),
        (b"-ERR '\r\n", Err("'")),
        (b"-ERR\r\n", Err("")),
        (b"-ERR\t 'it''s' \r\n", Err("it''s")),
        (b"-ERR '\xff'\r\n", Err("�")),
        (b'INFO {"server_id":"A","future":[1]} \r\n', Info(ServerInfo(server_id="A"))),
        (b'info\t{"headers":true}\r\n', Info(ServerInfo(headers=True))),
    ],
)
def test_what_a_server_says(data: bytes, event: Event) -> None:
    assert from_server(data) == [event]


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (b"PUB foo 2\r\nhi\r\n", Pub("foo", "", b"", b"hi")),
        (b"PUB foo re 2\r\nhi\r\n", Pub("foo", "re", b"", b"hi")),
        (b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", Pub("foo", "", b"NATS/1.0\r\n\r\n", b"hi")),
        (b"HPUB foo re 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", Pub("foo", "re", b"NATS/1.0\r\n\r\n", b"hi")),
        (b"SUB foo 1\r\n", Sub("foo", "", b"1")),
        (b"SUB foo q 1\r\n", Sub("foo", "q", b"1")),
        (b"UNSUB 1\r\n", Unsub(b"1", 0)),
        (b"UNSUB 1 5\r\n", Unsub(b"1", 5)),
        (b'CONNECT {"verbose":false,"name":"x","pass":"p"}\r\n',
         Connect(ConnectOptions(verbose=False, name="x", password="p"))),
        (b"PING\r\n", Ping()),
        (b"PONG\r\n", Pong()),
    ],
)  # fmt: skip
def test_what_a_client_says(data: bytes, event: Event) -> None:
    assert from_client(data) == [event]


@pytest.mark.parametrize("line", [b"PUB a 0", b"HPUB a 0 0", b"SUB a 1", b"UNSUB 1", b"CONNECT {}", b"XYZ", b""])
def test_a_server_must_not_use_a_clients_operations(line: bytes) -> None:
    assert refused(from_server(line + b"\r\n\r\n")).err == "Unknown Protocol Operation"


@pytest.mark.parametrize("line", [b"MSG a 1 0", b"HMSG a 1 0 0", b"INFO {}", b"+OK", b"-ERR 'x'", b"XYZ", b""])
def test_a_client_must_not_use_a_servers_operations(line: bytes) -> None:
    assert refused(from_client(line + b"\r\n\r\n")).err == "Unknown Protocol Operation"


@given(st.lists(my.msgs(), max_size=6))
def test_messages_survive_encoding_and_parsing(events: list[Msg]) -> None:
    assert from_server(b"".join(my.encoded(event) for event in events)) == events


@given(st.lists(st.one_of(my.pubs(), my.subs(), my.unsubs()), max_size=6))
def test_a_clients_operations_survive_encoding_and_parsing(events: list[Pub | Sub | Unsub]) -> None:
    assert from_client(b"".join(my.encoded(event) for event in events)) == events


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")))
def test_an_error_text_survives(text: str) -> None:
    assert from_server(encode.err(text)) == [Err(text)]


def test_an_error_text_stays_on_its_line() -> None:
    assert from_server(encode.err("bad\r\nPING\r\n\ud800")) == [Err("bad PING ?")]


def test_the_handshake_survives_encoding_and_parsing() -> None:
    server = ServerInfo(server_id="A", proto=1, headers=True, max_payload=5, connect_urls=("a:1", "b:2"), nonce="n\r\n")
    assert from_server(encode.info(server)) == [Info(server)]
    options = ConnectOptions(verbose=False, user="u\r\nPING", password="p", echo=False, headers=True)
    assert from_client(encode.connect(options)) == [Connect(options)]
    assert from_server(encode.ping() + encode.pong() + encode.OK) == [Ping(), Pong(), Ok()]


def test_info_names_what_other_clients_do_not_assume() -> None:
    # A Go client takes an absent max_payload for 0 and refuses to publish anything.
    body = encode.info(ServerInfo())
    for name in (b"server_id", b"version", b"go", b"host", b"port", b"headers", b"proto", b'max_payload":1048576'):
        assert b'"' + name in body


def test_secrets_of_connect_are_not_shown() -> None:
    shown = repr(Connect(ConnectOptions(user="me", password="hunter2", auth_token="t0ken", jwt="eyJ", sig="s1g")))
    assert "me" in shown
    assert "password=***" in shown
    assert "nkey=None" in shown
    assert not any(secret in shown for secret in ("hunter2", "t0ken", "eyJ", "s1g"))


# --- spelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"pub foo re 2\r\nhi\r\n",
        b"PuB foo re 2\r\nhi\r\n",
        b"PUB  foo re 2\r\nhi\r\n",
        b"PUB foo  re  2\r\nhi\r\n",
        b"PUB\tfoo\tre\t2\r\nhi\r\n",
        b"PUB foo\tre 2\r\nhi\r\n",
        b"PUB \t foo re 2 \t\r\nhi\r\n",
        b"PUB foo re 2\nhi\r\n",
        b"PUB foo re 0002\r\nhi\r\n",
    ],
)
def test_spelling_that_nats_server_takes_as_well(data: bytes) -> None:
    assert from_client(data) == [Pub("foo", "re", b"", b"hi")]


def test_an_empty_reply_between_spaces_is_no_reply() -> None:
    assert from_client(b"PUB foo  2\r\nhi\r\nHPUB foo  0 2\r\nhi\r\n") == [Pub("foo", "", b"", b"hi")] * 2
    assert from_server(b"MSG foo  7 2\r\nhi\r\nMSG foo 7  2\r\nhi\r\n") == [Msg("foo", b"7", "", b"", b"hi")] * 2
    assert from_server(b"HMSG  foo 7 0 2\r\nhi\r\nHMSG foo 7  0 2\r\nhi\r\n") == [Msg("foo", b"7", "", b"", b"hi")] * 2


def test_words_after_ping_are_ignored() -> None:
    assert from_client(b"PING foo\r\nping\nPONG\n") == [Ping(), Ping(), Pong()]


@pytest.mark.parametrize("data", [b"\r\n", b"\n", b" PING\r\n", b"\tPING\r\n", b"\x00PING\r\n", b"\n\r"])
def test_a_line_begins_with_its_operation(data: bytes) -> None:
    assert refused(from_client(data)).err == "Unknown Protocol Operation"


@pytest.mark.parametrize(
    "line",
    [
        b"PUB", b"PUB a", b"PUB a b c 0", b"HPUB", b"HPUB a", b"HPUB 0 0", b"HPUB a 0", b"HPUB a b c 0 0",
        b"SUB", b"SUB a", b"SUB a b 1 2", b"UNSUB", b"UNSUB 1 2 3", b"PUB 0",
    ],
)  # fmt: skip
def test_a_clients_argument_count_is_checked(line: bytes) -> None:
    for end in (b"\r\n", b"\n", b" \r\n"):
        violation = refused(from_client(line + end + b"\r\n"))
        assert violation.err == "Parser Error"
        assert "arguments in" in violation.reason


@pytest.mark.parametrize(
    "line", [b"MSG", b"MSG a", b"MSG a 0", b"MSG a 1 b c 0", b"HMSG", b"HMSG a", b"HMSG a 1 0", b"HMSG a 1 b c 0 0"]
)
def test_a_servers_argument_count_is_checked(line: bytes) -> None:
    for end in (b"\r\n", b"\n", b" \r\n"):
        assert "arguments in" in refused(from_server(line + end + b"\r\n")).reason


@pytest.mark.parametrize("space", [b"\r", b"\x0b", b"\x0c", b"\x85", b"\xc2\xa0", b"\x1f", b"\x00"])
def test_a_publisher_cannot_choose_the_sid_by_odd_white_space(space: bytes) -> None:
    # nats-server delivers such a subject as it is.
    subject = b"foo" + space + b"9"
    (event,) = from_server(b"MSG %b 7 2\r\nhi\r\n" % subject)
    assert event == Msg(subject.decode(errors="replace"), b"7", "", b"", b"hi")


def test_a_publisher_cannot_cut_readers_off_by_a_subject_that_is_no_utf8() -> None:
    data = b"MSG a\xff 7 2\r\nhi\r\nMSG a 7 r\xff 2\r\nhi\r\nPING\r\n"
    assert from_server(data) == [Msg("a�", b"7", "", b"", b"hi"), Msg("a", b"7", "r�", b"", b"hi"), Ping()]


@pytest.mark.parametrize("line", [b"PUB a\xff 0", b"PUB a r\xff 0", b"SUB \xff 1", b"SUB a \xff 1"])
def test_a_client_must_send_utf8(line: bytes) -> None:
    assert "utf-8" in refused(from_client(line + b"\r\n\r\n")).reason


# --- numbers and sizes -----------------------------------------------------------------------------------------------

BAD_NUMBERS = [
    b"-1", b"-0", b"+5", b"1_0", b"5.0", b"1e2", b"0x5", b"abc", "\u0665".encode(), "\uff15".encode(), b"\xb2",
    b"5\x00", b"5\r", b"9" * 20, b"9" * 5000, b"9223372036854775808",
]  # fmt: skip


@pytest.mark.parametrize("number", BAD_NUMBERS)
def test_a_bad_number_is_refused_wherever_it_stands(number: bytes) -> None:
    def check(side: Side, line: bytes) -> None:
        parser = Parser(side, max_control_line=20_000)
        assert "bad number" in refused(parser.feed(line % number + b" \r\nhello\r\n")).reason

    for line in (b"PUB a %b", b"HPUB a 0 %b", b"HPUB a %b 5", b"UNSUB 1 %b"):
        check(Side.CLIENT, line)
    for line in (b"MSG a 1 %b", b"HMSG a 1 0 %b", b"HMSG a 1 %b 5"):
        check(Side.SERVER, line)


def test_a_size_with_a_stray_cr_is_refused_even_when_its_digits_are_known() -> None:
    assert len(from_client(b"HPUB a 3 5\r\nhello\r\n" * 2)) == 2
    assert "bad number" in refused(from_client(b"HPUB a 3\r 5\r\nhello\r\n")).reason
    assert "bad number" in refused(from_client(b"PUB a 5\r\r\nhello\r\n")).reason
    assert from_client(b"PUB a 3\nabc\r\n") == [Pub("a", "", b"", b"abc")]  # 3 is known as a header size


def test_sizes_that_are_learnt_change_nothing() -> None:
    for size in (0, 1, 77, 4094, 4095, 4096, 4097):
        frame = encode.pub("a", b"x" * size, header=b"y" * size)
        assert from_client(frame * 3) == [Pub("a", "", b"y" * size, b"x" * size)] * 3


@pytest.mark.parametrize("size", [MIB + 1, 99_999_999, 9_999_999_999, 2**63 - 1])
def test_a_payload_that_is_too_large_is_refused_at_its_line(size: int) -> None:
    for line in (b"PUB a %d\r\n" % size, b"HPUB a 5 %d\r\n" % size, b"HPUB a %d %d\r\n" % (size, size)):
        assert refused(from_client(line)).err == "Maximum Payload Violation"


def test_the_largest_payload_is_taken() -> None:
    payload = b"x" * MIB
    assert from_client(encode.pub("a", payload)) == [Pub("a", "", b"", payload)]


def test_a_server_may_add_headers_to_the_largest_payload() -> None:
    # A Direct Get of such a message is larger than max_payload: nats-server 2.15.1 sends it.
    header = Headers({"Nats-Stream": "S", "Nats-Subject": "s" * 4000}).encode()
    frame = encode.hmsg(b"a", b"1", header, b"x" * MIB)
    assert from_server(frame) == [Msg("a", b"1", "", header, b"x" * MIB)]
    line = b"HMSG a 1 10 %d\r\n" % (MIB + SERVER_HEADROOM + 1)
    assert refused(from_server(line)).err == "Maximum Payload Violation"


def test_max_payload_can_be_changed_between_messages() -> None:
    parser = Parser(Side.SERVER, max_payload=10)
    parser.max_payload = 2 * MIB
    assert parser.feed(b"MSG a 1 %d\r\n" % (2 * MIB)) == []


@pytest.mark.parametrize("line", [b"HPUB a 6 5", b"HPUB a 999999 5", b"HPUB a r 1 0", b"hpub a 6 5"])
def test_a_header_larger_than_the_whole_is_refused_at_its_line(line: bytes) -> None:
    assert "exceeds the total size" in refused(from_client(line + b"\r\n")).reason


@pytest.mark.parametrize("end", [b"XX", b"\rX", b"X\n", b"\n\n", b"\n\r"])
def test_a_payload_must_end_with_cr_lf(end: bytes) -> None:
    assert "does not end with CR LF" in refused(from_client(b"PUB foo 5\r\nhello" + end + b"PING\r\n")).reason


def test_a_control_line_is_bounded_with_and_without_its_end() -> None:
    longest = b"PUB %b 0\r\n\r\n" % (b"a" * (MAX_CONTROL_LINE - 2))  # arguments of 4096 bytes, as nats-server has it
    assert len(from_client(longest)) == 1
    for data in (b"a" * (MAX_CONTROL_LINE + 16), b"PUB %b 0\r\n\r\n" % (b"a" * (MAX_CONTROL_LINE + 20))):
        violation = refused(from_client(data))
        assert violation.err == "maximum control line exceeded"
        assert "4096" in violation.reason


def test_a_line_of_messages_is_bounded_too() -> None:
    parser = Parser(Side.CLIENT, max_control_line=40)
    parser.feed(b"PUB a 0\r\n\r\n")
    assert refused(parser.feed(b"PUB %b 0\r\n\r\n" % (b"a" * 80))).err == "maximum control line exceeded"


def test_a_server_may_list_many_addresses() -> None:
    server = ServerInfo(connect_urls=tuple(f"host-{n}:4222" for n in range(20_000)))
    assert from_server(encode.info(server)) == [Info(server)]
    assert refused(from_server(b"INFO " + b" " * (MAX_SERVER_LINE + 16))).err == "maximum control line exceeded"


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"5", b'"x"', b"{", b'{"a":1', b'{"proto":"1"}', b'{"headers":1}', b'{"connect_urls":5}',
        b'{"connect_urls":[5]}', b'{"host":{}}', b'{"host":"\xff"}', b'{"proto":1e400}', b'{"proto":0.5}', b"{} {}",
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[" * 500_000,
    ],
)  # fmt: skip
def test_bad_json_of_info_is_a_violation(body: bytes) -> None:
    parser = Parser(Side.SERVER)
    assert refused(parser.feed(b"INFO " + body + b"\r\nPING\r\n")).err == "Parser Error"
    assert parser.feed(b"PING\r\n") == []


@pytest.mark.parametrize("body", [b"", b"[]", b'{"verbose":1}', b'{"user":5}', b'{"protocol":"1"}', b"{" * 3000])
def test_bad_json_of_connect_is_a_violation(body: bytes) -> None:
    assert refused(from_client(b"CONNECT " + body + b"\r\n")).err == "Parser Error"


def test_a_null_is_an_absent_field_as_in_go() -> None:
    assert from_client(b'CONNECT {"name":null,"user":null,"verbose":null,"lang":"x"}\r\n') == [
        Connect(ConnectOptions(lang="x"))
    ]
    assert from_server(b'INFO {"connect_urls":null,"max_payload":null}\r\n') == [Info(ServerInfo())]


# --- any split, any bytes --------------------------------------------------------------------------------------------


@settings(max_examples=800)
@given(my.sides, my.streams, st.lists(st.integers(0, 400), max_size=12))
def test_any_split_gives_the_same_events(side: Side, data: bytes, at: list[int]) -> None:
    whole = my.parser(side).feed(data)
    assert my.feed_all(my.parser(side), my.cut(data, at)) == whole
    assert my.feed_all(my.parser(side), [bytes((byte,)) for byte in data]) == whole


@settings(max_examples=1200)
@given(my.sides, my.streams)
def test_it_never_raises_and_a_violation_is_the_last_event(side: Side, data: bytes) -> None:
    parser = my.parser(side)
    events = parser.feed(data)
    broken = [i for i, event in enumerate(events) if isinstance(event, Violation)]
    assert broken in ([], [len(events) - 1])
    allowed = (Msg, Info, Ok, Err, Ping, Pong) if side is Side.SERVER else (Pub, Sub, Unsub, Connect, Ping, Pong)
    assert all(isinstance(event, allowed) for event in events if not isinstance(event, Violation))
    if broken:
        assert parser.buffered == 0
        assert parser.feed(b"PING\r\n") == []


@given(my.sides, st.binary(max_size=200))
def test_plain_noise_never_raises(side: Side, data: bytes) -> None:
    my.feed_all(my.parser(side), my.cut(data, [3, 50]))


@settings(max_examples=300)
@given(my.sides, my.streams, st.integers(1, 50))
def test_what_is_held_is_bounded(side: Side, data: bytes, step: int) -> None:
    parser = my.parser(side)
    headroom = SERVER_HEADROOM if side is Side.SERVER else 0
    for piece in my.cut(data, list(range(0, len(data), step))):
        parser.feed(piece)
        assert parser.buffered <= my.MAX_LINE + my.MAX_PAYLOAD + headroom + 32


def test_a_line_without_end_is_not_kept_forever() -> None:
    parser = Parser(Side.CLIENT)
    events: list[Event] = []
    for _ in range(10_000):
        events += parser.feed(b"aaaaaaaa")
        assert parser.buffered <= MAX_CONTROL_LINE + 16
    assert refused(events).err == "maximum control line exceeded"


def test_pieces_of_a_payload_are_kept_as_bytes_only() -> None:
    # A list of two-byte pieces would hold twenty times the payload.
    parser = Parser(Side.CLIENT)
    parser.feed(b"PUB a %d\r\n" % MIB)
    for _ in range(MIB // 2):
        assert parser.feed(b"xy") == []
    assert parser.buffered == MIB + len(b"PUB a 1048576\r\n")
    assert parser._held.__sizeof__() < 1.2 * MIB
    assert parser.feed(b"\r\n") == [Pub("a", "", b"", b"xy" * (MIB // 2))]
    assert parser._held.__sizeof__() < 1000


def counting_parser() -> tuple[Parser, list[int]]:
    """A parser, and how many bytes it looked at each time: what it looks at is offered to its scanner first."""
    parser, looked_at = Parser(Side.SERVER), list[int]()

    def scan(data: bytes) -> int:
        looked_at.append(len(data))
        return 0

    parser.scan = scan
    return parser, looked_at


@pytest.mark.parametrize("step", [1, 64, 4096])
def test_a_frame_in_pieces_is_not_scanned_again_and_again(step: int) -> None:
    size = MIB if step > 1 else MIB // 16
    long_line = encode.info(ServerInfo(connect_urls=tuple(f"host-{n}:4222" for n in range(size // 20))))
    for frame in (encode.msg(b"a", b"1", b"x" * size), long_line):
        parser, looked_at = counting_parser()
        events = my.feed_all(parser, [frame[at : at + step] for at in range(0, len(frame), step)])
        assert events == from_server(frame)
        assert len(frame) <= sum(looked_at) < 2.1 * len(frame)


def test_many_small_frames_in_chunks_are_looked_at_about_once() -> None:
    frames = encode.msg(b"a", b"1", b"x" * 128) * 5000
    parser, looked_at = counting_parser()
    events = my.feed_all(parser, [frames[at : at + 65_536] for at in range(0, len(frames), 65_536)])
    assert events == [Msg("a", b"1", "", b"", b"x" * 128)] * 5000
    assert len(frames) <= sum(looked_at) < 1.01 * len(frames)


def test_nothing_comes_of_nothing() -> None:
    parser = Parser(Side.SERVER)
    assert parser.feed(b"") == []
    assert parser.feed(b"PIN") == []
    assert parser.feed(b"") == []
    assert parser.buffered == 3
    assert parser.feed(b"G\r\nMSG a 1 2\r\nh") == [Ping()]
    assert parser.feed(b"") == []
    assert parser.feed(b"i\r\n") == [Msg("a", b"1", "", b"", b"hi")]
    assert parser.buffered == 0


def test_after_a_violation_in_the_middle_of_a_frame_nothing_is_held_or_said() -> None:
    parser = Parser(Side.CLIENT)
    assert parser.feed(b"PUB a 5\r\nhel") == []
    assert isinstance(parser.feed(b"loXXPING\r\n")[-1], Violation)
    assert parser.buffered == 0
    for data in (b"", b"PING\r\n", b"x" * 10_000):
        assert parser.feed(data) == []
        assert parser.buffered == 0


def test_good_events_before_a_violation_are_kept() -> None:
    events = from_client(b"PING\r\nPUB a 2\r\nhi\r\nNONSENSE\r\nPING\r\n")
    assert events[:2] == [Ping(), Pub("a", "", b"", b"hi")]
    assert isinstance(events[2], Violation)
    assert len(events) == 3


@given(st.lists(st.integers(1, 40), max_size=6))
def test_a_raw_scanner_takes_frames_from_the_front_and_the_parser_goes_on_behind_them(cuts: list[int]) -> None:
    taken: list[bytes] = []

    def scan(data: bytes) -> int:
        pos = 0
        while data.startswith(b"MSG lane ", pos) and (end := data.find(b"!\r\n", pos)) >= 0:
            taken.append(data[pos : end + 3])
            pos = end + 3
        return pos

    fast, slow = b"MSG lane 1 2\r\nx!\r\n", b"MSG other 2 2\r\ny!\r\n"
    parser = Parser(Side.SERVER)
    parser.scan = scan
    stream = fast * 2 + slow + fast + slow
    subjects: list[str] = []
    for cut in [*cuts, len(stream)]:
        chunk, stream = stream[:cut], stream[cut:]
        subjects += [event.subject for event in parser.feed(chunk) if isinstance(event, Msg)]
    assert [s for s in subjects if s == "other"] == ["other"] * 2
    assert len(taken) + subjects.count("lane") == 3
    assert all(frame == fast for frame in taken)
    assert parser.buffered == 0
