"""`slipstream completion SHELL`: a completion script for a shell, generated from the parser itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from slipstream.cli.common import Commands, Parser, Shell

_BASH = """\
_slipstream() {{
    local path="slipstream" word i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        case " ${{_slipstream_words[$path]}} " in *" $word "*) [[ $word == -* ]] || path="$path $word" ;; esac
    done
    COMPREPLY=($(compgen -W "${{_slipstream_words[$path]}}" -- "${{COMP_WORDS[COMP_CWORD]}}"))
    [[ ${{#COMPREPLY[@]}} -gt 0 ]] || COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
declare -A _slipstream_words=(
{table}
)
complete -F _slipstream slipstream
"""


def add(commands: Commands, root: Parser) -> None:
    """Declare the command; `root` is the parser that is completed."""
    parser = commands.add(
        "completion",
        partial(_completion, root),
        "print a script that completes commands and options in a shell",
        examples='  eval "$(slipstream completion bash)"    # in ~/.bashrc; zsh and fish likewise',
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _completion(root: Parser, shell: Shell) -> None:
    words = dict(_walk(root, ()))
    kind = shell.options.shell
    if kind == "fish":
        shell.out.data(_fish(words).encode())
        return
    table = "\n".join(f'    ["{" ".join(("slipstream", *path))}"]="{" ".join(found)}"' for path, found in words.items())
    script = _BASH.format(table=table)
    if kind == "zsh":
        script = "autoload -U +X bashcompinit && bashcompinit\n" + script
    shell.out.data(script.encode())


def _walk(parser: Parser, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Each command's path with the words that may follow it."""
    yield path, parser.words()
    for name, command in parser.commands.items():
        yield from _walk(command, (*path, name))


def _fish(words: dict[tuple[str, ...], list[str]]) -> str:
    lines = ["complete -c slipstream -f"]
    for path, found in words.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path) or "__fish_use_subcommand"
        for word in found:
            kind = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c slipstream -n '{seen}' {kind}")
    return "\n".join(lines) + "\n"
