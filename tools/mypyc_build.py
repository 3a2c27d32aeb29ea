"""Compiles modules in place, in the working directory: `python mypyc_build.py LEVEL GROUP DIRECTORY FILE…`.

A program of its own, started by `native.py`: mypyc takes its files relative to the working directory, and setuptools
its arguments from the command line. C files and objects stay in DIRECTORY, and only those that differ are made again.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext


class ParallelBuild(build_ext):
    """Compiles the files of a module on all cores, and none twice: setuptools compiles all, one at a time."""

    def build_extensions(self) -> None:
        compiler = self.compiler
        if compiler.compiler_type == "unix":
            one_by_one = compiler.compile

            def compile_one(source: str, options: dict[str, Any]) -> list[str]:
                names: list[str] = compiler.object_filenames([source], output_dir=options.get("output_dir") or "")
                # mypyc leaves a C file alone if it is the same; its headers are beside it.
                needed = [
                    Path(source),
                    *Path(source).parent.glob("*.h"),
                    *(Path(source).parent / GROUP_FOLDER).glob("*.h"),
                ]
                made = [Path(name) for name in names]
                if all(path.exists() for path in made):
                    oldest = min(path.stat().st_mtime_ns for path in made)
                    if all(path.stat().st_mtime_ns < oldest for path in needed):
                        return names
                compiled: list[str] = one_by_one([source], **options)
                return compiled

            def compile_all(sources: list[str], **options: Any) -> list[str]:
                pool = ThreadPoolExecutor(os.cpu_count())
                try:
                    results = pool.map(lambda source: compile_one(source, options), sources)
                    return [name for names in results for name in names]
                finally:
                    pool.shutdown(cancel_futures=True)  # after an error the others are not worth their time

            compiler.compile = compile_all
        super().build_extensions()


GROUP_FOLDER = "slipstream"  # of headers of a group with a dot in its name


def main(level: str, group: str, directory: str, files: list[str]) -> None:
    """Make the C files in `directory`, and the modules beside their sources."""
    modules = mypycify(
        [*files, "--config-file=../mypy.ini", "--cache-dir=../mypy_cache"],
        opt_level=level,
        debug_level="0",
        multi_file=True,
        group_name=group,
        target_dir=directory,
    )
    for module in modules:
        module.include_dirs += [directory, f"{directory}/{GROUP_FOLDER}"]
    sys.argv[1:] = ["--quiet", "build_ext", "--inplace", "--build-temp", f"{directory}/objects"]
    setup(name="slipstream-native", ext_modules=modules, packages=[], cmdclass={"build_ext": ParallelBuild})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
