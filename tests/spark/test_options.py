"""Options of the formats: what is taken, and what each refusal says."""

from __future__ import annotations

import pytest

from slipstream.errors import UsageError
from slipstream.spark.option_reader import Connection, secrets_of
from slipstream.spark.options import (
    EARLIEST,
    LATEST,
    At,
    KvSourceOptions,
    Position,
    SinkOptions,
    SourceOptions,
    StreamSinkOptions,
    batch_options,
    kv_batch_options,
    kv_source_options,
    kv_stream_options,
    sink_options,
    source_options,
    stream_options,
    stream_sink_options,
    table_options,
)


def test_a_stream_is_enough() -> None:
    assert source_options({"stream": "ORDERS"}) == SourceOptions(stream="ORDERS")
    assert source_options({"path": "ORDERS"}) == SourceOptions(stream="ORDERS")
    assert source_options({"path": "ORDERS", "stream": "ORDERS"}) == SourceOptions(stream="ORDERS")


def test_every_option_arrives_whatever_its_case() -> None:
    given = {
        "STREAM": "ORDERS",
        "servers": "nats://a:4222, b",
        "Subjects": "orders.*.new",
        "starting": "17",
        "ending": "2026-01-31T12:00:00.5Z",
        "maxmessagespertrigger": "1000",
        "maxBytesPerTrigger": "4096",
        "pollInterval": "0.5",
        "partitions": "4",
        "includeHeaders": "False",
        "failondataloss": "false",
        "domain": "hub",
        "timeout": "2.5",
    }
    assert source_options(given) == SourceOptions(
        stream="ORDERS",
        connection=Connection(servers=("nats://a:4222", "b"), domain="hub", timeout=2.5),
        subjects=("orders.*.new",),
        starting=Position(At.SEQUENCE, 17),
        ending=Position(At.TIME, 1769860800_500_000_000),
        max_messages_per_trigger=1000,
        partitions=4,
        columns=("subject", "sequence", "timestamp", "timestamp_ns", "data"),
        fail_on_data_loss=False,
        max_bytes_per_trigger=4096,
        poll_interval=0.5,
    )


def test_positions_by_name() -> None:
    assert stream_options({"stream": "S", "starting": "Latest"}).starting == LATEST
    assert batch_options({"stream": "S", "starting": "earliest", "ending": "latest"}).starting == EARLIEST


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("starting", "yesterday", "'earliest', 'latest', a sequence of at least 1 or an RFC 3339 time"),
        ("starting", "0", "a sequence of at least 1"),
        ("ending", "-5", "'earliest', 'latest'"),
        ("ending", "٣", "'earliest', 'latest'"),
        ("maxMessagesPerTrigger", "0", "a whole number of at least 1"),
        ("maxMessagesPerTrigger", "many", "a whole number of at least 1"),
        ("partitions", "1.5", "a whole number of at least 1"),
        ("partitions", str(2**63), "a whole number of at least 1"),
        ("includeHeaders", "yes", "'true' or 'false'"),
        ("failOnDataLoss", "", "must not be empty"),
        ("timeout", "0", "a number of seconds above 0"),
        ("timeout", "soon", "a number of seconds above 0"),
        ("timeout", "nan", "a number of seconds above 0"),
        ("subjects", "a..b", "dot-separated tokens"),
        ("subjects", "a.>.b", "and the last one '>'"),
        ("subjects", "a,b..c", "dot-separated tokens"),
        ("columns", "data,dat", "some of subject, sequence, timestamp, timestamp_ns, headers, data"),
        ("columns", "data,data", "each at most once"),
        ("pollInterval", "-1", "a number of seconds above 0"),
        ("maxBytesPerTrigger", "10k", "a whole number of at least 1"),
        ("servers", "nats://a,,nats://b", "nats://host:port"),
        ("stream", "a.b", "stream name must be 1 to 255 characters"),
    ],
)
def test_bad_value_names_the_option_and_what_it_must_be(name: str, value: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        source_options({"stream": "S", name: value})
    assert name in str(caught.value)
    assert expected in str(caught.value)


def test_a_stream_is_needed_and_only_one() -> None:
    with pytest.raises(UsageError, match=r"needs the option 'stream'.*load\(\)"):
        source_options({})
    with pytest.raises(UsageError, match="must be equal if both are set, got 'A' and 'B'"):
        source_options({"stream": "A", "path": "B"})


def test_an_unknown_option_is_named_but_its_value_is_not() -> None:
    with pytest.raises(
        UsageError, match=r"has no option 'steam'; did you mean stream\? It has stream, subjects"
    ) as caught:
        source_options({"stream": "S", "steam": "hush"})
    assert "hush" not in str(caught.value)
    with pytest.raises(UsageError, match="has no options 'a', 'b'"):
        source_options({"stream": "S", "b": "1", "a": "2"})


@pytest.mark.parametrize("name", ["password", "token", "user"])
def test_secret_as_an_option_is_rejected_with_advice(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"'{name}'.*credentials or context.*NATS_USER and NATS_PASSWORD, or NATS_TOKEN"
    ) as caught:
        source_options({"stream": "S", name: "hush"})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["nats://me:hush@host:4222", "nats://hush@host", "a,me:hush@host"])
def test_user_info_in_a_url_is_rejected_without_repeating_it(url: str) -> None:
    with pytest.raises(UsageError, match=r"'servers' must be .* without user info.*NATS_TOKEN") as caught:
        source_options({"stream": "S", "servers": url})
    assert "hush" not in str(caught.value)


def test_a_domain_and_a_prefix_exclude_each_other() -> None:
    assert source_options({"stream": "S", "apiPrefix": "$JS.X.API"}).connection.api_prefix == "$JS.X.API"
    with pytest.raises(UsageError, match=r"'domain'.*'apiPrefix'"):
        source_options({"stream": "S", "apiPrefix": "x", "domain": "y"})


def test_a_batch_does_not_start_at_the_latest_and_a_stream_has_no_end() -> None:
    with pytest.raises(UsageError, match=r"'starting' of a batch read must be .*readStream"):
        batch_options({"stream": "S", "starting": "latest"})
    with pytest.raises(UsageError, match="'ending' must not be before 'starting'"):
        batch_options({"stream": "S", "starting": "11", "ending": "10"})
    assert batch_options({"stream": "S", "starting": "10", "ending": "10"}).ending.value == 10
    with pytest.raises(UsageError, match=r"'ending' does not apply to readStream.*availableNow"):
        stream_options({"stream": "S", "ending": "10"})


def test_a_bucket_is_enough_for_the_sink_and_sparks_own_options_pass() -> None:
    expected = SinkOptions(bucket="view")
    assert sink_options({"bucket": "view"}) == expected
    assert sink_options({"path": "view", "checkpointLocation": "/x", "queryName": "q"}) == expected
    renamed = sink_options({"bucket": "view", "keyColumn": "k", "valueColumn": "v", "deletedColumn": "gone"})
    assert (renamed.key_column, renamed.value_column, renamed.deleted_column) == ("k", "v", "gone")


def test_bad_sink_options_are_rejected() -> None:
    with pytest.raises(UsageError, match="needs the option 'bucket'"):
        sink_options({})
    with pytest.raises(UsageError, match=r"'bucket'.*bucket name must consist .*'a.b'"):
        sink_options({"bucket": "a.b"})
    with pytest.raises(UsageError, match="jetstream_kv has no option 'stream'"):
        sink_options({"bucket": "view", "stream": "S"})
    with pytest.raises(UsageError, match="four different names"):
        sink_options({"bucket": "view", "keyColumn": "value"})


def test_a_table_keeps_the_options_its_reads_need() -> None:
    made = {"stream": "S", "servers": "a", "option.stream": "S", "option.servers": "a", "provider": "x", "owner": "me"}
    assert table_options(made) == {"stream": "S", "servers": "a"}
    assert source_options(made) == source_options(table_options(made))
    assert table_options({"stream": "S", "servers": "a"}) == {}  # no table: nothing needs to be kept


def test_secrets_come_from_the_environment_and_hide_themselves() -> None:
    found = secrets_of({"NATS_USER": "me", "NATS_PASSWORD": "hush"})
    assert (found.user, found.password, found.token) == ("me", "hush", "")
    assert "hush" not in repr(found)
    assert secrets_of({}) == ("", "", "")
    with pytest.raises(UsageError, match="NATS_TOKEN and NATS_USER or NATS_PASSWORD are mutually exclusive"):
        secrets_of({"NATS_USER": "me", "NATS_TOKEN": "hush"})


def test_headers_cannot_be_wanted_and_left_out() -> None:
    assert source_options({"stream": "S", "columns": "data, headers"}).columns == ("data", "headers")
    with pytest.raises(UsageError, match="'includeHeaders' must be true if 'columns' names"):
        source_options({"stream": "S", "columns": "headers", "includeHeaders": "false"})


def test_a_context_and_credentials_exclude_each_other() -> None:
    assert source_options({"stream": "S", "context": "prod"}).connection == Connection(context="prod")
    assert source_options({"stream": "S", "credentials": "/me.creds"}).connection.credentials == "/me.creds"
    with pytest.raises(UsageError, match=r"'credentials'.*'context'"):
        source_options({"stream": "S", "context": "prod", "credentials": "/me.creds"})


def test_a_bucket_is_read_as_of_now_as_of_a_revision_or_with_its_history() -> None:
    plain = kv_batch_options({"path": "view"})
    assert plain == KvSourceOptions(bucket="view", feed=SourceOptions(stream="KV_view"))
    assert plain.subjects("$KV.view.") == ("$KV.view.>",)
    found = kv_batch_options({"bucket": "view", "keys": "a.*, b", "asOfRevision": "7", "includeDeletes": "true"})
    assert (found.as_of, found.include_deletes, found.history) == (7, True, False)
    assert found.subjects("$KV.origin.") == ("$KV.origin.a.*", "$KV.origin.b")
    since = kv_batch_options({"bucket": "view", "history": "true", "starting": "5"})
    assert (since.history, since.feed.starting) == (True, Position(At.SEQUENCE, 5))
    with pytest.raises(UsageError, match="'asOfRevision' and 'history' are mutually exclusive"):
        kv_source_options({"bucket": "view", "history": "true", "asOfRevision": "7"})
    with pytest.raises(UsageError, match="'starting' and 'ending' choose among the entries of a history"):
        kv_batch_options({"bucket": "view", "starting": "5"})
    with pytest.raises(UsageError, match="apply to batch reads only: readStream gives every change"):
        kv_stream_options({"bucket": "view", "history": "true"})


def test_filters_over_keys_are_those_of_the_bucket() -> None:
    found = kv_source_options({"bucket": "view", "keys": "a.*,a.b,c.>, =/_-"})
    assert found.keys == ("a.*", "c.>", "=/_-")
    for keys in ("a*", "a.b*", "b,>.a", "a..b", "ü"):
        with pytest.raises(
            UsageError,
            match=r"jetstream_kv option 'keys': key filter must be .*a whole token may be",
        ):
            kv_source_options({"bucket": "view", "keys": keys})
    with pytest.raises(UsageError, match="'keys' must be key filters, separated by single commas, got 'a,,b'"):
        kv_stream_options({"bucket": "view", "keys": "a,,b"})


def test_a_stream_is_enough_to_write_to_it() -> None:
    assert stream_sink_options({"path": "OUT"}) == StreamSinkOptions(stream="OUT")
    found = stream_sink_options({"stream": "OUT", "writeId": "day-1", "progress": "done", "maxInFlight": "10"})
    assert (found.write_id, found.progress, found.max_in_flight) == ("day-1", "done", 10)
    with pytest.raises(UsageError, match=r"'writeId' must be letters, digits"):
        stream_sink_options({"stream": "OUT", "writeId": "a.b"})
    with pytest.raises(UsageError, match=r"'progress': .*a.b"):
        stream_sink_options({"stream": "OUT", "progress": "a.b"})
