"""Generator of the blocking twins: `_sync/x.py` from `_async/x.py`, drivers and tests alike, token by token.

Twins are never edited by hand.

The rewriting works on tokens, so a word in a string or a comment is never taken for code. Code without a blocking form
(`asyncio.…`, AsyncGenerator, a coroutine that is created in one place and awaited in another) is an error with its line
instead of wrong code. Lines between `# unasync: off` and `# unasync: on` are left out of the twin. In docstrings the
same words are rewritten as text.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from tokenize import TokenInfo
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Twins that are written by hand, because threads and sockets are not asyncio with the `await`s left out.
BY_HAND = (
    "src/slipstream/client/_async/",
    "src/slipstream/kv/_async/runtime.py",
    "tests/_async/",
    "tests/client/_async/",
)


def find_pairs(root: Path) -> tuple[tuple[str, str], ...]:
    """Each source below an `_async` folder, with the path of its twin: the same name below `_sync`."""
    sources = sorted(
        path.relative_to(root).as_posix() for top in ("src", "tests") for path in (root / top).rglob("_async/*.py")
    )
    return tuple((name, name.replace("/_async/", "/_sync/")) for name in sources if not name.startswith(BY_HAND))


PAIRS = find_pairs(ROOT)

NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncExitStack": "ExitStack",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "aclose": "close",
    "aclosing": "closing",
    "aiter": "iter",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
    "enter_async_context": "enter_context",
}
# What `slipstream` exports for both drivers under two names; a twin imports its own `as` the other, so that its code
# reads the same.
EXPORTS = {
    "Client": "BlockingClient",
    "JetStream": "BlockingJetStream",
    "KeyValue": "BlockingKeyValue",
    "connect": "connect_blocking",
}
UNSUPPORTED = {
    "__await__": "an awaitable object has no blocking twin",
    "AsyncGenerator": "its parameters differ from Generator's: use AsyncIterator",
    "Awaitable": "it has no blocking twin",
    "Coroutine": "it has no blocking twin",
    "asyncio": "it has no blocking twin: keep it between `# unasync: off` and `# unasync: on`",
}
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENCODING}
_NOT_IN_FSTRING = re.compile(r"\b(?:async|await|_async|" + "|".join([*NAMES, *UNSUPPORTED]) + r")\b")
_DOC_NAMES = re.compile(r"\b(?:" + "|".join(NAMES) + r")\b")


class UnasyncError(Exception):
    """The source holds something that cannot be turned into blocking code."""


class Edit(NamedTuple):
    start: tuple[int, int]  # line from 1, column from 0, as tokens count
    end: tuple[int, int]
    text: str


def tokens_of(source: str) -> list[TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(source).readline))


def without_marked_lines(source: str) -> str:
    """Drop the lines from each `# unasync: off` to its `# unasync: on`, both included; keep all line numbers.

    Dropped lines become empty ones, so that an error names the line of the source file; the formatter removes them.
    """
    lines = io.StringIO(source).readlines()  # as tokenize counts them: splitlines() knows more line ends
    off = 0
    for token in tokens_of(source):
        word = token.string.removeprefix("# unasync:").strip() if token.type == tokenize.COMMENT else ""
        if not token.string.startswith("# unasync:") or token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if word not in ("off", "on") or bool(off) == (word == "off") or lines[line - 1].strip() != token.string:
            raise UnasyncError(f"line {line}: {token.string!r}: off and on stand alone on their lines, in pairs")
        if word == "off":
            off = line
        else:
            lines[off - 1 : line] = ["\n"] * (line - off + 1)
            off = 0
    if off:
        raise UnasyncError(f"line {off}: `# unasync: off` is never turned on again")
    return "".join(lines)


def docstring(text: str) -> str:
    """The words of a docstring (or an example in it) as they are in the blocking twin."""
    text = re.sub(r"\b([Aa])n asyncio\b", r"\1 blocking", text)
    text = re.sub(r"\basyncio\b", "blocking", text)
    text = re.sub(r"\bAsyncio\b", "Blocking", text)
    text = re.sub(r"\bawait (?=\S)", "", text)
    text = re.sub(r"\basync (?=(?:with|for|def)\b)", "", text)
    text = re.sub(r"\b_async\b", "_sync", text)
    return _DOC_NAMES.sub(lambda match: NAMES[match[0]], text)


def logical_lines(tokens: Sequence[TokenInfo]) -> Iterator[list[TokenInfo]]:
    """The significant tokens of each statement line."""
    line: list[TokenInfo] = []
    for token in tokens:
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if line:
                yield line
            line = []
        elif token.type not in _LAYOUT:
            line.append(token)


def rewrite_name(line: Sequence[TokenInfo], index: int) -> Edit | None:
    """The edit that one name of a statement needs, if any."""
    token, word = line[index], line[index].string
    after = line[index + 1] if index + 1 < len(line) else None
    if word in UNSUPPORTED:
        raise UnasyncError(f"line {token.start[0]}: {word}: {UNSUPPORTED[word]}")
    if word in ("async", "await") and after is not None:
        if word == "await":
            check_awaited(line, index + 1)
        # With the gap behind it, unless the next token is on another line.
        same_line = after.start[0] == token.end[0]
        return Edit(token.start, after.start if same_line else token.end, "")
    if word == "_async" and line[0].string in ("import", "from"):
        return Edit(token.start, token.end, "_sync")
    return Edit(token.start, token.end, NAMES[word]) if word in NAMES else None


def check_awaited(line: Sequence[TokenInfo], index: int) -> None:
    """Reject an awaited name that is not called there: the blocking call would run where the coroutine was created."""
    first, at = line[index], index
    if first.type != tokenize.NAME or first.string == "await":
        return
    while at + 2 < len(line) and line[at + 1].string == "." and line[at + 2].type == tokenize.NAME:
        at += 2
    if at + 1 >= len(line) or line[at + 1].string not in ("(", "["):
        shown = "".join(token.string for token in line[index : at + 1])
        raise UnasyncError(f"line {first.start[0]}: await {shown}: call it here, not where the coroutine was created")


def rewrite_exports(line: Sequence[TokenInfo]) -> Iterator[Edit]:
    """The edits of `from slipstream import …`."""
    for index, token in enumerate(line[3:], start=3):
        if token.type == tokenize.NAME and token.string in EXPORTS and line[index - 1].string != "as":
            is_renamed = index + 1 < len(line) and line[index + 1].string == "as"
            alias = "" if is_renamed else f" as {token.string}"
            yield Edit(token.start, token.end, EXPORTS[token.string] + alias)


def edits_of(line: Sequence[TokenInfo]) -> Iterator[Edit]:
    """Everything that changes in one statement."""
    if [token.string for token in line[:3]] == ["from", "slipstream", "import"]:
        yield from rewrite_exports(line)
        return
    if [token.string for token in line] == ["import", "asyncio"]:  # what used it is gone, or an error of its own
        yield Edit(line[0].start, line[-1].end, "")
        return
    if len(line) == 1 and line[0].type == tokenize.STRING:
        yield Edit(line[0].start, line[0].end, docstring(line[0].string))
        return
    depth = 0
    for index, token in enumerate(line):
        name = tokenize.tok_name[token.type]
        depth += (name == "FSTRING_START") - (name == "FSTRING_END")
        old_fstring = token.type == tokenize.STRING and "f" in re.split("[\"']", token.string, maxsplit=1)[0].lower()
        if (old_fstring or depth) and (bad := _NOT_IN_FSTRING.search(token.string)):
            # Python 3.11 has no tokens inside an f-string; the same text must come out of every version.
            raise UnasyncError(f"line {token.start[0]}: {bad[0]!r} inside an f-string: give it a name outside first")
        if token.type == tokenize.NAME and (edit := rewrite_name(line, index)):
            yield edit


def apply_edits(source: str, edits: Sequence[Edit]) -> str:
    lines = io.StringIO(source).readlines()  # as tokenize counts them: splitlines() knows more line ends
    for start, end, text in sorted(edits, reverse=True):  # from the end, so that positions stay true
        head, tail = lines[start[0] - 1][: start[1]], lines[end[0] - 1][end[1] :]
        lines[start[0] - 1 : end[0]] = [head + text + tail]
    return "".join(lines)


def rewrite(source: str) -> str:
    """The blocking twin of an async module, before formatting."""
    source = without_marked_lines(source)
    return apply_edits(source, [edit for line in logical_lines(tokens_of(source)) for edit in edits_of(line)])


def ruff(text: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        raise UnasyncError(f"ruff {arguments[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def generate(source: str, *, name: str, target: str) -> str:
    """The text of the blocking file `target` for the async file `name`."""
    header = f"# Generated by tools/unasync.py from {name}: do not edit this file.\n"
    text = header + rewrite(source)
    # Names change, so imports sort differently; what only the dropped lines used is no longer imported.
    text = ruff(text, "check", "--quiet", "--select", "I,F401", "--fix", "--stdin-filename", target)
    return ruff(text, "format", "--quiet", "--stdin-filename", target)


def stale(root: Path, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[Path, str]]:
    """The targets that are not what their sources say, with what they should hold."""
    for name, target in pairs:
        source, path = root / name, root / target
        if not source.exists():
            continue
        try:
            text = generate(source.read_text("utf-8"), name=name, target=target)
        except (UnasyncError, tokenize.TokenError, SyntaxError) as exc:
            raise UnasyncError(f"{name}: {exc}") from exc
        if not path.exists() or path.read_text("utf-8") != text:
            yield path, text


def main(argv: Sequence[str] | None = None, *, root: Path = ROOT, pairs: Sequence[tuple[str, str]] = PAIRS) -> int:
    options = argparse.ArgumentParser(description="Generate the blocking twins of asyncio drivers and tests.")
    options.add_argument("--check", action="store_true", help="write nothing; fail if a twin is stale")
    check: bool = options.parse_args(argv).check
    try:
        found = list(stale(root, pairs))
    except UnasyncError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    for path, text in found:
        shown = path.relative_to(root).as_posix()
        if check:
            print(f"stale: {shown} (run: python tools/unasync.py)", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            print(f"wrote {shown}")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
