"""Print the lowest version of each package that pyproject.toml allows, as constraints for pip: `make test-floor`.

python tools/floor.py EXTRA...
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
_BOUND = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(\[[^\]]*\])?\s*>=\s*(?P<floor>[0-9.]+)\s*(?P<marker>;.*)?")


def floors(extras: list[str], project: Path = _PROJECT) -> list[str]:
    """`name==version` of what the project and these extras need."""
    table = tomllib.loads(project.read_text())["project"]
    optional = table["optional-dependencies"]
    unknown = sorted(set(extras) - set(optional))
    if unknown:
        raise SystemExit(f"extra must be one of {', '.join(optional)}, got {', '.join(unknown)}")
    own = f"{table['name']}["
    pins = set()
    for requirement in [*table["dependencies"], *(each for extra in extras for each in optional[extra])]:
        if requirement.startswith(own):
            pins |= set(floors(requirement[len(own) : -1].split(","), project))
            continue
        found = _BOUND.fullmatch(requirement)
        if found is None:
            raise SystemExit(f"a requirement must be NAME>=VERSION, got {requirement!r}")
        pins.add(f"{found['name']}=={found['floor']}{found['marker'] or ''}")
    return sorted(pins)


if __name__ == "__main__":
    print("\n".join(floors(sys.argv[1:])))
