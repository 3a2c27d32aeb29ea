"""Encryption from the command line: keys come from a file, and are rotated."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.cli.support import Cli


@pytest.mark.spec("KV-55", on="C N")
def test_values_and_keys_are_encrypted_with_a_keyring_and_rotated(cli: Cli, fresh: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    sealed = ("--keyring", str(file))
    cli.ok("kv", "add", fresh, "--history", "1")
    assert cli.ok("kv", "keyring", str(file), "--add", "2026", "--json").json["primary"] == "2026"
    assert file.stat().st_mode & 0o777 == 0o600
    for key in ("users.ada", "users.bob"):
        cli.ok("kv", "put", fresh, key, f"secret of {key}", *sealed)
    assert cli.ok("kv", "get", fresh, "users.ada", "--raw", *sealed).out == "secret of users.ada"
    assert cli.ok("kv", "ls", fresh, "--filter", "users.*", *sealed).out.split() == ["users.ada", "users.bob"]
    stored = cli.ok("kv", "ls", fresh, "--values", "--json").out
    assert ("users" in stored, "secret" in stored) == (False, False)
    before = [each["revision"] for each in cli.ok("kv", "ls", fresh, "-v", "--json").json]
    assert cli.ok("kv", "keyring", str(file), "--add", "2027", "--json").json["keys"] == ["2026", "2027"]
    assert "encrypted 0 keys again" in cli.ok("kv", "reencrypt", fresh, *sealed).err  # it can be read, but is not used
    assert cli.ok("kv", "keyring", str(file), "--use", "2027", "--json").json["tokens"] == ["2027", "2026"]
    assert "encrypted 2 keys again" in cli.ok("kv", "reencrypt", fresh, *sealed).err
    after = [each["revision"] for each in cli.ok("kv", "ls", fresh, "-v", "--json").json]
    assert min(after) > max(before)
    assert cli.ok("kv", "reencrypt", fresh, *sealed, "--json").json == {"reencrypted": 0}
    assert cli.ok("kv", "get", fresh, "users.bob", "--raw", *sealed).out == "secret of users.bob"
    assert cli.ok("kv", "keyring", str(file), "--remove", "2026", "--json").json["keys"] == ["2027"]
    assert cli.ok("kv", "get", fresh, "users.ada", "--raw", *sealed).out == "secret of users.ada"
    assert cli.ok("kv", "ls", fresh, "--filter", "users.*", *sealed).out.split() == ["users.ada", "users.bob"]
    assert "2026" not in file.read_text()


def test_only_values_are_encrypted_or_ciphertext_is_bound_elsewhere(our_cli: Cli, fresh: str, tmp_path: Path) -> None:
    file = str(tmp_path / "keys.json")
    our_cli.ok("kv", "keyring", file, "--add", "one")
    our_cli.ok("kv", "add", fresh)
    our_cli.ok("kv", "put", fresh, "k", "v", "--keyring", file, "--plain-keys", "--encryption-context", "words")
    assert our_cli.ok("kv", "ls", fresh).out == "k\n"
    assert our_cli.run("kv", "get", fresh, "k", "--keyring", file, "--plain-keys").code == 1
    same = ("--keyring", file, "--plain-keys", "--encryption-context", "words", "--raw")
    assert our_cli.ok("kv", "get", fresh, "k", *same).out == "v"
    # Elsewhere in the stack: compressed after it was encrypted.
    our_cli.ok("kv", "put", fresh, "c", "v", "--keyring", file, "--plain-keys", "--codec", "compressed,encrypted")
    assert our_cli.ok("kv", "get", fresh, "c", "--json").json["data_base64"][:2] == "AA"  # a byte 0: not compressed
    assert "nearest to the bucket" in our_cli.run(
        "kv", "reencrypt", fresh, "--keyring", file, "--codec", "compressed,encrypted"
    ).err  # fmt: skip


def test_keyring_files_are_checked_and_never_show_a_key(our_cli: Cli, fresh: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = base64.b64encode(b"k" * 32).decode()
    our_cli.ok("kv", "add", fresh)

    def put(contents: object) -> str:
        file.write_text(contents if isinstance(contents, str) else json.dumps(contents))
        done = our_cli.run("kv", "put", fresh, "k", "v", "--keyring", str(file))
        assert key not in done.err + done.out
        assert done.code == 2, done
        return done.err

    assert "must be JSON, as `slipstream kv keyring` writes it" in put(key)
    assert 'must have an object "keys"' in put({"keys": {}})
    assert "key 'a' must be 32 bytes in base64" in put(
        {"keys": {"a": key[:8], "b": key}, "primary": "b", "tokens": "b"}
    )
    assert '"tokens" must name keys that it has, a, b' in put({"keys": {"a": key, "b": key}, "primary": "a"})
    wrong = {"keys": {"a": key, "b": key}, "primary": "c", "tokens": ["a"]}
    assert '"primary" must name keys that it has' in put(wrong)
    file.write_text(json.dumps({"keys": {"a": key}}))
    file.chmod(0o644)
    assert "chmod 600" in our_cli.ok("kv", "put", fresh, "k", "v", "--keyring", str(file)).err
    shown = our_cli.ok("kv", "keyring", str(file))
    assert (key in shown.out, "encrypts values" in shown.out) == (False, True)
    assert "already has a key 'a'" in our_cli.run("kv", "keyring", str(file), "--add", "a").err
    assert "must stay in the keyring" in our_cli.run("kv", "keyring", str(file), "--remove", "a").err
    assert "has no key 'b'" in our_cli.run("kv", "keyring", str(file), "--use", "b").err
    assert "has no key 'b'" in our_cli.run("kv", "keyring", str(file), "--remove", "b").err
    assert our_cli.run("kv", "put", fresh, "k", "v", "--keyring", str(tmp_path / "none")).code == 1
    for words in (("--codec", "encrypted"), ("--plain-keys",), ("--encryption-context", "x")):
        refused = our_cli.run("kv", "put", fresh, "k", "v", *words)
        assert (refused.code, "requires --keyring" in refused.err) == (2, True)
    assert our_cli.run("kv", "reencrypt", fresh).code == 2
