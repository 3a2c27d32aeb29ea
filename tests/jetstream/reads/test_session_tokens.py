"""Session tokens: versions, bounds, signatures, and what happens with one that does not fit the stream here."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import connect, connect_blocking
from slipstream.errors import SessionTokenError, StaleReadError, TokenMismatchError, UsageError
from slipstream.jetstream.reads.session import MOST_IN_TOKEN, MOST_SUBJECTS, SessionState
from tests.conformance.test_streams import config

SECRET, OTHER = b"a secret", b"another"
HOUR = 3_600_000_000_000


def written(subjects: int = 3, secret: bytes = b"") -> SessionState:
    """A session that wrote to several subjects of one stream, and knows when it was made."""
    state = SessionState(secret=secret)
    state.made("S", 1_000, 0, is_firm=True, config=config("S"))
    for seq in range(1, subjects + 1):
        state.note("S", seq, f"S.{seq}", is_own_write=True)
    return state


def old_token(streams: dict[str, tuple[int, int]]) -> str:
    """A token of version 1."""
    return base64.urlsafe_b64encode(json.dumps([1, streams]).encode()).decode().rstrip("=")


def test_a_token_carries_what_is_known_of_subjects() -> None:
    again = SessionState(written().token())
    assert [again.known("S", f"S.{seq}") for seq in range(1, 5)] == [1, 2, 3, None]
    assert (again.seen("S"), again.created("S"), again.is_claim("S")) == (3, 1_000, True)


def test_a_token_of_version_1_is_read() -> None:
    again = SessionState(old_token({"S": (11, 1_000), "T": (5, 0)}))
    assert (again.seen("S"), again.created("S"), again.seen("T"), again.created("T")) == (11, 1_000, 5, 0)
    assert again.known("S", "S.1") is None


def test_a_token_is_bounded_however_much_the_session_knows() -> None:
    state = written(2 * MOST_SUBJECTS)
    assert len(state._streams["S"].subjects) == MOST_SUBJECTS
    token = state.token()
    assert len(token) < 1_000
    again = SessionState(token)
    known = [seq for seq in range(1, 2 * MOST_SUBJECTS + 1) if again.known("S", f"S.{seq}") is not None]
    assert known == list(range(2 * MOST_SUBJECTS - MOST_IN_TOKEN + 1, 2 * MOST_SUBJECTS + 1))
    state.note("S", 2 * MOST_SUBJECTS + 1, "x" * 5_000)  # not worth its place
    assert len(state.token()) < 1_000


@given(st.text(max_size=200), st.sampled_from([b"", SECRET]))
def test_any_text_is_a_token_or_a_usage_error(text: str, secret: bytes) -> None:
    try:
        SessionState(text, secret=secret)
    except SessionTokenError:
        return
    assert not text


@given(st.data())
def test_a_changed_token_is_read_or_rejected_and_a_signed_one_rejected(data: st.DataObject) -> None:
    secret = data.draw(st.sampled_from([b"", SECRET]))
    raw = bytearray(base64.urlsafe_b64decode(written(secret=secret).token() + "=="))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    token = base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("=")
    try:
        state = SessionState(token, secret=secret)
    except SessionTokenError:
        return
    assert not secret
    assert SessionState(state.token()).token() == state.token()


@given(st.recursive(st.integers() | st.text(max_size=5) | st.none(), lambda inner: st.lists(inner, max_size=4)))
def test_any_content_is_a_token_or_a_usage_error(content: Any) -> None:
    for body in (b"\x02" + json.dumps(content).encode(), json.dumps([1, content]).encode()):
        token = base64.urlsafe_b64encode(body).decode().rstrip("=")
        try:
            SessionState(token)
        except UsageError:
            continue


def test_signed_tokens_are_read_by_those_who_have_the_secret() -> None:
    plain, signed = written().token(), written(secret=SECRET).token()
    assert SessionState(signed, secret=SECRET).seen("S") == 3
    for token, secret, why in (
        (plain, SECRET, "must be signed: begin"),
        (old_token({"S": (1, 1)}), SECRET, "must be signed: begin"),
        (written(secret=OTHER).token(), SECRET, "has a wrong signature"),
        (signed, b"", "as secret="),
    ):
        with pytest.raises(SessionTokenError, match=why):
            SessionState(token, secret=secret)


def test_a_secret_must_be_bytes(our_url: str) -> None:
    with connect_blocking(our_url) as nc, pytest.raises(UsageError, match="secret must be bytes, got str"):
        nc.jetstream().session(secret="text")  # type: ignore[arg-type]


async def test_a_signed_session_goes_on_and_a_token_without_a_signature_does_not(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        session = js.session(secret=SECRET)
        await session.publish(f"{fresh}.a", b"1")
        assert js.session(session.token(), secret=SECRET).seen(fresh) == 1
        with pytest.raises(SessionTokenError):
            js.session(js.session().token(), secret=SECRET)


@pytest.mark.spec("RW-13")
async def test_a_token_that_does_not_fit_the_stream_says_so(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream(timeout=10)
        stream = await js.create_stream(config(fresh))
        await js.publish(f"{fresh}.a", b"1")
        created = (await stream.info()).created
        foreign = {
            "later": (1, created + HOUR),
            "beyond": (10_000, created),
            "unknown": (10_000, 0),
        }
        for name, claim in foreign.items():
            mine = js.session(old_token({fresh: claim})).stream(fresh)
            with pytest.raises(TokenMismatchError, match=r"belongs to another stream: .*begin a session without it"):
                print(name, await mine.get_last(f"{fresh}.a"))
            with pytest.raises(TokenMismatchError):
                print(name, [message async for message in mine.read()])
        mine = js.session(old_token({fresh: (1, created - HOUR)})).stream(fresh)
        with pytest.raises(TokenMismatchError, match=r"token is stale: .* recreated .*Begin a session without it"):
            await mine.get_last(f"{fresh}.a")
        # What a foreign token says is not believed by anyone else.
        assert (await js.session(old_token({fresh: (1, created)})).stream(fresh).get_last(f"{fresh}.a")).seq == 1
        assert (await stream.get_last(f"{fresh}.a", min_last_seq=1)).seq == 1


def test_a_token_of_a_stream_that_was_made_again_is_stale_for_blocking_clients_too(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        js.create_stream(config(fresh))
        session = js.session()
        for _ in range(3):
            session.publish(f"{fresh}.a", b"old")
        token = session.token()
        js.delete_stream(fresh)
        js.create_stream(config(fresh))
        js.publish(f"{fresh}.a", b"new")
        with pytest.raises(TokenMismatchError, match="token is stale"):
            js.session(token).stream(fresh).get_last(f"{fresh}.a")


# F14: since when the stream exists
@pytest.mark.spec("RW-13")
@pytest.mark.parametrize("is_read", [False, True])
async def test_a_session_goes_on_with_a_stream_that_others_made_again(
    any_server: str, fresh: str, is_read: bool
) -> None:
    """The connection knows since when the stream exists, and asks nobody; the session must learn it all the same."""
    async with connect(any_server) as nc, connect(any_server) as other:
        js, admin = nc.jetstream(), other.jetstream()
        await js.create_stream(config(fresh))
        session = js.session()
        for _ in range(10):
            await session.publish(f"{fresh}.a", b"old")
        if is_read:
            await session.stream(fresh).get_last(f"{fresh}.a")
        assert SessionState(session.token()).created(fresh) > 0
        await admin.delete_stream(fresh)
        await admin.create_stream(config(fresh))
        await admin.publish(f"{fresh}.a", b"new")
        assert (await session.stream(fresh).get_last(f"{fresh}.a")).data == b"new"
        mine = await session.publish(f"{fresh}.a", b"mine")
        assert session.seen(fresh) == mine.seq == 2
        assert (await session.stream(fresh).get_last(f"{fresh}.a")).data == b"mine"


@pytest.mark.steady
async def test_a_session_that_never_learned_of_the_stream_before_says_what_to_do(our_url: str, fresh: str) -> None:
    """It only wrote, over a connection that knows nothing: the stream here may as well be an older one."""
    async with connect(our_url) as nc, connect(our_url) as other:
        admin, session = other.jetstream(), nc.jetstream().session()
        await admin.create_stream(config(fresh))
        for _ in range(3):
            await session.publish(f"{fresh}.a", b"old")
        await admin.delete_stream(fresh)
        await admin.create_stream(config(fresh))
        with pytest.raises(StaleReadError) as caught:
            await session.stream(fresh).get_last(f"{fresh}.a", timeout=1)
        assert "begin a new session" in caught.value.__notes__[0]
