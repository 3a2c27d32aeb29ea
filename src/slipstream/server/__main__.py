"""`python -m slipstream.server`: as `slipstream server`, and the URL as a line on stdout once the server listens."""

from __future__ import annotations

import sys

from slipstream.errors import Error
from slipstream.server.process.command import main as run
from slipstream.server.server import Server


def _announce(server: Server) -> None:
    print(f"listening on {server.url}", flush=True)


def main() -> int:
    """Run a server until a signal stops it."""
    try:
        return run(sys.argv[1:], started=_announce)
    except Error as exc:
        print(f"slipstream server: {exc}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
