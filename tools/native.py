"""Compiles the hot modules with mypyc: the compiled form, from the same source as the pure one.

`python tools/native.py build` copies `src` to `build/native-3/src`, compiles the modules of `PATTERNS` there and prints
that directory: with it on PYTHONPATH the compiled form runs, and `src` stays pure. `install` puts the compiled modules
beside their sources (`make native`), `remove` takes them away again. `hatch_native.py` puts them into a wheel.

Invariant: a compiled module never runs instead of a newer source. A build is known by the digest of every source that
it was made from, and is made again when the digest differs; modules in `src` come with a list of their sources
(`slipstream/native.json`), which `slipstream.form` compares before it lets one of them be imported.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PACKAGE = "slipstream"
GROUP = "slipstream.native"  # the library that all compiled modules share is slipstream/native__mypyc
RECORD = "native.json"
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))

# What is compiled: the code that runs for each message. Left out are configurations and what Spark pickles (a native
# class cannot be), coroutines (as quick interpreted), code that runs once per connection or API request, and what takes
# the arguments of programs: those may be anything, and compiled code raises a TypeError before they are looked at.
# Of store/lmdb also what runs once per group (the store and its environment), and what reads damaged files.
PATTERNS = (
    "wire/{encode,frame_runs,parser,router,subject_set,subjects}.py",
    "client/{mailbox,outgoing,raw_columns,raw_scanner,requests,session,subscriptions}.py",
    "jetstream/publish/{ack_window,bulk_window}.py",
    "jetstream/reads/columns.py",
    "server/engine/{engine,jobs,journal,ports,timers}.py",
    "server/engine/core/{output,routing,session}.py",
    "server/engine/consumers/{ack_handling,ack_router,consumer,cursor,deliver_policy,delivery_state,filters,job}.py",
    "server/engine/consumers/{outbound,persistence,pull,push,registry,retention,timing}.py",
    "server/engine/reads/{direct_get,frozen_log,replicas}.py",
    "server/engine/streams/{atomic_batches,dedupe,expiry,fast_batches,publish_checks,publish_headers}.py",
    "server/engine/streams/{stream,stream_time,subject_limits}.py",
    "server/store/change_log.py",
    "server/store/lmdb/{expiry,jobs,log,proof,reader,records,segments,snapshot,view}.py",
    "server/store/memory/{index,log,snapshot,store}.py",
)

MYPY = """\
[mypy]
python_version = 3.11
namespace_packages = True
explicit_package_bases = True
ignore_missing_imports = True
follow_imports = silent
"""

SCRIPT = Path(__file__).with_name("mypyc_build.py")


class NoCompilerError(Exception):
    """The compiled form cannot be built on this machine."""


def files_of(src: Path = SRC) -> list[Path]:
    """The sources that are compiled, relative to `src`."""
    found = []
    for pattern in PATTERNS:
        before, _, rest = pattern.partition("{")
        names, _, after = rest.partition("}")
        found += [Path(PACKAGE) / f"{before}{name}{after}" for name in names.split(",")]
    missing = [path for path in found if not (src / path).is_file()]
    if missing:
        raise FileNotFoundError(f"{missing[0]} is to be compiled, but does not exist")
    return sorted(found)


def sources_of(src: Path = SRC) -> list[Path]:
    """What the compiled code depends on: the sources that are compiled and all that they import, relative to `src`."""
    seen: set[Path] = set()
    waiting = list(files_of(src))
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _imports(src, path)
    return sorted(seen)


def _imports(src: Path, path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse((src / path).read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.partition(".")[0] == PACKAGE:
                file = Path(*name.split("."))
                for candidate in (file.with_suffix(".py"), file / "__init__.py"):
                    if (src / candidate).is_file():
                        yield candidate


def digest(src: Path, sources: Iterable[Path], *more: str) -> str:
    """The name of a build: what it is made of, and with what."""
    state = hashlib.sha256(
        repr((sys.version, SUFFIX, version("mypy"), SCRIPT.read_text("utf-8"), MYPY, files_of(src), more)).encode()
    )
    for path in sources:
        state.update(f"{path.as_posix()}\0".encode())
        state.update(hashlib.sha256((src / path).read_bytes()).digest())
    return state.hexdigest()


def compiler() -> str:
    """The C compiler; raises a NoCompilerError that says what is missing."""
    command = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    name = command.split()[0]
    if shutil.which(name) is None:
        raise NoCompilerError(f"no C compiler ({name}) is installed (Debian: apt install gcc)")
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        raise NoCompilerError(f"{include} has no Python.h (Debian: apt install python3-dev)")
    return name


def build(directory: Path, *, src: Path = SRC, level: str = "3") -> Path:
    """Bring the compiled form in `directory/src` up to date, and return that path. Builds beside one another wait."""
    compiler()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        return _build(directory, src, level)


def _build(directory: Path, src: Path, level: str) -> Path:
    target = directory / "src"
    sources = sources_of(src)
    name = digest(src, sources, level)
    stamp = directory / "digest"
    is_current = stamp.is_file() and stamp.read_text("utf-8") == name
    if not is_current:
        stamp.unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)
    _copy(src, target)
    if is_current:
        return target
    (directory / "mypy.ini").write_text(MYPY, "utf-8")
    made = directory / f"c{level}"
    (made / "objects").mkdir(parents=True, exist_ok=True)
    files = [path.as_posix() for path in files_of(src)]
    print(f"compiling {len(files)} modules into {directory}; this takes some minutes, once", file=sys.stderr)
    environment = {**os.environ, "PYTHONPATH": "", "MYPYPATH": ""}
    subprocess.run(  # what mypyc and the compiler say must not be taken for the directory that `main` prints
        [sys.executable, str(SCRIPT), level, GROUP, f"../{made.name}", *files],
        cwd=target,
        env=environment,
        stdout=sys.stderr,
        check=True,
    )
    stamp.write_text(name, "utf-8")
    return target


def _copy(src: Path, target: Path) -> None:
    """Make the sources in `target` those of `src`, without compiled modules of `src`."""
    wanted = {path.relative_to(src) for path in src.rglob("*") if path.is_file() and _is_source(path)}
    if target.is_dir():
        for path in list(target.rglob("*")):
            if path.is_file() and _is_source(path) and path.relative_to(target) not in wanted:
                path.unlink()
    for path in wanted:
        data, there = (src / path).read_bytes(), target / path
        if not there.is_file() or there.read_bytes() != data:
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(data)


def _is_source(path: Path) -> bool:
    return path.suffix not in (".pyc", ".so", ".pyd") and path.name != RECORD and "__pycache__" not in path.parts


def compiled_in(src: Path) -> list[Path]:
    """Compiled modules of any Python below `src`, relative to it."""
    return sorted(path.relative_to(src) for kind in ("*.so", "*.pyd") for path in (src / PACKAGE).rglob(kind))


def install(directory: Path, *, src: Path = SRC, level: str = "3") -> None:
    """Put the compiled modules beside their sources."""
    built = build(directory, src=src, level=level)
    remove(src)
    record = {}
    for path in sources_of(built):  # as they were compiled: one that is edited meanwhile is no longer that
        data = (built / path).read_bytes()
        there = os.stat(src / path)
        same = (src / path).read_bytes() == data
        record[path.as_posix()] = (there.st_mtime_ns if same else 0, len(data), hashlib.sha256(data).hexdigest())
    (src / PACKAGE / RECORD).write_text(json.dumps(record, indent=0), "utf-8")  # first: modules without it are trusted
    for path in compiled_in(built):
        shutil.copy2(built / path, src / path)


def remove(src: Path = SRC) -> None:
    """Take compiled modules away."""
    for path in compiled_in(src):
        (src / path).unlink()  # a process that runs keeps the file that it has
    (src / PACKAGE / RECORD).unlink(missing_ok=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compile the hot modules with mypyc.")
    parser.add_argument("action", choices=("build", "install", "remove"))
    parser.add_argument("--level", default="3", choices=("0", "1", "2", "3"), help="of the C compiler's optimisation")
    parser.add_argument("--directory", type=Path, help="default: build/native-LEVEL")
    arguments = parser.parse_args()
    directory = arguments.directory or ROOT / "build" / f"native-{arguments.level}"
    try:
        if arguments.action == "remove":
            remove()
        elif arguments.action == "install":
            install(directory, level=arguments.level)
        else:
            print(build(directory, level=arguments.level))
    except NoCompilerError as error:
        print(f"the compiled form is not built: {error}", file=sys.stderr)
        return 3
    except subprocess.CalledProcessError:
        print("error: the compiled form could not be built", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
