"""The two forms of the package: which one runs, and that a compiled module never runs instead of a newer source."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import slipstream
from slipstream.form import first_difference
from slipstream.wire.parser import Parser
from tools import native

ROOT = Path(__file__).resolve().parent.parent

# Consume a generator expression whole, at once: mypyc makes a list of any other one, so that it is no longer lazy.
EAGER = frozenset((
    "all", "any", "Counter", "dict", "extend", "frozenset", "fromkeys", "join", "list", "max", "min", "next", "set",
    "sorted", "sum", "tuple", "update",
))  # fmt: skip


def python(src: Path, code: str, **environment: str) -> str:
    """What a program prints that runs the package in `src`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
    env |= {"PYTHONPATH": str(src)} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the package with a file in the place of a compiled parser, which no Python can import."""
    src = tmp_path / "src"
    shutil.copytree(
        ROOT / "src" / "slipstream",
        src / "slipstream",
        ignore=shutil.ignore_patterns("__pycache__", "*.so", "native.json", "spark", "cli", "console"),
    )
    (src / "slipstream" / "wire" / f"parser{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    return src


def record(src: Path, *names: str) -> None:
    """Say that the sources were compiled as they are."""
    known = {}
    for name in names:
        data = (src / name).read_bytes()
        known[name] = ((src / name).stat().st_mtime_ns, len(data), hashlib.sha256(data).hexdigest())
    (src / "slipstream" / "native.json").write_text(json.dumps(known), "utf-8")


PARSER = "slipstream/wire/parser.py"
SHOW = "import slipstream; from slipstream.wire import Parser; print(slipstream.__compiled__, Parser.__module__)"


def test_the_attribute_says_which_form_runs() -> None:
    is_function = type(Parser.feed).__name__ == "function"  # a compiled method is a descriptor of C
    assert slipstream.__compiled__ is not is_function


def test_compiled_modules_are_imported_while_their_sources_are_as_they_were(checkout: Path) -> None:
    record(checkout, PARSER)
    with pytest.raises(AssertionError, match="ImportError"):  # it is imported, and is no library
        python(checkout, SHOW)


def test_a_source_that_was_edited_runs_instead_of_its_compiled_module(checkout: Path) -> None:
    record(checkout, PARSER)
    source = checkout / PARSER
    source.write_text(source.read_text("utf-8") + "\n# edited\n", "utf-8")
    shown = python(checkout, SHOW)
    assert shown.startswith("False slipstream.wire.parser\n")
    assert f"RuntimeWarning: {PARSER} has changed since it was compiled, so the pure form runs" in shown


def test_a_source_that_was_removed_counts_as_changed(checkout: Path) -> None:
    record(checkout, PARSER, "slipstream/version.py")
    (checkout / "slipstream" / "version.py").unlink()
    assert python(checkout, SHOW).startswith("False ")


def test_a_source_that_was_written_again_with_the_same_bytes_counts_as_unchanged(checkout: Path) -> None:
    record(checkout, PARSER)
    os.utime(checkout / PARSER, ns=(1, 1))
    assert first_difference(checkout / "slipstream" / "native.json") == ""


def test_the_environment_can_ask_for_the_pure_form(checkout: Path) -> None:
    record(checkout, PARSER)
    assert python(checkout, SHOW, SLIPSTREAM_PURE="1") == "False slipstream.wire.parser\n"


def test_the_environment_can_ask_for_the_pure_form_of_a_wheel(checkout: Path) -> None:
    assert python(checkout, SHOW, SLIPSTREAM_PURE="1") == "False slipstream.wire.parser\n"


def test_the_version_names_the_form() -> None:
    form = "compiled" if slipstream.__compiled__ else "pure Python"
    command = [sys.executable, "-m", "slipstream", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown == f"slipstream {slipstream.__version__} ({form})\n"


def test_a_change_of_any_imported_source_is_another_build(checkout: Path) -> None:
    sources = native.sources_of(checkout)
    assert Path("slipstream/errors.py") in sources  # not compiled, but what compiled code knows of it matters
    before = native.digest(checkout, sources)
    assert native.digest(checkout, sources) == before
    errors = checkout / "slipstream" / "errors.py"
    errors.write_text(errors.read_text("utf-8") + "\n", "utf-8")
    assert native.digest(checkout, sources) != before


def test_compiled_modules_are_removed(checkout: Path) -> None:
    record(checkout, PARSER)
    assert native.compiled_in(checkout)
    native.remove(checkout)
    assert native.compiled_in(checkout) == []
    assert not (checkout / "slipstream" / "native.json").exists()
    assert python(checkout, SHOW) == "False slipstream.wire.parser\n"


def test_a_machine_without_a_compiler_is_told_in_one_line() -> None:
    command = [sys.executable, str(ROOT / "tools" / "native.py"), "build"]
    env = {**os.environ, "CC": "no-such-compiler"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert done.stderr == (
        "the compiled form is not built: no C compiler (no-such-compiler) is installed (Debian: apt install gcc)\n"
    )


def lazy(path: Path) -> list[int]:
    """Lines of a source with a generator expression that mypyc would evaluate at once."""
    tree = ast.parse(path.read_text("utf-8"))
    eager: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            eager.update(node.args[:1] if name in EAGER else ())
        if isinstance(node, ast.Starred | ast.AugAssign):
            eager.add(node.value)
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.GeneratorExp) and node not in eager]


def test_no_compiled_module_depends_on_a_lazy_generator_expression() -> None:
    """mypyc makes a list of it: what should stop early would go through a whole stream. Write a generator function,
    or use `filter`."""
    found = [f"{path}:{line}" for path in native.files_of() for line in lazy(native.SRC / path)]
    assert found == []


def test_no_compiled_class_has_keywords() -> None:
    """mypyc drops them without a word: a msgspec structure would lose `frozen`, `array_like`, `rename`. A default that
    is a `msgspec.field` is no value of its type, which compiled code checks."""
    found = []
    for path in native.files_of():
        for node in ast.walk(ast.parse((native.SRC / path).read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.keywords:
                found.append(f"{path}:{node.lineno}: class {node.name} has keywords")
            if isinstance(node, ast.Attribute) and node.attr == "field" and ast.unparse(node) == "msgspec.field":
                found.append(f"{path}:{node.lineno}: msgspec.field")
    assert found == []


def test_no_compiled_module_keeps_weak_references() -> None:
    """Compiled classes have none."""
    files = [path for path in native.files_of() if "weakref" in (native.SRC / path).read_text("utf-8")]
    assert files == []


def test_no_compiled_attribute_is_a_keyword_of_c() -> None:
    """mypyc puts an underscore before the name of an attribute: `_real` becomes `__real`, a keyword of GCC."""
    keywords = {"_real", "_imag", "_complex", "_inline", "_const", "_signed", "_volatile", "_attribute", "_thread"}
    found = [
        f"{path}:{node.lineno}: {node.attr}"
        for path in native.files_of()
        for node in ast.walk(ast.parse((native.SRC / path).read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in keywords
    ]
    assert found == []


def test_a_module_that_is_to_be_compiled_but_is_gone_is_named(checkout: Path) -> None:
    (checkout / PARSER).unlink()
    with pytest.raises(FileNotFoundError, match=r"parser\.py is to be compiled, but does not exist"):
        native.files_of(checkout)
