"""The structure of the source tree: its import edges, the size of its folders, its names, and the tree of the tests.

Every import below src/ must be an edge that this file lists. Imports inside functions and under TYPE_CHECKING count as
well: a dependency that is hidden is still one. `tools/structure.py` measures what the rules at the end are about.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tools import structure

TESTS = Path(__file__).resolve().parent
SRC = Path(__file__).resolve().parent.parent / "src"
PACKAGES = ("slipstream", "pyspark_jetstream", "pyspark_jetstream_kv")
API, CLIENT, FACADE, JETSTREAM, KV, OBJECTS, WIRE = "api", "client", "facade", "jetstream", "kv", "objects", "wire"
CODECS, FRAMES, METRICS, SERVICES = "codecs", "frames", "metrics", "services"
ROOT, SERVER, ENGINE, STORE = "__init__", "server", "server/engine", "server/store"

# Layer -> what it may import beside the standard library, `errors`, `extras`, `form`, `version`, itself.
# With a dot: one module
EDGES: dict[str, set[str]] = {
    ROOT: {API, CLIENT, CODECS, JETSTREAM, KV, FRAMES, METRICS, OBJECTS, SERVICES, FACADE},
    "errors": set(),
    "extras": set(),
    "form": set(),
    "version": set(),
    WIRE: set(),
    API: {WIRE},
    CODECS: {WIRE},
    CLIENT: {CODECS, WIRE},
    FRAMES: {WIRE},
    JETSTREAM: {API, CLIENT, CODECS, FRAMES, WIRE},
    KV: {API, CODECS, FRAMES, JETSTREAM, WIRE, CLIENT},
    OBJECTS: {API, JETSTREAM, WIRE, CLIENT},
    SERVICES: {API, CODECS, WIRE, CLIENT},
    FACADE: {CLIENT, CODECS, JETSTREAM, KV, OBJECTS, SERVICES, WIRE, API},
    "spark": {JETSTREAM, KV, API, METRICS, WIRE, FACADE, "slipstream.client.backoff"},
    "formats": {"spark"},
    METRICS: {API},
    ENGINE: {API, METRICS, WIRE},
    STORE: {"slipstream.server.engine.ports"},
    SERVER: {WIRE, ENGINE, METRICS, STORE},
    "testing": {SERVER, ROOT, "slipstream.api.times", "slipstream.wire.arguments"},
    "cli": {ROOT},
    "otel": {CLIENT, JETSTREAM, KV, WIRE},
    "console": {ROOT, METRICS, "slipstream.jetstream.reads.direct_get"},
}
EXTRA_EDGES = {
    "slipstream/server/loop/upstream.py": {CLIENT, JETSTREAM, API},  # mirrors of streams on another server
    "slipstream/cli/observe/console.py": {"console"},
    "slipstream/cli/pipeline.py": {"console"},  # run --console
    "slipstream/cli/observe/exporter.py": {METRICS},
    "slipstream/cli/observe/monitoring.py": {METRICS},
    "slipstream/cli/kv/opening.py": {"slipstream.kv.codecs"},
    "slipstream/cli/kv/keyring_file.py": {"slipstream.kv.codecs"},
    "slipstream/cli/kv/encryption.py": {"slipstream.kv.codecs", "slipstream.kv._sync.rekey"},
    "slipstream/cli/server.py": {SERVER},  # the one command that is the server and not a client
    "slipstream/spark/pipelines/connection.py": {ROOT},  # an embedded server, where no other is named
    "slipstream/spark/pipelines/__main__.py": {"cli"},  # a program: `slipstream pipeline` by another name
}
LAZY_EDGES = {
    ROOT: {SERVER, "testing"},
    "cli": {"spark"},
    "console": {"spark"},  # a console without pipelines needs none of it
}  # only inside a function or for types: `import slipstream` must stay light

# The server around its engine and stores.
SERVER_DRIVERS = (
    "slipstream/server/[!/]*.py",
    "slipstream/server/loop/*",
    "slipstream/server/process/*",
    "slipstream/server/faults/*",
)
# Data frames, and the methods that return them (for types only).
FRAME_FILES = (
    "slipstream/frames/*",
    "slipstream/jetstream/_*sync/stream.py",
    "slipstream/jetstream/reads/columns.py",
    "slipstream/kv/_*sync/key_value.py",
)
# Third-party module -> the files that may import it, as patterns below src/ (`*` also crosses directories).
CORE_LAYERS = (API, CLIENT, CODECS, "console", FRAMES, JETSTREAM, KV, OBJECTS, SERVICES, SERVER, WIRE, FACADE)
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "msgspec": tuple(f"slipstream/{layer}/*" for layer in CORE_LAYERS),
    "lmdb": ("slipstream/server/store/lmdb/*.py",),
    "uvloop": ("slipstream/client/_async/client.py", *SERVER_DRIVERS, "slipstream/cli/*"),
    "bcrypt": ("slipstream/server/loop/signatures.py",),
    "cryptography": ("slipstream/wire/nkeys.py", "slipstream/kv/*", *SERVER_DRIVERS),
    "pyspark": ("slipstream/spark/*", "pyspark_jetstream*/*"),
    "pyarrow": ("slipstream/spark/*", "pyspark_jetstream*/*", *FRAME_FILES),
    "pandas": FRAME_FILES,
    "polars": FRAME_FILES,
    "google": ("slipstream/spark/pipelines/formats/protobuf.py",),
    "rich": (
        "slipstream/spark/pipelines/display.py",
        "slipstream/cli/*",
    ),
    "opentelemetry": ("slipstream/otel/*",),
    "starlette": ("slipstream/console/*", "slipstream/cli/observe/console.py"),
    "uvicorn": ("slipstream/console/serving.py", "slipstream/cli/observe/console.py"),
    "prometheus_client": ("slipstream/metrics/client.py",),  # optional: registering with it
    "pytest": ("slipstream/testing/*",),
}

# The outside world: sockets, files, the clock, randomness, threads.
IO_MODULES = frozenset((
    "socket", "socketserver", "select", "selectors", "ssl", "time", "random", "secrets", "uuid", "os", "threading",
    "_thread", "pathlib", "tempfile", "shutil", "subprocess", "multiprocessing", "signal",
))  # fmt: skip
IO_FILES = (
    "slipstream/client/_async/*",
    "slipstream/client/_sync/*",
    "slipstream/client/contexts.py",  # files of connection settings
    "slipstream/client/secrets.py",  # files and the environment, for secrets
    "slipstream/client/layers/tls.py",  # certificates
    "slipstream/kv/_*sync/runtime.py",  # time and threads, for buckets without a server and for leases
    "slipstream/services/_*sync/service.py",  # randomness, for the id of an instance
    *SERVER_DRIVERS,
    "slipstream/server/store/lmdb/*",
    "slipstream/testing/*",
    "slipstream/cli/*",
    "slipstream/console/*",
)
IO_EXCEPTIONS = {
    "slipstream/__init__.py": {"os"},  # whether compiled modules are there that may be older than their sources
    "slipstream/form.py": {"os", "pathlib"},
    "slipstream/client/options.py": {"ssl"},  # the type of an argument
    "slipstream/kv/codecs/encryption.py": {"os"},  # randomness: salts and nonces must not come from a caller
    "slipstream/spark/source/stream.py": {
        "os",
        "time",
    },  # secrets in the environment; when an idle stream was last asked
    "slipstream/spark/session.py": {"os"},
    "slipstream/spark/worker_start/sitecustomize.py": {"os"},
    "slipstream/spark/retries.py": {"time"},  # a pause before a server is tried again
    "slipstream/spark/source/kv.py": {"os"},
    "slipstream/spark/source/kv_snapshots.py": {"os", "pathlib", "uuid"},
    "slipstream/spark/sink/kv.py": {"os", "uuid"},
    "slipstream/spark/sink/stream.py": {"os", "uuid"},  # a write that has no name yet gets one
    "slipstream/spark/connect.py": {"pathlib"},  # credentials and contexts are files
    "slipstream/spark/pipelines/checks/validate.py": {"pathlib", "tempfile"},
    "slipstream/spark/pipelines/workbench/backfill.py": {"tempfile"},
    "slipstream/spark/pipelines/workbench/preview.py": {"tempfile"},
    "slipstream/spark/pipelines/workbench/cases.py": {"pathlib", "tempfile"},
    "slipstream/spark/pipelines/workbench/recording.py": {"pathlib"},
    "slipstream/spark/pipelines/workbench/warm.py": {"os", "pathlib", "subprocess", "tempfile"},
    "slipstream/spark/pipelines/fan_out/checkpoints.py": {"pathlib", "shutil", "uuid"},
    "slipstream/spark/pipelines/observe/events.py": {"pathlib"},
    "slipstream/spark/pipelines/observe/metrics.py": {"socket", "threading"},
    "slipstream/spark/pipelines/lag.py": {"time"},  # the age of a message
    "slipstream/spark/pipelines/lock.py": {"os", "pathlib", "time"},
    "slipstream/spark/pipelines/connection.py": {"os", "pathlib"},
    "slipstream/spark/pipelines/preparation.py": {"threading"},  # in the background
    "slipstream/spark/pipelines/reader.py": {"os", "pathlib"},
    "slipstream/spark/pipelines/reset.py": {"pathlib"},
    "slipstream/spark/pipelines/runner.py": {"os", "signal", "threading", "time"},
    "slipstream/spark/pipelines/sink_files.py": {"os", "pathlib", "shutil"},
    "slipstream/spark/pipelines/spark_session.py": {"os", "pathlib", "shutil", "threading"},
    "slipstream/spark/pipelines/state.py": {"pathlib", "shutil"},
    "slipstream/spark/pipelines/targets.py": {"pathlib"},
    "slipstream/spark/pipelines/together.py": {"threading", "time"},
}
# asyncio may be used to wait and to group in any `_async/` folder; these parts of it are sockets by another name.
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


def layer_of(module: str) -> str:
    """The layer of a dotted module; an empty string if it is in none."""
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
    layer, target = layer_of(module_name(item.file)), layer_of(item.module)
    if not layer:
        return "the file is in no layer"
    if item.file == "slipstream/__main__.py" and target == "cli":
        return ""
    if layer == "spark" and "_async" in item.module.split("."):
        return "spark uses the blocking drivers only"
    allowed = EDGES[layer] | EXTRA_EDGES.get(item.file, set()) | {layer, "errors", "extras", "form", "version"}
    if item.in_function:
        allowed |= LAZY_EDGES.get(layer, set())
    if target in allowed or any(
        item.module == name or item.module.startswith(f"{name}.") for name in allowed if "." in name
    ):
        return ""
    hint = " outside a function" if target in LAZY_EDGES.get(layer, set()) else ""
    return f"layer {layer} may not import layer {target or '(none)'}{hint}"


def outside_problem(item: Import) -> str:
    """Why an import of the standard library or of a third party is not allowed; empty if it is."""
    top, _, part = item.module.partition(".")
    if top in sys.stdlib_module_names:
        if matches(item.file, IO_FILES) or top in IO_EXCEPTIONS.get(item.file, set()):
            return ""
        if top == "asyncio":
            if "/_async/" not in item.file:
                return "asyncio is for drivers (_async/)"
            return f"{part} is a socket: client/_async has those" if part.split(".")[0] in ASYNCIO_TRANSPORTS else ""
        return f"{top} is the outside world: take time, ids and bytes as arguments" if top in IO_MODULES else ""
    return "" if matches(item.file, THIRD_PARTY.get(top, ())) else f"third-party {top} is not allowed here"


def problems(src: Path) -> list[str]:
    """One line per import that is not allowed, and per file in no layer."""
    found: dict[str, None] = {}
    for path in sorted(src.rglob("*.py")):
        file = path.relative_to(src).as_posix()
        if file.split("/")[0] not in PACKAGES or not layer_of(module_name(file)):
            found[f"{file}: the file is in no layer"] = None
            continue
        for item in imports_of(src, path):
            ours = item.module.split(".")[0] in PACKAGES
            if problem := edge_problem(item) if ours else outside_problem(item):
                found[f"{file}:{item.line}: import of {item.module}: {problem}"] = None
    return list(found)


def test_layers_import_only_what_they_may() -> None:
    assert problems(SRC) == []


BAD = [
    ("wire/parser.py", "from slipstream.api import configs", "layer wire may not import layer api"),
    ("wire/parser.py", "from ..client import session", "layer wire may not import layer client"),
    ("wire/parser.py", "def f():\n    import slipstream.kv", "layer wire may not import layer kv"),
    ("wire/parser.py", "if TYPE_CHECKING:\n    from slipstream.api import X", "layer wire may not import layer api"),
    ("client/session.py", "import slipstream", "layer client may not import layer __init__"),
    ("client/session.py", "import time", "time is the outside world"),
    ("client/session.py", "import asyncio", "asyncio is for drivers"),
    ("client/session.py", "import os.path", "os is the outside world"),
    ("client/outgoing.py", "import socket", "socket is the outside world"),
    ("jetstream/_async/jetstream.py", "from asyncio import open_connection", "open_connection is a socket"),
    ("jetstream/_async/jetstream.py", "import asyncio\nasyncio.start_server", "start_server is a socket"),
    ("jetstream/_async/jetstream.py", "import socket", "socket is the outside world"),
    ("jetstream/requests.py", "import lmdb", "third-party lmdb"),
    ("server/server.py", "import rich", "third-party rich"),
    ("server/server.py", "from slipstream.jetstream import requests", "layer server may not import layer jetstream"),
    (
        "server/engine/account.py",
        "from slipstream.server import server",
        "layer server/engine may not import layer server",
    ),
    ("server/engine/account.py", "import uvloop", "third-party uvloop"),
    ("server/engine/account.py", "import random", "random is the outside world"),
    (
        "server/store/lmdb/store.py",
        "from slipstream.server.engine import account",
        "may not import layer server/engine",
    ),
    ("server/store/memory/store.py", "import lmdb", "third-party lmdb"),
    ("spark/source/plan.py", "import time", "time is the outside world"),
    ("spark/source/stream.py", "import socket", "socket is the outside world"),
    ("spark/source/stream.py", "from slipstream.kv._async import key_value", "blocking drivers only"),
    ("cli/main.py", "from slipstream import kv", "layer cli may not import layer kv"),
    ("cli/main.py", "from slipstream.server import Server", "layer cli may not import layer server"),
    ("__init__.py", "from slipstream.server import Server", "may not import layer server outside a function"),
    ("util/x.py", "", "the file is in no layer"),
]
GOOD = [
    (
        "wire/parser.py",
        "from __future__ import annotations\nimport re\nfrom . import headers\nfrom ..errors import Error",
    ),
    (
        "client/_async/client.py",
        "import asyncio, socket, ssl, uvloop\nfrom slipstream.wire import parser\nasyncio.Protocol",
    ),
    ("client/_async/connection.py", "import asyncio, random\nfrom slipstream.version import VERSION"),
    ("client/_sync/transport.py", "import selectors, socket"),
    (
        "jetstream/_async/jetstream.py",
        "import asyncio\nfrom slipstream.client._async.client import Client\nasyncio.timeout",
    ),
    ("kv/_async/key_value.py", "import msgspec, cryptography.hazmat\nfrom slipstream.client import session"),
    ("server/server.py", "import time, uvloop, cryptography\nfrom slipstream.server.engine import account"),
    ("server/loop/upstream.py", "from slipstream.jetstream import requests"),
    ("cli/server.py", "from slipstream.server import server"),
    (
        "server/store/lmdb/store.py",
        "import lmdb, os\nfrom slipstream.server.engine import ports\nfrom .. import memory",
    ),
    ("server/store/lmdb/index.py", "import lmdb\nfrom ...engine.ports import Store"),
    ("spark/source/stream.py", "import os, pyarrow, pyspark.sql\nfrom slipstream.facade._sync import client"),
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
    modules = "api/configs client/_async/client client/session kv/_async/key_value server/server server/engine/ports"
    for name in [*modules.split(), "jetstream/requests", "facade/_sync/client", "wire/headers", "errors"]:
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
        "pyspark_jetstream/__init__.py:2: import of slipstream.kv: layer formats may not import layer kv"
    ]


@cache
def modules() -> list[structure.Module]:
    """Every module, parsed: by the tests that need it, not by every process that collects tests."""
    return structure.modules_of(SRC)


MAX_MODULES = 20  # in a folder, `__init__` aside: a folder is a concept
# Words that only we understood (docs/glossary.md has the ones we keep), and words too vague to find anything by.
FOREIGN_WORDS = frozenset((
    "room", "ledger", "books", "patience", "given", "place", "switch", "gate", "door", "house", "home", "desk",
    "orders", "deputy", "shelf", "diary", "limbo", "grave", "chores", "lane", "lanes", "pulse", "complaint",
    "complaints", "figures", "asking", "settling", "thinning", "inflow", "outside", "asm", "aio", "blocking",
    "utils", "helpers", "misc",
))  # fmt: skip


def words_of(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def folders_of(root: Path) -> set[str]:
    """The folders below `root` that hold Python modules, and the folders above them."""
    files = [path.relative_to(root) for path in root.rglob("*.py")]
    return {parent.as_posix() for file in files for parent in file.parents if parent.parts}


def test_a_folder_holds_few_modules() -> None:
    sizes = Counter(module.path.parent for module in modules() if module.path.name != "__init__.py")
    assert {folder: size for folder, size in sizes.items() if size > MAX_MODULES} == {}


def test_no_four_modules_of_a_folder_share_a_prefix() -> None:
    prefixes = Counter(
        (module.path.parent, module.path.stem.split("_")[0])
        for module in modules()
        if "_" in module.path.stem.strip("_")
    )
    assert {key: count for key, count in prefixes.items() if count > 3} == {}


def test_no_two_modules_import_each_other() -> None:
    assert structure.circular_pairs(modules()) == []


def test_no_private_attribute_is_read_from_outside_its_class() -> None:
    assert [f"{read.path}:{read.line}: {read.text}" for read in structure.private_reads(modules())] == []


def test_no_class_name_occurs_twice_in_a_package() -> None:
    assert structure.classes_named_twice(modules()) == {}


def test_modules_and_classes_have_the_words_of_the_field() -> None:
    names = {module.path: module.path.stem for module in modules()}
    found = [f"{path}: {name}" for path, name in names.items() if words_of(name) & FOREIGN_WORDS]
    found += [f"{path}: {name}" for _, name, path in structure.classes_of(modules()) if words_of(name) & FOREIGN_WORDS]
    assert found == []


def test_functions_have_the_words_of_the_field() -> None:
    verbs = {"given_up", "_given_up", "switch", "_switch_server", "_work_blocking"}  # the words in their usual meaning
    found = [
        f"{module.path}:{node.lineno}: {node.name}"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name not in verbs
        and words_of(node.name) & FOREIGN_WORDS
    ]
    assert found == []


def test_generated_modules_are_in_sync_folders_and_those_hold_no_others() -> None:
    by_hand = ("slipstream/client/_sync/", "slipstream/kv/_sync/runtime.py")
    for path in SRC.rglob("*.py"):
        file = path.relative_to(SRC).as_posix()
        assert structure.is_generated(path) == ("/_sync/" in file and not file.startswith(by_hand)), file


def test_every_sync_module_has_its_async_source() -> None:
    for package in sorted(SRC.rglob("_sync")):
        names = {path.name for path in package.glob("*.py")}
        assert names == {path.name for path in (package.parent / "_async").glob("*.py")}, package


def test_tests_have_the_tree_of_the_source() -> None:
    source, tests = folders_of(SRC / "slipstream"), folders_of(TESTS)
    # Tests that are run with both drivers are written in an `_async` folder, whatever they are about.
    own = {folder for folder in tests if not set(folder.split("/")) & {"_async", "_sync"}}
    assert own - source - {"conformance", "jetstream/reads/simulation", "kv/model", "server/simulation"} == set()
    drivers = {folder for folder in source if folder.split("/")[-1] in ("_async", "_sync")}
    untested = source - tests - drivers - {"facade"}  # the facade is what every test in `conformance` holds
    assert untested == set()


def test_make_looks_for_tests_of_spark_in_every_file_that_has_some() -> None:
    names = re.findall(r"^SPARK_TESTS := (.+)$", (TESTS.parent / "Makefile").read_text("utf-8"), re.MULTILINE)[
        0
    ].split()
    marked = [
        path for path in TESTS.rglob("*.py") if "mark.spark" in path.read_text("utf-8") and path != Path(__file__)
    ]
    roots = [TESTS.parent / name for name in names]
    assert [path for path in marked if not any(path.is_relative_to(root) for root in roots)] == []
    assert {path for path in roots if any(each.is_relative_to(path) for each in marked)} == set(roots)
