"""Candidate places for a Java become one JAVA_HOME that Spark can start on, or one error.

A candidate counts only if it runs, is new enough and has the module Spark asks for: a Java that merely exists (too
old, or a cut-down runtime without `jdk.incubator.vector`) is passed over, never handed to Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

LEAST = 17
JVM_DIR = Path("/usr/lib/jvm")
PACKAGE = "default-jre-headless"


def candidates(env: Mapping[str, str], jvm_dir: Path = JVM_DIR) -> Iterator[Path]:
    """The java programs to try, best first: what the user set, what the shell would run, what is installed."""
    if home := env.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java", path=env.get("PATH", "")):
        yield Path(found)
    yield from sorted(jvm_dir.glob("*/bin/java"))


def version(settings: str) -> int:
    """The major version in the output of `java -XshowSettings:properties`; 0 if there is none."""
    match = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", settings)
    return int(match[1]) if match else 0


def probe(java: Path) -> tuple[str, str]:
    """JAVA_HOME of this program and an empty reason, or an empty JAVA_HOME and the reason why not."""
    command = [str(java), "--add-modules=jdk.incubator.vector", "-XshowSettings:properties", "-version"]
    try:
        # Without --add-modules for the version: Java 8 refuses the option before it says what it is.
        plain = subprocess.run([command[0], *command[2:]], capture_output=True, text=True, timeout=60, check=False)
        if (major := version(plain.stderr)) < LEAST:
            return "", f"is Java {major or '(unknown version)'}"
        full = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return "", f"does not run ({exc})"
    if full.returncode:
        return "", "lacks the module jdk.incubator.vector, which Spark needs"
    home = re.search(r"java\.home = (.+)", full.stderr)
    return (home[1].strip(), "") if home else ("", "does not say where its home is")


def find(env: Mapping[str, str], jvm_dir: Path = JVM_DIR) -> tuple[str, list[str]]:
    """The first usable JAVA_HOME (or an empty string), and what was wrong with those before it."""
    refused: list[str] = []
    for java in candidates(env, jvm_dir):
        home, reason = probe(java)
        if home:
            return home, refused
        refused.append(f"{java} {reason}")
    return "", refused


def install(env: Mapping[str, str], *, is_root: bool) -> str:
    """Install Debian's headless Java where we may; an empty text if that went well, else the reason why not."""
    apt = shutil.which("apt-get", path=env.get("PATH", ""))
    if apt is None:
        return "there is no apt-get here to install one with"
    if not is_root:
        return "only root may install one"
    print("installing Debian's headless Java; this takes a minute, once", file=sys.stderr)
    quiet = {**env, "DEBIAN_FRONTEND": "noninteractive"}
    last = ""
    for command in (["update"], ["install", "--yes", "--no-install-recommends", PACKAGE]):
        done = subprocess.run(
            [apt, "-qq", *command], env=quiet, capture_output=True, text=True, timeout=900, check=False
        )
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        if done.returncode and command[0] == "install":  # a list that cannot be updated may still be good enough
            return f"apt-get could not install {PACKAGE}: {last}"
    return ""


def main(arguments: list[str]) -> int:
    home, refused = find(os.environ)
    if not home and "--install" in arguments:
        if reason := install(os.environ, is_root=os.geteuid() == 0):
            refused.append(reason)
        else:
            home, refused = find(os.environ)
    if home:
        print(home)
        return 0
    seen = "".join(f"\n  {line}" for line in refused) or " none"
    print(
        f"error: Spark needs Java {LEAST} or newer. Install one (Debian: {PACKAGE}) or set JAVA_HOME.\n"
        f"Looked at JAVA_HOME, PATH and {JVM_DIR}; found:{seen}",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
