"""Build hook of hatchling: with SLIPSTREAM_NATIVE=1 a wheel has the hot modules compiled, for this Python and platform.

Without the variable the hook does nothing, and asks for nothing to be installed: the wheel is pure.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface[Any]):
    """Adds compiled modules beside their sources."""

    PLUGIN_NAME = "custom"

    @property
    def _is_wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("SLIPSTREAM_NATIVE", "") not in ("", "0")

    def dependencies(self) -> list[str]:
        """What the build needs: mypy as `make check` has it, and the packages whose types the modules use."""
        if not self._is_wanted:
            return []
        project = tomllib.loads((Path(self.root) / "pyproject.toml").read_text("utf-8"))
        mypy = [name for name in project["dependency-groups"]["dev"] if name.startswith("mypy==")]
        extras = project["project"]["optional-dependencies"]
        return ["setuptools>=75", *mypy, *project["project"]["dependencies"], *extras["server"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and list the results."""
        if not self._is_wanted or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "tools"))
        import native

        name = f"native-{sys.implementation.cache_tag}"  # one directory for each Python
        built = native.build(Path(self.root) / "build" / name, src=Path(self.root) / "src")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in native.compiled_in(built):
            build_data["force_include"][str(built / path)] = path.as_posix()
