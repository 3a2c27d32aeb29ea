"""`slipstream completion SHELL`, and what the scripts that it prints run at each Tab.

A script asks `slipstream __complete SHELL WORDS…`, which walks the parser along the words and prints what may follow:
commands, options, their values, and names of streams, consumers, buckets, keys, objects and contexts, which it asks the
server for that the words and the environment name. Each line is a word, a tab and its help. Exit code 10 means that the
shell completes file names itself. A server that does not answer within a second has no names.

Names come from a server that others write to, so none is handed to a shell that could be read as something else: bash
gets them quoted, the other two quote themselves, and names with control characters are left out.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from slipstream.cli.common import Commands, Parser, Shell
from slipstream.errors import Error

if TYPE_CHECKING:
    from slipstream import BlockingJetStream

FILES = 10  # exit code: complete file names
MOST = 1000  # names that are offered
TIMEOUT = "1s"
_SHELLS = ("bash", "zsh", "fish")
_MAKING = ("add", "create", "new")
_MADE = {
    "stream": "STREAM",
    "str": "STREAM",
    "consumer": "CONSUMER",
    "con": "CONSUMER",
    "kv": "BUCKET",
    "object": "BUCKET",
}
_BREAKS = re.compile(r".*[@><=;|&(:]", re.DOTALL)  # where readline begins a new word, unlike a shell
_SAFE = re.compile(r"[\w@%+=:,./~-]+")

_SCRIPTS = {
    "bash": r"""
_slipstream() {
    local IFS=$'\n' found
    found=$("${1/#\~/$HOME}" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ $? -eq 10 ]]; then
        compopt -o default
        COMPREPLY=()
    else
        COMPREPLY=($found)
    fi
}
complete -F _slipstream slipstream
""",
    "zsh": r"""#compdef slipstream
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_slipstream() {
    local found line
    local -a names texts
    found="$("${(Q)words[1]/#\~/$HOME}" __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)"
    if (( $? == 10 )); then
        _files
        return
    fi
    for line in "${(@f)found}"; do
        [[ -n $line ]] || continue
        names+=("${line%%$'\t'*}")
        texts+=("${line/$'\t'/  -- }")
    done
    (( $#names )) || return 1
    if [[ $found == *$'\t'* ]]; then
        compadd -l -d texts -a names
    else
        compadd -a names
    fi
}
compdef _slipstream slipstream
""",
    "fish": r"""
function __slipstream_complete
    set -l words (commandline -opc)
    set -l token (commandline -ct)
    set -l found ($words[1] __complete fish $words[2..-1] -- "$token" 2>/dev/null)
    if test $status -eq 10
        __fish_complete_path "$token"
    else
        printf '%s\n' $found
    end
end
complete -c slipstream -e
complete -c slipstream -f -a '(__slipstream_complete)'
""",
}


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "completion",
        _completion,
        "print a script that completes commands, options and names in a shell",
        examples=(
            '  eval "$(slipstream completion bash)"    # in ~/.bashrc\n'
            '  eval "$(slipstream completion zsh)"     # in ~/.zshrc\n'
            "  slipstream completion fish | source     # in ~/.config/fish/config.fish"
        ),
    )
    parser.add_argument("shell", choices=_SHELLS, metavar="{bash,zsh,fish}")


def _completion(shell: Shell) -> None:
    shell.out.data(_SCRIPTS[shell.options.shell].lstrip("\n").encode())


def complete(root: Parser, arguments: Sequence[str]) -> int:
    """Print what may follow the words of a command line; returns the exit code. Nothing is worth an error here."""
    kind, *words = arguments or ("",)
    if kind == "bash":
        words = _split(words[0] if words else "")[1:]
    elif kind == "fish":
        words = [*words[:-2], words[-1]]  # `--` keeps a token such as -h from being taken for an option of fish
    if not words:
        words = [""]
    position = Position(root, words[:-1])
    found = position.candidates(words[-1])
    if found is None:
        return FILES
    for word, text in found:
        if word.startswith(words[-1]) and word.isprintable():
            sys.stdout.write(_line(kind, word, text, words[-1]))
    return 0


def _split(line: str) -> list[str]:
    """The words of a line that may end within quotes; the last one is empty after a blank."""
    for ending in ("", "'", '"'):
        try:
            words = shlex.split(line + ending)
        except ValueError:
            continue
        return [*words, ""] if not ending and line[-1:].isspace() and not line.endswith("\\ ") else words
    return []


def _line(kind: str, word: str, text: str, typed: str) -> str:
    if kind == "bash":
        found = _BREAKS.match(typed)
        rest = word[found.end() if found else 0 :]
        return (rest if not rest or _SAFE.fullmatch(rest) else shlex.quote(rest)) + "\n"
    return f"{word}\t{text}\n" if text else f"{word}\n"


Candidates = Iterable[tuple[str, str]]


class Position:
    """Where the next word stands: the command, what its options and arguments are so far, and what is expected."""

    def __init__(self, root: Parser, words: Sequence[str]) -> None:
        self._parser = root
        self._path: list[str] = []
        self._values: dict[str, Any] = {}
        self._index = 0
        self._awaiting: argparse.Action | None = None
        self._has_ended = False  # by `--`
        self._is_lost = False  # behind a word that is no command
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        if self._is_lost:
            return
        if self._awaiting is not None:
            self._set(self._awaiting, word)
            self._awaiting = None
        elif word == "--" and not self._has_ended:
            self._has_ended = True
        elif word.startswith("-") and word != "-" and not self._has_ended:
            flag, equals, value = word.partition("=")
            action = self._parser.option(flag)
            if action is not None and equals:
                self._set(action, value)
            elif action is not None and action.nargs != 0:
                self._awaiting = action
            elif action is not None:
                self._values[action.dest] = True
        elif self._parser.has_commands:
            command = self._parser.command(word)
            self._is_lost = command is None
            self._parser = command or self._parser
            self._path.append(word)
        else:
            action = self._parser.positional(self._index)
            if action is not None:
                self._set(action, word)
                self._index += action.nargs not in ("*", "+")

    def _set(self, action: argparse.Action, word: str) -> None:
        try:
            value = action.type(word) if callable(action.type) else word
        except (argparse.ArgumentTypeError, ValueError, Error):
            return
        known = self._values.get(action.dest)
        is_list = isinstance(action.default, list) or action.nargs in ("*", "+")
        self._values[action.dest] = [*(known or []), value] if is_list and not isinstance(value, list) else value

    def candidates(self, typed: str) -> Candidates | None:
        """The words that may stand here, each with its help; None for names of files."""
        if self._awaiting is not None:
            found = self._of(self._awaiting, typed)
            if self._awaiting.nargs == "?" and not found:
                return self._follows(typed)
            return found
        if typed.startswith("-") and "=" in typed and not self._has_ended:
            flag, _, value = typed.partition("=")
            action = self._parser.option(flag)
            found = self._of(action, value) if action is not None else ()
            return None if found is None else [(f"{flag}={word}", text) for word, text in found]
        return self._follows(typed)

    def _follows(self, typed: str) -> Candidates | None:
        if self._is_lost:
            return ()
        if typed.startswith("-") and not self._has_ended:
            return self._parser.long_options()
        if self._parser.has_commands:
            listed = self._parser.in_order()
            names = [(each.name, each.text) for each in listed]
            aliases = [(alias, each.text) for each in listed for alias in each.aliases]
            return names if not typed or any(name.startswith(typed) for name, _ in names) else aliases
        action = self._parser.positional(self._index)
        return self._of(action, typed) if action is not None else ()

    def _of(self, action: argparse.Action, typed: str) -> Candidates | None:
        """The values of an option or argument."""
        words = action.choices or getattr(action.type, "names", None)
        if words:
            return [(str(word), "") for word in words]
        kind = action.metavar if isinstance(action.metavar, str) else ""
        if kind in ("FILE", "DIR", "PATH"):
            return None
        names = _NAMES.get(kind)
        if names is None or (action.option_strings == [] and self._is_new(kind)):
            return ()
        try:
            return [(name, "") for name in islice(names(self, typed), MOST)]
        except (Error, OSError, argparse.ArgumentTypeError):
            return ()

    # Names that a server or the contexts know

    def shell(self) -> Shell:
        """The command as it is so far, with the connection that its options name."""
        values = {"timeout": TIMEOUT, **self._parser.defaults(), **self._values}
        return Shell(argparse.Namespace(**values))

    def value(self, name: str) -> str:
        """An argument that was typed already."""
        return str(self._values.get(name) or "")

    def _is_new(self, kind: str) -> bool:
        """Whether the name is that of something to be made."""
        return len(self._path) == 2 and self._path[1] in _MAKING and _MADE.get(self._path[0]) == kind

    @property
    def is_object(self) -> bool:
        """Whether a bucket is one of objects."""
        return bool(self._path) and self._path[0] in ("object", "obj")


def _server_names(
    ask: Callable[[BlockingJetStream, Position], Iterable[str]],
) -> Callable[[Position, str], Iterable[str]]:
    """Names that a server is asked for."""

    def names(position: Position, _: str) -> Iterable[str]:
        shell = position.shell()
        with shell.connect() as client:
            return sorted(islice(ask(shell.jetstream(client), position), MOST))

    return names


def _buckets(js: BlockingJetStream, position: Position) -> Iterable[str]:
    return js.object_stores() if position.is_object else js.key_values()


def _consumers(js: BlockingJetStream, position: Position) -> Iterable[str]:
    return js.stream(position.value("stream")).consumer_names()


def _objects(js: BlockingJetStream, position: Position) -> Iterable[str]:
    return (info.name for info in js.object_store(position.value("bucket")).list())


def _subjects(js: BlockingJetStream, position: Position) -> Iterable[str]:
    stream = position.value("name") or position.value("stream")
    return js.stream(stream).subjects() if stream else ()


def _keys(position: Position, typed: str) -> Iterable[str]:
    from slipstream.cli.kv.opening import opened

    shell = position.shell()
    prefix = typed.rpartition(".")[0]
    with opened(shell) as kv:
        filters = (f"{prefix}.>",) if prefix and not getattr(shell.options, "codec", None) else ()
        return sorted(islice(kv.keys(*filters), MOST))


def _contexts(_: Position, __: str) -> Iterable[str]:
    from slipstream import Contexts

    return Contexts().names()


# By the metavar, which says what an argument is.
_NAMES: dict[str, Callable[[Position, str], Iterable[str]]] = {
    "BUCKET": _server_names(_buckets),
    "CONSUMER": _server_names(_consumers),
    "CONTEXT": _contexts,
    "KEY": _keys,
    "OBJECT": _server_names(_objects),
    "STREAM": _server_names(lambda js, _: js.stream_names()),
    "SUBJECT": _server_names(_subjects),
}
