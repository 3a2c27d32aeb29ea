"""Run by the Python processes that Spark's JVM starts, before anything else: they import pyspark from its package.

Spark puts zip files of pyspark and py4j before the installed packages of the same release. The zip files hold sources
only, and Python stores no bytecode for them: each process would compile them itself, which takes 0.8 s of CPU, and a
query starts five processes. Where both are of one installation, the zip files are left out.

Python runs at most one module of this name, so the one that is hidden by this one is run from here.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_ARCHIVES = os.path.join("pyspark", "python", "lib")


def without_archives(path: list[str]) -> list[str]:
    """A path for imports without the zip files whose packages are on it as well."""
    return [entry for entry in path if not _is_redundant(entry, path)]


def _is_redundant(entry: str, path: list[str]) -> bool:
    folder, name = os.path.split(entry)
    if not name.endswith(".zip") or not folder.endswith(os.sep + _ARCHIVES):
        return False
    packages = folder.removesuffix(os.sep + _ARCHIVES)
    package = "pyspark" if name == "pyspark.zip" else "py4j" if name.startswith("py4j-") else ""
    if not package or not os.path.isfile(os.path.join(packages, package, "__init__.py")):
        return False
    first = next((one for one in path if os.path.isfile(os.path.join(one, package, "__init__.py"))), "")
    return bool(first) and os.path.samefile(first, packages)  # what would be imported instead is of this installation


def _run_hidden(here: str) -> None:
    """Run the module of this name that Python would have found without this one."""
    spec = PathFinder.find_spec("sitecustomize", [one for one in sys.path if os.path.abspath(one) != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in without_archives(sys.path) if os.path.abspath(one) != _here]
    _run_hidden(_here)
