"""tools/unasync.py: async source in, blocking source out, and an error for whatever has no blocking meaning."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.unasync import NAMES, UnasyncError, generate, main, rewrite

PAIR = ("pkg/_async/store.py", "pkg/_sync/store.py")


@pytest.mark.parametrize(
    ("source", "blocking"),
    [
        ("async def f() -> None: ...\n", "def f() -> None: ...\n"),
        ("async  with a as b, c:\n    pass\n", "with a as b, c:\n    pass\n"),
        ("async for x in y:\n    pass\n", "for x in y:\n    pass\n"),
        ("z = [await g(x) async for x in y]\n", "z = [g(x) for x in y]\n"),
        ("return_ = (await f()).name\n", "return_ = (f()).name\n"),
        ("x = (await\n     f())\n", "x = (\n     f())\n"),
        ("x = await a(await b())\n", "x = a(b())\n"),
        ("x = await (await a()).b[0].c(1)\n", "x = (a()).b[0].c(1)\n"),
        ("x = await calls[0]()\n", "x = calls[0]()\n"),
        ("from slipstream import connect\n", "from slipstream import connect_blocking as connect\n"),
        (
            "from slipstream import (\n    Entry,\n    KeyValue as KV,\n    connect,\n)\n",
            "from slipstream import (\n    Entry,\n    BlockingKeyValue as KV,\n    connect_blocking as connect,\n)\n",
        ),
        ("from slipstream.kv import connect\n", "from slipstream.kv import connect\n"),
        ("x = driver.connect(KeyValue)\n", "x = driver.connect(KeyValue)\n"),
        ("from collections.abc import AsyncIterator as It\n", "from collections.abc import Iterator as It\n"),
        ("async def __aenter__(self): ...\n", "def __enter__(self): ...\n"),
        ("async with aclosing(s): await s.aclose()\n", "with closing(s): s.close()\n"),
        ("except_ = StopAsyncIteration\n", "except_ = StopIteration\n"),
        ("v = await anext(aiter(x))\n", "v = next(iter(x))\n"),
        ("from slipstream.client._async.client import C\n", "from slipstream.client._sync.client import C\n"),
        ("from slipstream.client import _async, session\n", "from slipstream.client import _sync, session\n"),
        ("import slipstream.kv._async.watch\n", "import slipstream.kv._sync.watch\n"),
        ("x = a._async\n", "x = a._async\n"),
        ("import asyncio\n", "\n"),
    ],
)
def test_code_becomes_blocking(source: str, blocking: str) -> None:
    assert rewrite(source) == blocking


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_table_is_replaced(name: str) -> None:
    assert rewrite(f"x = {name}\n") == f"x = {NAMES[name]}\n"


def test_strings_and_comments_are_not_code() -> None:
    source = "x = 'await async for AsyncIterator asyncio'  # await f\nawaiting = async_ = 1\n"
    assert rewrite(source) == source


def test_docstrings_speak_of_the_blocking_twin() -> None:
    source = '''"""An asyncio driver. See kv/_async/watch.py."""

async def f():
    """The asyncio way::

        async with connect() as c:
            async for m in await c.get():
                await m.ack()
                await c.aclose()
    """
    text = """await this"""
'''
    assert (
        rewrite(source)
        == '''"""A blocking driver. See kv/_sync/watch.py."""

def f():
    """The blocking way::

        with connect() as c:
            for m in c.get():
                m.ack()
                c.close()
    """
    text = """await this"""
'''
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nclass A:\n    def __await__(self): ...\n", "line 3: __await__"),
        ("from collections.abc import AsyncGenerator\n", "line 1: AsyncGenerator: .*use AsyncIterator"),
        ("def f(x: Awaitable[int]): ...\n", "line 1: Awaitable"),
        ("import asyncio\n\nasyncio.sleep(1)\n", "line 3: asyncio"),
        ("from asyncio import sleep\n", "line 1: asyncio"),
        ("x = 1\ny = f'{await x}'\n", "line 2: 'await' inside an f-string"),
        ("y = f'{_async.x}'\n", "line 1: '_async' inside an f-string"),
        ("x = 1\nawait task\n", "line 2: await task: call it here"),
        ("await self.task\n", "line 1: await self.task: call it here"),
        ("x = [await each for each in calls]\n", "line 1: await each: call it here"),
    ],
)
def test_what_has_no_blocking_meaning_is_an_error_with_its_line(source: str, message: str) -> None:
    with pytest.raises(UnasyncError, match=message):
        rewrite(source)


def test_marked_lines_are_left_out_and_may_hold_anything() -> None:
    source = "a = 1\n# unasync: off\nasync def g() -> AsyncGenerator: asyncio.sleep\n# unasync: on\nb = await c()\n"
    assert ast.dump(ast.parse(rewrite(source))) == ast.dump(ast.parse("a = 1\nb = c()\n"))


def test_an_error_behind_marked_lines_names_the_line_of_the_source() -> None:
    with pytest.raises(UnasyncError, match="line 4: asyncio"):
        rewrite("# unasync: off\nx\n# unasync: on\nasyncio.sleep\n")


def test_a_marker_inside_a_string_is_text() -> None:
    source = 'x = """\n# unasync: off\n"""\n'
    assert rewrite(source) == source


@pytest.mark.parametrize(
    "source",
    [
        "# unasync: off\nx = 1\n",
        "# unasync: on\n",
        "# unasync: off\n# unasync: off\n# unasync: on\n",
        "x = 1  # unasync: off\n# unasync: on\n",
        "# unasync: maybe\n",
    ],
)
def test_markers_that_do_not_pair_are_an_error(source: str) -> None:
    with pytest.raises(UnasyncError, match="unasync"):
        rewrite(source)


def test_the_generated_file_says_so_sorts_its_imports_and_drops_unused_ones() -> None:
    source = (
        '"""An asyncio thing."""\n\nimport asyncio\nfrom collections.abc import AsyncIterator, Callable\n\n'
        "# unasync: off\nhandler: Callable[[], None]\n# unasync: on\n\n\n"
        "async def f(x: AsyncIterator[int]) -> int:\n    return await (\n        anext(x)\n    )\n"
    )
    assert generate(source, name=PAIR[0], target=PAIR[1]) == (
        "# Generated by tools/unasync.py from pkg/_async/store.py: do not edit this file.\n"
        '"""A blocking thing."""\n\nfrom collections.abc import Iterator\n\n\n'
        "def f(x: Iterator[int]) -> int:\n    return next(x)\n"
    )


def test_check_reports_a_stale_twin_and_writing_cures_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], root=tmp_path, pairs=[PAIR]) == 0  # no source yet
    (tmp_path / PAIR[0]).parent.mkdir(parents=True)
    (tmp_path / PAIR[0]).write_text("async def f() -> None:\n    await g()\n", "utf-8")
    assert main(["--check"], root=tmp_path, pairs=[PAIR]) == 1
    assert "stale: pkg/_sync/store.py" in capsys.readouterr().err
    assert not (tmp_path / PAIR[1]).exists()
    assert main([], root=tmp_path, pairs=[PAIR]) == 0
    assert main(["--check"], root=tmp_path, pairs=[PAIR]) == 0
    twin = tmp_path / PAIR[1]
    assert twin.read_text("utf-8").endswith("def f() -> None:\n    g()\n")
    twin.write_text(twin.read_text("utf-8") + "# edited\n", "utf-8")
    assert main(["--check"], root=tmp_path, pairs=[PAIR]) == 1


def test_a_twin_whose_source_is_gone_is_reported_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, twin = tmp_path / "src/pkg/_async/store.py", tmp_path / "src/pkg/_sync/store.py"
    by_hand = twin.with_name("runtime.py")
    source.parent.mkdir(parents=True)
    source.write_text("x = 1\n", "utf-8")
    pairs = [("src/pkg/_async/store.py", "src/pkg/_sync/store.py")]
    assert main([], root=tmp_path, pairs=pairs) == 0
    by_hand.write_text("# Written by hand.\n", "utf-8")
    source.unlink()
    assert main(["--check"], root=tmp_path, pairs=[]) == 1
    assert "orphan: src/pkg/_sync/store.py" in capsys.readouterr().err
    assert main([], root=tmp_path, pairs=[]) == 0
    assert (twin.exists(), by_hand.exists()) == (False, True)
    assert main(["--check"], root=tmp_path, pairs=[]) == 0


def test_an_error_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / PAIR[0]).parent.mkdir(parents=True)
    (tmp_path / PAIR[0]).write_text("asyncio.sleep\n", "utf-8")
    assert main([], root=tmp_path, pairs=[PAIR]) == 1
    assert "error: pkg/_async/store.py: line 1: asyncio" in capsys.readouterr().err
