"""Chromium and its driver for the tests of the console: found, installed where that may be done, or missed by name.

A machine without them can run all other tests: this program says what is not run, and never fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

PROGRAMS = ("chromium", "chromedriver")
PACKAGES = ("chromium", "chromium-driver")
TESTS = "tests/console/test_browser.py"


def missing(env: Mapping[str, str]) -> list[str]:
    """The programs that are not on PATH."""
    return [name for name in PROGRAMS if shutil.which(name, path=env.get("PATH", "")) is None]


def install(env: Mapping[str, str], *, is_root: bool, run: Callable[..., subprocess.CompletedProcess[str]]) -> str:
    """Install Debian's Chromium where we may; an empty text if that went well, else the reason why not."""
    apt = shutil.which("apt-get", path=env.get("PATH", ""))
    if apt is None:
        return "there is no apt-get here to install it with"
    if not is_root:
        return "only root may install it"
    print("installing Debian's Chromium for the tests of the console; this takes a minute, once", file=sys.stderr)
    quiet = {**env, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        try:
            done = run([apt, "-qq", *command], env=quiet, capture_output=True, text=True, timeout=900, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"apt-get {command[0]} failed: {error}"
        if done.returncode and command[0] == "install":  # a list that cannot be updated may still be good enough
            last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
            return f"apt-get could not install {' and '.join(PACKAGES)}: {last}"
    return ""


def main(env: Mapping[str, str], *, is_root: bool, run: Callable[..., subprocess.CompletedProcess[str]]) -> int:
    """Look, install, and say what is missed."""
    if not missing(env):
        return 0
    reason = install(env, is_root=is_root, run=run)
    if lacking := missing(env):
        why = reason or "the packages do not have them"
        print(f"note: {TESTS} is not run: there is no {' and no '.join(lacking)}, and {why}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ, is_root=os.geteuid() == 0, run=subprocess.run))
