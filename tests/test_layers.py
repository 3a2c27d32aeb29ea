"""Every import below src/ becomes an edge between rooms; an edge that the table does not allow is a failure.

Imports inside functions and under TYPE_CHECKING count as well: a dependency that is hidden is still one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"
PACKAGES = ("slipstream", "pyspark_jetstream", "pyspark_jetstream_kv")
API, CLIENT, FACADE, JETSTREAM, KV, OBJECTS, WIRE = "api", "client", "facade", "jetstream", "kv", "objects", "wire"
ROOT, SERVER, ENGINE, STORE = "__init__", "server", "server/engine", "server/store"

# Room -> what it may import beside the standard library, `errors`, `version` and itself. With a dot: one module only.
EDGES: dict[str, set[str]] = {
    ROOT: {CLIENT, JETSTREAM, KV, OBJECTS, FACADE},
    "errors": set(),
    "version": set(),
    WIRE: set(),
    API: {WIRE},
    CLIENT: {WIRE},
    JETSTREAM: {API, CLIENT, WIRE},
    KV: {API, JETSTREAM, WIRE, CLIENT},
    OBJECTS: {API, JETSTREAM, WIRE, CLIENT},
    FACADE: {CLIENT, JETSTREAM, KV, OBJECTS, WIRE, API},
    "spark": {JETSTREAM, KV, API, WIRE, FACADE},
    "formats": {"spark"},
    ENGINE: {API, WIRE},
    STORE: {"slipstream.server.engine.ports"},
    SERVER: {WIRE, ENGINE, STORE},
    "testing": {SERVER, ROOT},
    "cli": {ROOT},
}
EXTRA_EDGES = {
    "slipstream/server/upstream.py": {CLIENT, JETSTREAM, API},  # mirrors of streams on another server
    "slipstream/cli/server.py": {SERVER},  # the one command that is the server and not a client
    "slipstream/spark/pipelines/lock.py": {"os", "pathlib", "time"},
    "slipstream/spark/pipelines/place.py": {ROOT},  # an embedded server, where no other is named
}
LAZY_EDGES = {
    ROOT: {SERVER},
    "cli": {"spark"},
}  # only inside a function or for types: `import slipstream` must stay light

# Third-party module -> the files that may import it, as patterns below src/ (`*` also crosses directories).
CORE_ROOMS = (API, CLIENT, JETSTREAM, KV, OBJECTS, SERVER, WIRE, FACADE)
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "msgspec": tuple(f"slipstream/{room}/*" for room in CORE_ROOMS),
    "lmdb": ("slipstream/server/store/lmdb*.py",),
    "uvloop": ("slipstream/client/aio.py", "slipstream/server/[!/]*.py", "slipstream/cli/*"),
    "bcrypt": ("slipstream/server/signatures.py",),
    "cryptography": ("slipstream/client/nkeys.py", "slipstream/kv/*", "slipstream/server/[!/]*.py"),
    "pyspark": ("slipstream/spark/*", "pyspark_jetstream*/*"),
    "pyarrow": ("slipstream/spark/*", "pyspark_jetstream*/*"),
    "rich": (
        "slipstream/spark/pipelines/display.py",
        "slipstream/cli/*",
    ),
    "pytest": ("slipstream/testing/*",),
}

# The outside world: sockets, files, the clock, randomness, threads.
IO_MODULES = frozenset((
    "socket", "socketserver", "select", "selectors", "ssl", "time", "random", "secrets", "uuid", "os", "threading",
    "_thread", "pathlib", "tempfile", "shutil", "subprocess", "multiprocessing", "signal",
))  # fmt: skip
IO_FILES = (
    "slipstream/client/aio*.py",
    "slipstream/client/blocking*.py",
    "slipstream/client/link.py",  # a transport of asyncio
    "slipstream/client/line.py",  # a socket
    "slipstream/client/contexts.py",  # files of connection settings
    "slipstream/client/sources.py",  # files and the environment, for secrets
    "slipstream/client/tls.py",  # certificates
    "slipstream/kv/*_outside.py",  # time and threads, for buckets without a server and for leases
    "slipstream/server/[!/]*.py",
    "slipstream/server/store/lmdb*.py",
    "slipstream/testing/*",
    "slipstream/cli/*",
)
IO_EXCEPTIONS = {
    "slipstream/kv/encryption.py": {"os"},  # randomness: salts and nonces must not come from a caller
    "slipstream/spark/source.py": {"os", "time"},  # secrets in the environment; a pause before a server is tried again
    "slipstream/spark/kv_source.py": {"os"},
    "slipstream/spark/kv_sink.py": {"os", "uuid"},
    "slipstream/spark/stream_sink.py": {"os", "uuid"},  # a write that has no name yet gets one
    "slipstream/spark/link.py": {"pathlib"},  # credentials and contexts are files
    "slipstream/spark/pipelines/cli.py": {"pathlib", "shutil"},
    "slipstream/spark/pipelines/lock.py": {"os", "pathlib", "time"},
    "slipstream/spark/pipelines/place.py": {"os", "pathlib"},
    "slipstream/spark/pipelines/run.py": {"os", "pathlib", "shutil", "signal", "threading", "time"},
    "slipstream/spark/pipelines/state.py": {"os", "pathlib", "shutil"},
}
# asyncio may be used to wait and to group in any aio.py; these parts of it are sockets by another name.
ASYNCIO_TRANSPORTS = frozenset((
    "open_connection", "start_server", "open_unix_connection", "start_unix_server", "StreamReader", "StreamWriter",
    "StreamReaderProtocol", "Transport", "BaseTransport", "ReadTransport", "WriteTransport", "DatagramTransport",
    "Protocol", "BaseProtocol", "BufferedProtocol", "DatagramProtocol", "transports", "protocols", "streams",
    "sslproto", "selector_events", "subprocess", "create_subprocess_exec", "create_subprocess_shell",
))  # fmt: skip


class Import(NamedTuple):
    file: str  # below src/
    line: int
    module: str
    in_function: bool  # or for types only: not run when the module is imported


def matches(file: str, patterns: tuple[str, ...]) -> bool:
    """fnmatch, but `[!/]*` at the end of a pattern stays within one directory."""
    return any(
        fnmatch(file, pattern) and ("[!/]" not in pattern or file.count("/") == pattern.replace("[!/]", "").count("/"))
        for pattern in patterns
    )


def module_name(file: str) -> str:
    name = file.removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


def room_of(module: str) -> str:
    """The room of a dotted module; an empty string if it is in none."""
    head, *rest = module.split(".")
    if head != "slipstream":
        return "formats"
    if not rest:
        return ROOT
    if rest[0] == "server" and len(rest) > 1 and f"server/{rest[1]}" in EDGES:
        return f"server/{rest[1]}"
    if rest[0] == "__main__":
        return "cli"
    return rest[0] if rest[0] in EDGES else ""


def is_module(src: Path, module: str) -> bool:
    path = src.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def targets(src: Path, file: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The modules that a statement imports: `from a import b` is `a.b` where that is a module of ours, else `a`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        package = module_name(file).split(".")
        package = package if file.endswith("/__init__.py") else package[:-1]
        base = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
    for alias in node.names:
        full = f"{base}.{alias.name}"
        ours = base.split(".")[0] in PACKAGES
        yield full if base == "asyncio" or (ours and is_module(src, full)) else base


def imports_of(src: Path, path: Path) -> Iterator[Import]:
    file = path.relative_to(src).as_posix()

    def walk(node: ast.AST, in_function: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                for module in targets(src, file, child):
                    yield Import(file, child.lineno, module, in_function)
            elif isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id == "asyncio":
                yield Import(file, child.lineno, f"asyncio.{child.attr}", in_function)
            inside = (
                in_function
                or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
            )
            yield from walk(child, inside)

    yield from walk(ast.parse(path.read_text("utf-8"), file), False)


def edge_problem(item: Import) -> str:
    """Why an import of our own code is not allowed; empty if it is."""
    room, target = room_of(module_name(item.file)), room_of(item.module)
    if not room:
        return "the file is in no room"
    if item.file == "slipstream/__main__.py" and target == "cli":
        return ""
    if room == "spark" and item.module.split(".")[-1] == "aio":
        return "spark uses the blocking drivers only"
    allowed = EDGES[room] | EXTRA_EDGES.get(item.file, set()) | {room, "errors", "version"}
    if item.in_function:
        allowed |= LAZY_EDGES.get(room, set())
    if target in allowed or any(
        item.module == name or item.module.startswith(f"{name}.") for name in allowed if "." in name
    ):
        return ""
    hint = " outside a function" if target in LAZY_EDGES.get(room, set()) else ""
    return f"room {room} may not import room {target or '(none)'}{hint}"


def outside_problem(item: Import) -> str:
    """Why an import of the standard library or of a third party is not allowed; empty if it is."""
    top, _, part = item.module.partition(".")
    if top in sys.stdlib_module_names:
        if matches(item.file, IO_FILES) or top in IO_EXCEPTIONS.get(item.file, set()):
            return ""
        if top == "asyncio":
            if not item.file.endswith("/aio.py"):
                return "asyncio is for drivers (aio.py)"
            return f"{part} is a socket: client/aio.py has those" if part.split(".")[0] in ASYNCIO_TRANSPORTS else ""
        return f"{top} is the outside world: take time, ids and bytes as arguments" if top in IO_MODULES else ""
    return "" if matches(item.file, THIRD_PARTY.get(top, ())) else f"third-party {top} is not allowed here"


def problems(src: Path) -> list[str]:
    """One line per import that is not allowed, and per file in no room."""
    found: dict[str, None] = {}
    for path in sorted(src.rglob("*.py")):
        file = path.relative_to(src).as_posix()
        if file.split("/")[0] not in PACKAGES or not room_of(module_name(file)):
            found[f"{file}: the file is in no room"] = None
            continue
        for item in imports_of(src, path):
            ours = item.module.split(".")[0] in PACKAGES
            if problem := edge_problem(item) if ours else outside_problem(item):
                found[f"{file}:{item.line}: import of {item.module}: {problem}"] = None
    return list(found)


def test_the_rooms_of_src_import_only_what_they_may() -> None:
    assert problems(SRC) == []


BAD = [
    ("wire/parser.py", "from slipstream.api import configs", "room wire may not import room api"),
    ("wire/parser.py", "from ..client import aio", "room wire may not import room client"),
    ("wire/parser.py", "def f():\n    import slipstream.kv", "room wire may not import room kv"),
    ("wire/parser.py", "if TYPE_CHECKING:\n    from slipstream.api import X", "room wire may not import room api"),
    ("client/protocol.py", "import slipstream", "room client may not import room __init__"),
    ("client/protocol.py", "import time", "time is the outside world"),
    ("client/protocol.py", "import asyncio", "asyncio is for drivers"),
    ("client/protocol.py", "import os.path", "os is the outside world"),
    ("client/outgoing.py", "import socket", "socket is the outside world"),
    ("jetstream/aio.py", "from asyncio import open_connection", "open_connection is a socket"),
    ("jetstream/aio.py", "import asyncio\nasyncio.start_server", "start_server is a socket"),
    ("jetstream/aio.py", "import socket", "socket is the outside world"),
    ("jetstream/calls.py", "import lmdb", "third-party lmdb"),
    ("server/net.py", "import rich", "third-party rich"),
    ("server/net.py", "from slipstream.jetstream import calls", "room server may not import room jetstream"),
    ("server/engine/core.py", "from slipstream.server import net", "room server/engine may not import room server"),
    ("server/engine/core.py", "import uvloop", "third-party uvloop"),
    ("server/engine/core.py", "import random", "random is the outside world"),
    ("server/store/lmdb.py", "from slipstream.server.engine import core", "may not import room server/engine"),
    ("server/store/memory.py", "import lmdb", "third-party lmdb"),
    ("spark/plan.py", "import time", "time is the outside world"),
    ("spark/source.py", "import socket", "socket is the outside world"),
    ("spark/source.py", "from slipstream.kv import aio", "blocking drivers only"),
    ("cli/main.py", "from slipstream import kv", "room cli may not import room kv"),
    ("cli/main.py", "from slipstream.server import Server", "room cli may not import room server"),
    ("__init__.py", "from slipstream.server import Server", "may not import room server outside a function"),
    ("util/x.py", "", "the file is in no room"),
]
GOOD = [
    (
        "wire/parser.py",
        "from __future__ import annotations\nimport re\nfrom . import headers\nfrom ..errors import Error",
    ),
    ("client/aio.py", "import asyncio, socket, ssl, uvloop\nfrom slipstream.wire import parser\nasyncio.Protocol"),
    ("client/aio_connection.py", "import asyncio, random\nfrom slipstream.version import VERSION"),
    ("client/line.py", "import selectors, socket"),
    ("jetstream/aio.py", "import asyncio\nfrom slipstream.client.aio import Connection\nasyncio.timeout"),
    ("kv/aio.py", "import msgspec, cryptography.hazmat\nfrom slipstream.client import protocol"),
    ("server/net.py", "import time, uvloop, cryptography\nfrom slipstream.server.engine import core"),
    ("server/upstream.py", "from slipstream.jetstream import calls"),
    ("cli/server.py", "from slipstream.server import net"),
    ("server/store/lmdb.py", "import lmdb, os\nfrom slipstream.server.engine import ports\nfrom . import memory"),
    ("server/store/lmdb_index.py", "import lmdb\nfrom ..engine.ports import Store"),
    ("spark/source.py", "import os, pyarrow, pyspark.sql\nfrom slipstream.facade import blocking"),
    (
        "testing/fixtures.py",
        "import pytest, tempfile\nfrom slipstream import connect\nfrom slipstream.server import Server",
    ),
    (
        "__init__.py",
        "from slipstream.facade import Client\ndef __getattr__(n):\n    from slipstream.server import Server",
    ),
    ("__main__.py", "from slipstream.cli import main"),
]


def tree(src: Path, file: str, text: str) -> Path:
    """A source tree with the modules that the examples import, and one more file."""
    modules = "api/configs client/aio client/protocol kv/aio server/net server/engine/core server/engine/ports"
    for name in [*modules.split(), "jetstream/calls", "facade/blocking", "wire/headers", "errors"]:
        path = src / "slipstream" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    path = src / "slipstream" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return src


@pytest.mark.parametrize(("file", "text", "message"), BAD)
def test_a_bad_import_is_reported_once_with_its_place(tmp_path: Path, file: str, text: str, message: str) -> None:
    found = problems(tree(tmp_path, file, text))
    assert len(found) == 1
    assert found[0].startswith(f"slipstream/{file}:")
    assert message in found[0]


@pytest.mark.parametrize(("file", "text"), GOOD)
def test_an_allowed_import_is_not_reported(tmp_path: Path, file: str, text: str) -> None:
    assert problems(tree(tmp_path, file, text)) == []


def test_a_format_package_may_import_spark_and_nothing_else(tmp_path: Path) -> None:
    package = tmp_path / "pyspark_jetstream"
    package.mkdir()
    (package / "__init__.py").write_text("from slipstream.spark import DefaultSource\nimport slipstream.kv\n", "utf-8")
    assert problems(tmp_path) == [
        "pyspark_jetstream/__init__.py:2: import of slipstream.kv: room formats may not import room kv"
    ]
