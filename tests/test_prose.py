"""The words of the source and the documentation: field English, and names of files that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUOTED = {"requirements.md", "proofs.md"}  # statements of the design documents, and names of tests
# A pronoun where the subject has a name, and the old form of error texts ("X must be Y, got Z" is the form).
FOREIGN = re.compile(r"\b(?:nobody|whoever|somebody|anew)\b|\b(?:is|are) allowed\b", re.IGNORECASE)
# Phrases that readers stumbled over, and the words to use instead. In quotation marks they are about themselves.
STUMBLES = {
    r"stood still|stand(?:s|ing)? still|standstill": "stall",
    r"made again|makes? (?:it|them) again": "recreate, rebuild",
    r"\bgo(?:es|ing)? on\b|\bwent on\b": "continue",
    r"\bof (?:its|their) own(?! \w)": "its own X, a separate X",
    r"\bfor ever\b": "forever, permanently",
    r"\bhand(?:s|ed|ing)? over\b": "return, pass",
    r"\b(?:is|are) worth\b": "prove, mean",
    r"\bour server\b": "the Slipstream server",
    r"\bspeaks? (?:for|of)\b": "answer for, refer to",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bin words\b": "explicitly",
    r"\bbelieve[sd]?\b": "trust",
    r"\b(?:is|are) told\b": "get, receive",
    r"\bwhat becomes of\b": "what happens to",
    r"\bwhat (?:is|was) there\b": "name it",
    r"\bso many\b": "this number of, N",
    r"\b(?:is|are) refused\b": "reject",
    r"\bmust be such as\b": "must be like",
    r"\b(?:exists|running|held) already\b": "already exists",
    r"\bnot (?:\w+ )?any more\b": "no longer",
    r"\bmust have --": "requires --",
    r"\bexcludes (?:--|an? )": "are mutually exclusive",
}
ANY_STUMBLE = re.compile("|".join(STUMBLES), re.IGNORECASE)  # one search of each text, for some hundred thousand
# In modules that are being rewritten.
REMAINING = {
    "is damaged; it is made again when used",
    "must be a file of its own, not a link or a directory",
    "stopped; the next run goes on from here",
}
FILES = re.compile(r"`((?:src|tests|tools|examples|benchmarks|docs|client|jetstream|kv|server|spark|wire)/[\w/.]+)`")
SRC = ROOT / "src" / "slipstream"


def lines_of(paths: list[Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_source_and_pages_have_the_english_of_the_field() -> None:
    paths = [*SRC.rglob("*.py"), *(page for page in PAGES if page.name not in QUOTED)]
    assert [f"{where}: {line.strip()}" for where, line in lines_of(paths) if FOREIGN.search(line)] == []


def test_pages_have_none_of_the_phrases_that_readers_stumbled_over() -> None:
    found: list[str] = []
    for page in PAGES:
        if page.name not in QUOTED:
            text = re.sub(r'"[^"\n]*"', '""', page.read_text("utf-8"))
            found += stumbles(page.relative_to(ROOT).as_posix(), " ".join(text.split()))
    assert found == []


def test_messages_have_none_of_the_phrases_that_readers_stumbled_over() -> None:
    """Errors, log lines and help: the strings of the source but for its docstrings."""
    found: list[str] = []
    for path in SRC.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                text = node.value.strip()
                if text not in REMAINING:
                    found += stumbles(f"{path.relative_to(ROOT).as_posix()}:{node.lineno}", text)
    assert found == []


def stumbles(where: str, text: str) -> Iterator[str]:
    if ANY_STUMBLE.search(text) is None:
        return
    for phrase, better in STUMBLES.items():
        for match in re.finditer(phrase, text, re.IGNORECASE):
            near = text[max(0, match.start() - 40) : match.end() + 40]
            yield f"{where}: {near!r}: {match[0]!r} should be: {better}"


def test_phrases_are_found_in_their_forms_and_similar_ones_are_not() -> None:
    assert len(list(stumbles("a", "The reader stood still, and goes on. It is believed."))) == 3
    assert list(stumbles("a", "its own clock, as of its own sequence; the reader continues")) == []


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
