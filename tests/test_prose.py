"""The words of the source and the documentation: field English, and names of files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUOTED = {"requirements.md", "proofs.md"}  # statements of the design documents, and names of tests
# A pronoun where the subject has a name, and the old form of error texts ("X must be Y, got Z" is the form).
FOREIGN = re.compile(r"\b(?:nobody|whoever|somebody|anew)\b|\b(?:is|are) allowed\b", re.IGNORECASE)
FILES = re.compile(r"`((?:src|tests|tools|examples|benchmarks|docs|client|jetstream|kv|server|spark|wire)/[\w/.]+)`")
SRC = ROOT / "src" / "slipstream"


def lines_of(paths: list[Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_source_and_pages_have_the_english_of_the_field() -> None:
    paths = [*SRC.rglob("*.py"), *(page for page in PAGES if page.name not in QUOTED)]
    assert [f"{where}: {line.strip()}" for where, line in lines_of(paths) if FOREIGN.search(line)] == []


def test_files_that_the_pages_name_exist() -> None:
    named = [
        (where, name)
        for where, line in lines_of([page for page in PAGES if page.name not in QUOTED])
        for name in FILES.findall(line)
    ]
    assert len(named) > 20
    roots = (ROOT, SRC, SRC / "server")
    assert [item for item in named if not any((root / item[1]).exists() for root in roots)] == []


def test_functions_that_the_walks_name_exist() -> None:
    """Each step of `docs/design/walks.md` is a function: a dotted path, or one of the module named before it."""
    names = re.findall(r"^\d+\. (`.*?):", (ROOT / "docs/design/walks.md").read_text("utf-8"), re.MULTILINE)
    steps = [name.strip("`") for line in names for name in re.findall(r"`[\w.]+`", line)]
    assert len(steps) > 60
    missing = [step for step in steps if "." in step and "." in step.partition(".")[2] and not _exists(step)]
    assert missing == []


def _exists(step: str) -> bool:
    """Whether the source has the function; modules may have been named by the end of their path."""
    parts = step.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        paths = [*SRC.glob("/".join(parts[:cut]) + ".py"), *SRC.glob("**/" + "/".join(parts[:cut]) + ".py")]
        for path in paths:
            text = path.read_text("utf-8")
            if all(re.search(rf"\b(?:class|def) {re.escape(name)}\b", text) for name in parts[cut:]):
                return True
    return False
