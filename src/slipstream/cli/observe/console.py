"""`slipstream console`: the web console, for any NATS server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slipstream.cli import values
from slipstream.cli.common import Commands, Shell
from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.console.serving import Site


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add(
        "console",
        _run,
        "serve a web console for a NATS server",
        examples="  slipstream console\n  slipstream console --context prod --port 9000\n"
        "  slipstream console --keyring secrets=ring.json --pipeline orders.toml",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=0, help="port to listen on (default: a free one)")
    text = "allow changes: publish, edit keys and configurations, pause and reset consumers"
    parser.add_argument("--write", action="store_true", help=text)
    text = "file with the token, made if it does not exist (default: a new token each time)"
    parser.add_argument("--token-file", default="", metavar="FILE", help=text)
    text = "monitoring address of a server, for its CPU, memory and connections; may be repeated"
    parser.add_argument("--monitor", action="append", default=[], metavar="URL", help=text)
    text = "codecs of a bucket, as in kv --codec, to show its values through; may be repeated"
    parser.add_argument("--codec", action="append", default=[], type=_pair, metavar="BUCKET=NAMES", help=text)
    text = "keys of an encrypted bucket, which stay in this process; may be repeated"
    parser.add_argument("--keyring", action="append", default=[], type=_pair, metavar="BUCKET=FILE", help=text)
    text = "pipeline file to show, with its runs and dead letters; may be repeated"
    parser.add_argument("--pipeline", action="append", default=[], metavar="FILE", help=text)


def _port(text: str) -> int:
    port = values.whole(text)
    if port > 65535:
        raise argparse.ArgumentTypeError(f"port must be at most 65535, got {port}")
    return port


def _pair(text: str) -> tuple[str, str]:
    bucket, equals, value = text.partition("=")
    if not (bucket and equals and value):
        raise argparse.ArgumentTypeError(f"must be BUCKET=..., got {text!r}")
    return bucket, value


def check_console() -> None:
    """Raise where the extra is not installed."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise UsageError("the console needs its extra: pip install 'slipstream-jetstream[console]'") from error
    del starlette, uvicorn


def open_site(*, host: str = "127.0.0.1", port: int = 0, token: str = "", **settings: Any) -> Site:
    """A console that listens; `settings` are those of `slipstream.console.state.Settings`."""
    check_console()
    from slipstream.console.serving import Site
    from slipstream.console.state import Settings

    return Site(Settings(**settings), host=host, port=port, token=token)


def _codecs(
    shell: Shell, names: Sequence[tuple[str, str]], keyrings: Sequence[tuple[str, str]]
) -> dict[str, list[Any]]:
    from slipstream.cli.kv.opening import codec_names, codecs_by_name

    found: dict[str, list[str]] = {bucket: codec_names(text) for bucket, text in names}
    files = dict(keyrings)
    for bucket in files:
        found.setdefault(bucket, [])
    return {bucket: codecs_by_name(shell, bucket, chosen, files.get(bucket, "")) for bucket, chosen in found.items()}


def _run(shell: Shell) -> None:
    check_console()
    from slipstream.console.monitoring import check_monitor
    from slipstream.console.serving import read_token

    options = shell.options
    codecs, pipelines = _codecs(shell, options.codec, options.keyring), _checked(options.pipeline)
    with shell.connect():  # an error is reported before an address is
        pass
    site = open_site(
        host=options.host,
        port=options.port,
        token=read_token(options.token_file) if options.token_file else "",
        connect=shell.connect_arguments(),
        jetstream=shell.jetstream_arguments(),
        write=options.write,
        monitors=[check_monitor(url) for url in options.monitor],
        codecs=codecs,
        pipelines=pipelines,
    )
    print(site.address, flush=True)
    site.serve()


def _checked(files: Sequence[str]) -> Sequence[str]:
    """Pipeline files, each of which can be read and has a name of its own."""
    if files:
        from slipstream.spark.pipelines import load

        names = [load(file).name for file in files]
        if len(set(names)) < len(names):
            raise UsageError("pipelines must have different names to be shown together")
    return files
