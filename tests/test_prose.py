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
