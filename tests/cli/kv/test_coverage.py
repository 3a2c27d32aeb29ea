"""`slipstream kv` offers what the library offers: every method, argument and setting is reached by some command, and no
command or option is without effect. What a command line has no use for is listed, with the reason."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from slipstream import BucketConfig, BucketSource
from slipstream.cli.commands import build_parser
from slipstream.cli.common import CONNECTION, Parser
from slipstream.facade._sync.client import JetStream
from slipstream.kv import codecs
from slipstream.kv._sync import rekey
from slipstream.kv._sync.election import Election, Members
from slipstream.kv._sync.key_value import KeyValue
from slipstream.kv.codecs import Encrypted, Keyring
from tests.cli.support import WAITING, Cli

CLASSES: tuple[type[Any], ...] = (KeyValue, Election, Members, Encrypted, Keyring)
OPENING = ("create_key_value", "update_key_value", "key_value", "delete_key_value", "key_values")
CONFIGURATIONS: tuple[type[Any], ...] = (BucketConfig, BucketSource)

# What has no command, and why. `timeout` of every call is --timeout.
EXCEPTIONS = {
    "KeyValue.iter_keys": "ls prints keys in order, so it must have them all",
    "KeyValue.writer": "a command writes one value",
    "KeyValue.read_only": "a guard within a program: commands that read do not write",
    "KeyValue.cached": "a command ends before a cache is of use",
    "KeyValue.close": "for caches and files",
    "KeyValue.to_arrow": "an object of a program",
    "KeyValue.to_pandas": "an object of a program",
    "KeyValue.to_polars": "an object of a program",
    "KeyValue.foreign_keys": "each is logged, which a command prints to stderr",
    "JetStream.create_key_value(consistency)": "no read follows",
    "JetStream.create_key_value(fields)": "those of BucketConfig, which are counted there",
    "JetStream.update_key_value(fields)": "those of BucketConfig, which are counted there",
    "JetStream.update_key_value(consistency)": "no read follows",
    "Election.is_leader": "the command runs while it is",
    "Codec": "base class",
    "TokenCodec": "base class",
    "Text": "values of the command line are text",
}
SCRIPT = """
add {b} --history 9 --description settings --ttl 1h --max-value-size 1KB --max-bucket-size 1MB --storage memory \
    --replicas 1 --value-ttl --marker-ttl 1s --compress --metadata team=ui --republish-source '$KV.{b}.>' \
    --republish-destination '{b}.again.>' --republish-headers
add {b}own --stream {b}OWN --subject-prefix {b}.own
add {b}copy --mirror {b}own,stream={b}OWN,subject_prefix={b}.own
add {b}all --source '{b},keys=a.*,prefix=below' --source {b}own,stream={b}OWN,subject_prefix={b}.own
add {b}far --source {b},domain=hub,deliver=somewhere
add {b}placed --cluster nowhere --tags ssd
add {b}plain
edit {b} --history 10 --description more --ttl 2h --max-value-size 2KB --max-bucket-size 2MB --replicas 1 \
    --value-ttl --marker-ttl 2s --compress --metadata team=web --republish-source '$KV.{b}.>' \
    --republish-destination '{b}.more.>' --republish-headers
edit {b}own --stream {b}OWN --description own
edit {b}all --source '{b}'
edit {b}plain --cluster nowhere --tags ssd
put {b} a.x 1 --ttl 1h
put {b}own k 1 --stream {b}OWN --subject-prefix {b}.own --put-prefix {b}.own
create {b} c.y 1 --ttl 1h
update {b} a.x 2 1 --ttl 1h
put {b} r 1
put {b} r 2
revert {b} r 4 --ttl 1h
get {b} r --raw --min-last-revision 4
get {b} r --revision 6
history {b} r --min-last-revision 4
ls
ls {b} --values --filter 'a.*' --min-last-revision 4
ls {b} --filter 'a.*' --min-last-revision 4
put {b}plain a.x 1
snapshot {b}plain --filter 'a.*' --revision 1 --min-last-revision 1
watch {b}plain --filter 'a.*' --history --count 1 --ignore-deletes --meta-only --min-last-revision 1
watch {b}plain --resume-from 1 --count 1
del {b}plain a.x --last 1 --force
compact {b}plain --older-than 0s --recorded --force
put {b}plain a.x 1
purge {b}plain a.x --last 3 --force
purge {b} c.y --ttl 1h --force
put {b}plain a.x 1
del {b}plain --filter 'a.*' --force
put {b}plain a.x 1
purge {b}plain --filter 'a.*' --force
info {b}
keyring {k} --add 2026
keyring {k} --add 2027
put {b}plain sealed 1 --keyring {k} --plain-keys --codec encrypted,path,compressed,base64-values
put {b}plain k 1 --keyring {k} --plain-keys --codec json
add {b}sealed
put {b}sealed k 1 --keyring {k} --encryption-context words
keyring {k} --use 2027
reencrypt {b}sealed --keyring {k} --encryption-context words --drop-history --renew-ttl --recorded
keyring {k} --remove 2026
get {b}sealed k --keyring {k} --encryption-context words --no-check-names --consistency latest
put {b}plain 'a b' 1 --codec base64-keys,msgpack
put {b}plain /a/b.c 1 --codec escaped-path
lock {b}plain locked --name me --ttl 2s --wait 5s -- true
elect {b}plain boss --name me --data here --ttl 2s --wait 5s -- true
leader {b}plain boss ? 3
leader {b}plain boss --watch --count 1
members join {b}sets web --name me --data here --ttl 2s --wait 5s -- true
members ls {b}sets web --min-last-revision 1
members watch {b}sets web --count 1
watch {b}sets tick --updates-only --count 1
del {b}own --stream {b}OWN --subject-prefix {b}.own --force
del {b}plain --force
"""


class Calls:
    """What was called, with which arguments other than their defaults: `KeyValue.put`, `KeyValue.put(ttl)`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[str] = set()
        for owner in CLASSES:
            for name, value in methods_of(owner):
                monkeypatch.setattr(owner, name, self._recorded(owner, name, value))
        monkeypatch.setattr(rekey, "reencrypt", self._recorded(rekey, "reencrypt", rekey.reencrypt))
        for name in OPENING:
            monkeypatch.setattr(JetStream, name, self._recorded(JetStream, name, getattr(JetStream, name)))

    def _recorded(self, owner: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def record(*args: Any, **kwargs: Any) -> Any:
            label = f"{owner.__name__.rpartition('.')[2]}.{name}"
            self.seen.add(label)
            for argument, value in signature.bind(*args, **kwargs).arguments.items():
                if argument != "self" and value != signature.parameters[argument].default:
                    self.seen.add(f"{label}({argument})")
                    self._look_into(value)
            return function(*args, **kwargs)

        return record

    def _look_into(self, value: Any) -> None:
        """The fields of configurations, and the codecs."""
        if isinstance(value, codecs.Codec | Keyring):
            self.seen.add(type(value).__name__)
        if not isinstance(value, CONFIGURATIONS):
            return
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            if field.name in getattr(value, "fields_set", ()) or found != field.default:
                self.seen.add(f"{type(value).__name__}.{field.name}")
            for each in found if isinstance(found, tuple) else (found,):
                self._look_into(each)


def methods_of(owner: type[Any]) -> Iterator[tuple[str, Any]]:
    """The public methods that a class has itself, and its constructor if it is called with values of a user."""
    for name, value in vars(owner).items():
        if inspect.isfunction(value) and (not name.startswith("_") or (name == "__init__" and owner in CLASSES[3:])):
            yield name, value


def offered() -> set[str]:
    """All that the library offers."""
    found = set(codecs.__all__)
    for owner in CONFIGURATIONS:
        found |= {f"{owner.__name__}.{field.name}" for field in dataclasses.fields(owner)}
    functions = [(owner, name, value) for owner in CLASSES[:3] for name, value in methods_of(owner)]
    functions += [(owner, "__init__", owner.__init__) for owner in CLASSES[3:]]
    functions += [(JetStream, name, getattr(JetStream, name)) for name in OPENING]
    found |= {f"rekey.reencrypt({name})" for name in inspect.signature(rekey.reencrypt).parameters if name != "timeout"}
    for owner, name, value in functions:
        found.add(f"{owner.__name__}.{name}")
        arguments = set(inspect.signature(value).parameters) - {"self", "timeout"}
        found |= {f"{owner.__name__}.{name}({argument})" for argument in arguments}
    properties = [(owner, name) for owner in CLASSES[:3] for name, value in vars(owner).items() if is_property(value)]
    return found | {f"{owner.__name__}.{name}" for owner, name in properties}


def is_property(value: object) -> bool:
    return isinstance(value, property)


def declared(parser: Parser, path: str = "") -> Iterator[str]:
    """Every command below a parser, and its options (of each its first name) but those of the connection."""
    commands = {id(command): (name, command) for name, command in reversed(parser.commands.items())}
    if not commands:
        yield path
    for name, command in commands.values():
        yield from declared(command, f"{path} {name}".strip())
    for action in parser._actions:
        title = vars(action)["container"].title
        if action.option_strings and title != CONNECTION and action.dest != "help" and path and not commands:
            option = next(each for each in action.option_strings if each.startswith("--"))
            yield option if title == "bucket" else f"{path} {option}"  # those of all buckets: in any command


def used(words: list[str]) -> Iterator[str]:
    """The command of a line, and its options."""
    path = " ".join(words[:2]) if words[0] == "members" else words[0]
    yield path
    for word in words[: words.index("--")] if "--" in words else words:
        if word.startswith("--"):
            yield word
            yield f"{path} {word}"


@contextmanager
def changing(cli: Cli, bucket: str) -> Iterator[None]:
    """Something is written to a bucket again and again, for a watch that shows only what happens from now on."""
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            cli.process("kv", "put", bucket, "tick", "1")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()


@pytest.mark.spec("KV-29", on="C N")
def test_every_part_of_key_value_has_a_command(
    cli: Cli, fresh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = offered()
    wanted = {name for name in everything if not {name, name.partition("(")[0]} & EXCEPTIONS.keys()}
    calls = Calls(monkeypatch)
    words_used: set[str] = set()
    cli.ok("kv", "add", f"{fresh}sets")
    member = ("kv", "members", "join", f"{fresh}sets", "web", "--name", "other", "--", *WAITING)
    with cli.started(*member, until="got the membership"):
        for line in SCRIPT.strip().splitlines():
            text, _, code = line.format(b=fresh, k=tmp_path / "keys.json").partition(" ? ")
            words = shlex.split(text)
            with changing(cli, f"{fresh}sets") if "--updates-only" in words else nullcontext():
                done = cli.run("kv", *words)
            assert done.code == int(code or 0), (line, done)
            words_used |= set(used(words))
    assert wanted - calls.seen == set()
    assert set(EXCEPTIONS) & calls.seen == set()
    assert set(EXCEPTIONS) - everything == set()
    assert set(declared(build_parser().commands["kv"])) - words_used == set()
