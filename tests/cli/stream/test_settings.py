"""Settings of streams as options: mirrors, sources, placement, republishing, transforms and features."""

from __future__ import annotations

import pytest

from tests.cli.support import Cli


def config_of(cli: Cli, name: str) -> dict[str, object]:
    found: dict[str, object] = cli.ok("stream", "info", name, "--json").json["config"]
    return found


def test_features_are_switched_on_and_off(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--allow-atomic", "--allow-msg-ttl", "--allow-rollup", "--first-sequence", "100")
    made = config_of(cli, fresh)
    assert (made["allow_atomic"], made["allow_msg_ttl"], made["allow_rollup_hdrs"], made["first_seq"]) == (
        True,
    ) * 3 + (100,)
    assert made["allow_direct"] is True
    cli.ok("stream", "edit", fresh, "--no-allow-direct", "--deny-delete")
    edited = config_of(cli, fresh)
    assert (edited.get("allow_direct", False), edited["deny_delete"], edited["allow_atomic"]) == (False, True, True)
    shown = cli.ok("stream", "info", fresh).out
    assert "allow-atomic" in shown
    assert "allow-direct" not in shown


def test_a_mirror_and_sources_have_their_settings(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>")
    cli.ok("pub", "-J", f"{fresh}.a", "x", "--count", "3")
    cli.ok("stream", "add", f"{fresh}-copy", "--mirror", f"{fresh},seq=2")
    made = config_of(cli, f"{fresh}-copy")["mirror"]
    assert isinstance(made, dict)
    assert (made["name"], made["opt_start_seq"]) == (fresh, 2)
    cli.ok("stream", "add", f"{fresh}-all", "--source", f"{fresh},filter={fresh}.a,to=moved.{fresh}")
    made = config_of(cli, f"{fresh}-all")["sources"]
    assert isinstance(made, list)
    assert made[0]["subject_transforms"] == [{"src": f"{fresh}.a", "dest": f"moved.{fresh}"}]
    assert f"{fresh}, {fresh}.a to moved.{fresh}" in cli.ok("stream", "info", f"{fresh}-all").out


def test_republishing_and_transforms_are_set_and_removed(cli: Cli, fresh: str) -> None:
    cli.ok(
        "stream", "add", fresh, "--subjects", f"{fresh}.*",
        "--republish-destination", f"out.{fresh}.>", "--republish-headers",
        "--transform-source", f"{fresh}.*", "--transform-destination", f"{fresh}.x.{{{{wildcard(1)}}}}",
    )  # fmt: skip
    made = config_of(cli, fresh)
    assert made["republish"] == {"src": ">", "dest": f"out.{fresh}.>", "headers_only": True}
    cli.ok("stream", "edit", fresh, "--republish-destination", "")
    assert "republish" not in config_of(cli, fresh)
    mistake = cli.run("stream", "edit", fresh, "--republish-source", "a")
    assert (mistake.code, "require --republish-destination" in mistake.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq=2", "must be a stream, then settings of it"),
        ("A,colour=red", "must be a stream, then settings of it"),
        ("A,B", "must be one stream"),
        ("A,seq=0", "must be a whole number of at least 1"),
        ("A,since=soon", "must be like 10m"),
    ],
)
def test_settings_of_an_origin_that_are_wrong_are_one_line(our_cli: Cli, text: str, said: str) -> None:
    done = our_cli.run("stream", "add", "S", "--mirror", text)
    assert (done.code, said in done.err, done.err.count("\n")) == (2, True, 1), done.err


def test_placement_without_such_servers_is_rejected_in_one_line(cli: Cli, fresh: str) -> None:
    done = cli.run("stream", "add", fresh, "--cluster", "elsewhere", "--tags", "ssd,eu", "--replicas", "3")
    if done.code:
        assert (done.code, done.err.count("\n")) == (1, 1)
    else:
        assert config_of(cli, fresh)["placement"] == {"cluster": "elsewhere", "tags": ["ssd", "eu"]}


def test_a_copy_has_the_settings_and_not_the_messages(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", f"{fresh}.>", "--max-age", "1h", "--metadata", "team=red")
    cli.ok("pub", "-J", f"{fresh}.a", "x")
    same = cli.run("stream", "copy", fresh, f"{fresh}-two")
    assert (same.code, "no subject may belong to two streams" in same.err) == (2, True)
    cli.ok("stream", "copy", fresh, f"{fresh}-two", "--subjects", f"{fresh}-two.>", "--storage", "memory")
    made = cli.ok("stream", "info", f"{fresh}-two", "--json").json
    assert (made["config"]["max_age"], made["config"]["storage"], made["state"]["messages"]) == (
        3600 * 10**9,
        "memory",
        0,
    )
    assert made["config"]["metadata"]["team"] == "red"
    assert cli.run("stream", "copy", fresh, f"{fresh}-two", "--subjects", "x").code == 2
    assert cli.run("stream", "copy", f"{fresh}-none", "x").code == 3


def test_a_sealed_stream_takes_no_messages(cli: Cli, fresh: str) -> None:
    cli.ok("stream", "add", fresh, "--subjects", fresh)
    cli.ok("pub", "-J", fresh, "x")
    assert cli.run("stream", "seal", fresh).code == 2
    cli.ok("stream", "seal", fresh, "--force")
    assert "yes" in next(line for line in cli.ok("stream", "info", fresh).out.splitlines() if "Sealed" in line)
    assert cli.run("pub", "-J", fresh, "y").code == 1
    assert cli.run("stream", "purge", fresh, "-f").code == 1
