"""Shared parts of all commands: connection options and their sources, and the declaration of commands.

For the connection, an option goes before an environment variable, and both go before the context. The context that is
selected is left alone when a server is named: its credentials are for another one.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from slipstream import ClientOptions, Context, Contexts
from slipstream.cli import values
from slipstream.cli.exit_codes import USAGE
from slipstream.cli.output import Output
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream import BlockingClient, BlockingJetStream

Run = Callable[["Shell"], int | None]  # an exit code; None is success

# Titles of groups of options that many commands share.
BUCKET, CONNECTION = "bucket", "connection"
_MOST_IN_USAGE = 10  # options that the usage line spells out
# Connection options in the help of each command; that of `slipstream` itself has all of them.
_USUAL = ("-s", "--context", "--timeout", "--json")


class Shell:
    """The context of a running command: its options, its output, its connection."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Output = Output(json=getattr(options, "json", False))

    @cached_property
    def context(self) -> Context:
        """The context that applies; an empty one if none does."""
        name = self._value_of("context", "NATS_CONTEXT")
        if name:
            return Contexts().load(name)
        selected = Contexts().selected
        if selected and not self._option("servers"):
            return Contexts().load(selected)
        return Context(name="")

    @property
    def timeout(self) -> float:
        """For each wait."""
        text = self._option("timeout")
        return values.seconds(text) if text else ClientOptions().waits.timeout

    def connect(self) -> BlockingClient:
        """Open the connection; the command closes it."""
        from slipstream import connect_blocking

        return connect_blocking(**self.connect_arguments())

    def connect_arguments(self) -> dict[str, Any]:
        """The arguments of `connect`."""
        arguments = ClientOptions.merge(self.context.arguments(), self._arguments())
        return {"name": "slipstream", **arguments, "timeout": self.timeout}

    def _arguments(self) -> dict[str, Any]:
        """The arguments of `connect` that flags and the environment set."""
        found: dict[str, Any] = {}
        for name, setting in ClientOptions.settings().items():
            if value := self._option(name):
                is_time = setting.metavar == "DURATION"
                found[name] = Path(value) if setting.is_file else values.seconds(value) if is_time else value
        if "servers" in found:
            found["servers"] = values.names(found["servers"])
        return ClientOptions.with_one_login(found)

    def jetstream(self, client: BlockingClient) -> BlockingJetStream:
        """JetStream where the options and the context say it is."""
        return client.jetstream(**self.jetstream_arguments())

    def jetstream_arguments(self) -> dict[str, Any]:
        """The arguments of `jetstream`."""
        prefix = self._value_of("js_api_prefix", "") or self.context.jetstream_api_prefix
        domain = self._value_of("js_domain", "") or ("" if prefix else self.context.jetstream_domain)
        return {"prefix": prefix, "domain": domain, "timeout": self.timeout}

    def confirm(self, question: str) -> None:
        """Ask before something is lost, unless --force is set; raises UsageError if the answer is not yes."""
        if self.options.force:
            return
        if not sys.stdin.isatty():
            raise UsageError(f"{question} stdin is not a terminal; pass --force to skip the confirmation")
        self.out.note(f"{question} [y/N]")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("aborted")

    def _option(self, name: str) -> str:
        """The value of an option of `connect`: of its flag, or of its environment variable."""
        setting = ClientOptions.settings()[name]
        return self._value_of(setting.flag.lstrip("-").replace("-", "_"), setting.variable)

    def _value_of(self, option: str, variable: str) -> str:
        value: str = getattr(self.options, option, None) or (os.environ.get(variable, "") if variable else "")
        return value


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help whose usage line spells out the command's own arguments, and only names the groups of shared options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Add the usage line."""
        own: list[argparse.Action] = []
        others: dict[str, argparse.Action] = {}
        for action in actions:
            title = getattr(action, "container", None) and action.container.title
            if title in (CONNECTION, BUCKET):
                others[title] = argparse.Action([f"{title} options"], dest="", nargs=0)
            elif isinstance(action.choices, dict):  # commands, which `Parser.format_help` lists itself
                own.append(argparse.Action([], dest="", metavar="COMMAND ..."))
            else:
                own.append(action)
        named = [others[title] for title in (BUCKET, CONNECTION) if title in others]
        if sum(1 for action in own if action.option_strings) > _MOST_IN_USAGE:
            own = [action for action in own if not action.option_strings]
            named.insert(0, argparse.Action(["options"], dest="", nargs=0))
            groups = []
        super().add_usage(usage, [*own, *named], groups, prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):  # --allow-direct, --no-allow-direct
            return f"--[no-]{action.option_strings[0][2:]}"
        return super()._format_action_invocation(action)


class Listed(NamedTuple):
    """A command in the help of the one above it."""

    section: str
    name: str
    aliases: tuple[str, ...]
    text: str


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that can list its options and commands, which argparse has no public way to do.

    Its commands may be declared late, when one of their names is parsed or all of them are listed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.listed: list[Listed] = []
        self.usage_code = USAGE
        self._subparsers_action: argparse.Action | None = None
        self._undeclared: dict[Callable[[], None], Sequence[str]] = {}
        self._order: list[str] = []

    def add_subparsers(self, **kwargs: Any) -> Any:
        self._subparsers_action = action = super().add_subparsers(help=argparse.SUPPRESS, **kwargs)
        return action

    def declare_late(self, names: Sequence[str], declare: Callable[[], None]) -> None:
        """Call `declare`, which declares the commands of these names, not before they are needed."""
        self._undeclared[declare] = names
        self._order += names

    def _declare(self, name: str | None = None) -> None:
        """Declare the command of this name, and those declared with it; without a name all of them."""
        for declare, names in list(self._undeclared.items()):
            if name is None or name in names:
                del self._undeclared[declare]
                declare()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; one that is not known is an error of the command it was passed to."""
        words = list(sys.argv[1:] if args is None else args)
        options, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self._command_in(words).reject(unknown)
        return options

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse what is known. Options may stand between the arguments: `pub SUBJECT --count 3 BODY`.

        argparse settles an optional argument at the first option, and has none left for a word behind it.
        """
        words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(words if self.has_commands else self._options_first(words), namespace)

    def _options_first(self, words: Sequence[str]) -> list[str]:
        options: list[str] = []
        bare: list[str] = []  # options without the value that they may have: a word behind them would be taken for it
        others: list[str] = []
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                return [*options, *others, *bare, "--", *left]
            if not word.startswith("-") or word == "-" or _is_number(word):
                others.append(word)
                continue
            action = self.option(word)
            takes = action is not None and action.nargs != 0
            if takes and left and (not left[0].startswith("-") or _is_number(left[0]) or left[0] == "-"):
                options += [word, left.pop(0)]
            else:
                (bare if action is not None and action.nargs == "?" else options).append(word)
        return [*options, *others, *bare]

    def _command_in(self, words: Sequence[str]) -> Parser:
        """The command that the words name: the last one that is known below the one before."""
        parser = self
        for word in words:
            parser = parser.commands.get(word, parser)
        return parser

    def reject(self, unknown: Sequence[str]) -> NoReturn:
        """Exit because of arguments that this command does not take."""
        word = unknown[0]
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        flag = word.partition("=")[0]
        options = [option for action in self._actions for option in action.option_strings]
        self.error(f"unknown option {flag}{_suggestion(flag, options)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action is self._subparsers_action:
            self._declare(value)
            if value not in (action.choices or ()):
                self.error(f"unknown command {value!r}{_suggestion(value, list(self.commands))}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Exit with the mistake and where to read more, instead of the whole usage."""
        self.exit(self.usage_code, f"slipstream: error: {message} ({self.prog} --help)\n")

    def format_help(self) -> str:
        """The help, with what is particular to the command first and the connection last."""
        self._declare()
        self._action_groups.sort(key=lambda group: group.title == CONNECTION)
        own = self.description
        wrapped = textwrap.fill(own, max(shutil.get_terminal_size().columns - 2, 20)) if own else ""
        self.description = "\n\n".join(text for text in (wrapped, self._format_commands()) if text)
        try:
            return super().format_help()
        finally:
            self.description = own

    def _format_commands(self) -> str:
        """The commands below this one, by section."""
        formatter = HelpFormatter(self.prog)
        listed = self.in_order()
        for section in dict.fromkeys(each.section for each in listed):
            formatter.start_section(section)
            for each in listed:
                if each.section == section:
                    names = each.name + (f" ({', '.join(each.aliases)})" if each.aliases else "")
                    formatter.add_argument(argparse.Action([], dest="", metavar=names, help=each.text))
            formatter.end_section()
        return formatter.format_help().rstrip("\n")

    def in_order(self) -> list[Listed]:
        """The commands below this one, in the order of the help."""
        self._declare()
        order = {name: at for at, name in enumerate(self._order)}
        return sorted(self.listed, key=lambda each: order.get(each.name, len(order)))

    @property
    def commands(self) -> dict[str, Parser]:
        """The commands below this one, by name, aliases included."""
        self._declare()
        return self._declared()

    def _declared(self) -> dict[str, Parser]:
        action = self._subparsers_action
        choices = action.choices if action is not None else None
        return dict(choices) if isinstance(choices, dict) else {}

    @property
    def has_commands(self) -> bool:
        """Whether the next word is a command."""
        return self._subparsers_action is not None

    def command(self, name: str) -> Parser | None:
        """The command of this name, without declaring the others."""
        self._declare(name)
        return self._declared().get(name)

    def option(self, flag: str) -> argparse.Action | None:
        """The option of this flag."""
        return self._option_string_actions.get(flag)

    def long_options(self) -> list[tuple[str, str]]:
        """The long options of this command, each with its help."""
        texts = [(flag, action.help) for flag, action in self._option_string_actions.items() if flag.startswith("--")]
        return [(flag, "" if text in (None, argparse.SUPPRESS) else str(text)) for flag, text in texts]

    def positional(self, index: int) -> argparse.Action | None:
        """The argument at this index; the last one repeats if it takes several words."""
        found = [action for action in self._get_positional_actions() if action is not self._subparsers_action]
        if index < len(found):
            return found[index]
        return found[-1] if found and found[-1].nargs in ("*", "+") else None

    def defaults(self) -> dict[str, Any]:
        """The options of this command as they are when none is passed."""
        return {
            action.dest: action.default
            for action in self._actions
            if action.dest != argparse.SUPPRESS and action.default != argparse.SUPPRESS
        }


def _is_number(word: str) -> bool:
    return word[1:2].isdigit() and word[1:].replace(".", "", 1).isdigit()


def _suggestion(word: str, known: Sequence[str]) -> str:
    """The known word that a mistyped one is most like, as a question; empty if none is."""
    found = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {found[0]!r}?" if found else ""


class Commands:
    """Declares commands, at the top or below another one. `shared` are the options that every one of them takes.

    `listed` takes what the help of the command above says of them, by section.
    """

    def __init__(
        self, parsers: Any, shared: argparse.ArgumentParser, listed: list[Listed] | None = None, section: str = ""
    ) -> None:
        self._parsers = parsers
        self._shared = shared
        self._listed = [] if listed is None else listed
        self._section = section or "commands"

    def section(self, title: str) -> Commands:
        """The same, for commands that are listed in this section of the help."""
        return Commands(self._parsers, self._shared, self._listed, title)

    def add(self, name: str, run: Run, text: str, *, aliases: tuple[str, ...] = (), examples: str = "") -> Parser:
        """Declare a command. `examples` are shown below its options."""
        parser: Parser = self._parsers.add_parser(
            name,
            aliases=aliases,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=HelpFormatter,
            parents=[self._shared],
            allow_abbrev=False,
        )
        self._listed.append(Listed(self._section, name, aliases, text))
        parser.set_defaults(run=run)
        return parser

    def group(
        self,
        name: str,
        text: str,
        *,
        aliases: tuple[str, ...] = (),
        shared: argparse.ArgumentParser | None = None,
        is_required: bool = True,
        run: Run | None = None,
    ) -> Commands:
        """Declare a command that has commands of its own; these take `shared` instead of the usual options.

        Without a command it is an error, or shows its help if none `is_required`, or does what `run` does.
        """
        parser: Parser = self._parsers.add_parser(
            name,
            aliases=aliases,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=HelpFormatter,
            parents=[shared or self._shared] if run is not None else [],
            allow_abbrev=False,
        )
        self._listed.append(Listed(self._section, name, aliases, text))
        if run is not None:
            parser.set_defaults(run=run)
        elif not is_required:
            parser.set_defaults(run=lambda _: parser.print_help())
        required = is_required and run is None
        parsers = parser.add_subparsers(metavar="COMMAND", required=required, dest=f"{name}_command")
        return Commands(parsers, shared or self._shared, parser.listed)


def shared_options(*, is_root: bool = False) -> argparse.ArgumentParser:
    """The options that every command takes. Without defaults, so that they may stand before the command as well.

    The help of a command shows the usual ones; that of the root all.
    """
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = parser.add_argument_group(CONNECTION, None if is_root else "slipstream --help lists all of these options")

    def add(*flags: str, text: str, **settings: Any) -> None:
        is_shown = is_root or flags[0] in _USUAL
        group.add_argument(*flags, help=text if is_shown else argparse.SUPPRESS, **settings)

    add("--context", metavar="CONTEXT", text="name of the context to use (NATS_CONTEXT)")
    for name, setting in ClientOptions.settings().items():
        flags = ("-s", setting.flag) if name == "servers" else (setting.flag,)
        text = f"{setting.help} ({setting.variable})" if setting.variable else setting.help
        if setting.is_boolean:
            add(*flags, action="store_true", text=text)
        else:
            add(*flags, metavar=setting.metavar or None, text=text)
    add("--js-domain", metavar="NAME", text="JetStream of that domain")
    add("--js-api-prefix", metavar="PREFIX", text="subject prefix of the JetStream API")
    add("--json", action="store_true", text="print JSON")
    add("--debug", action="store_true", text="show the stack trace of an error")
    return parser


def body(argument: str | None) -> bytes:
    """A message's body: the argument, or stdin unless it is a terminal."""
    if argument is not None:
        return argument.encode()
    return b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
