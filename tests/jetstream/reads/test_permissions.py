"""Reads of a user who may ask for one subject of one stream, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream import connect
from slipstream.errors import AuthorizationError, StaleReadError
from slipstream.server import Permissions, Server, User
from tests.conformance.test_streams import config
from tests.servers import real_server

USERS = """authorization { users = [
    {user: root, password: pw}
    {user: one, password: pw, permissions: {
        publish: {allow: ["$JS.API.DIRECT.GET.S.s.mine"]}, subscribe: {allow: ["_INBOX.>"]}
    }}
]}"""
OURS = (
    User(name="root", password="pw"),
    User(
        name="one",
        password="pw",
        permissions=Permissions(publish=("$JS.API.DIRECT.GET.S.s.mine",), subscribe=("_INBOX.>",)),
    ),
)


@pytest.fixture(scope="module")
def restricted() -> Iterator[dict[str, str]]:
    with real_server(config=USERS) as real, Server(users=OURS) as ours:
        yield {"real": real, "ours": ours.url}


@pytest.mark.spec("DG-18", on="C N")
@pytest.mark.steady
async def test_a_user_of_one_subject_reads_it_and_no_other_on_the_real_server(restricted: dict[str, str]) -> None:
    await check_one_subject(restricted["real"])


@pytest.mark.spec("DG-18", on="E C")
@pytest.mark.steady
async def test_a_user_of_one_subject_reads_it_and_no_other_on_our_server(restricted: dict[str, str]) -> None:
    await check_one_subject(restricted["ours"])


async def check_one_subject(url: str) -> None:
    async with connect(url, user="root", password="pw") as root:
        js = root.jetstream()
        stream = await js.create_stream(config("S", subjects=("s.>",)))
        for subject in ("s.mine", "s.other"):
            await js.publish(subject, b"1")
        last = (await js.publish("s.mine", b"2")).seq
        async with connect(url, user="one", password="pw") as nc:
            mine = nc.jetstream(timeout=1.5).stream("S")
            assert (await mine.get_last("s.mine")).data == b"2"
            assert (await mine.get_last("s.mine", min_last_seq=last)).data == b"2"
            for rejected in (
                mine.get_last("s.other"),
                mine.get_last("s.*"),
                mine.get(1),
                mine.get_next("s.mine"),
                mine.info(),
                mine.get_last("s.other", min_last_seq=last),
            ):
                with pytest.raises(AuthorizationError):
                    await rejected
            with pytest.raises(AuthorizationError):
                await anext(mine.read())
            with pytest.raises(StaleReadError):
                await mine.get_last("s.mine", min_last_seq=last + 1)
        await stream.delete()
