"""Packages that only some features need: they come with an extra of the distribution, and are imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from slipstream.errors import MissingExtraError

DISTRIBUTION = "slipstream-jetstream"


@contextmanager
def needed_by(feature: str, extra: str) -> Iterator[None]:
    """Import the packages of an extra inside. One that is missing is a MissingExtraError, which names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(missing(feature, (error.name or "").partition(".")[0], extra)) from None


def check_extra(package: str, feature: str, extra: str) -> None:
    """Raise MissingExtraError if a package that is imported later is missing."""
    if find_spec(package) is None:
        raise MissingExtraError(missing(feature, package, extra))


def missing(feature: str, package: str, extra: str) -> str:
    """What to say of a missing package."""
    return f"{feature} needs the package {package!r}: pip install '{DISTRIBUTION}[{extra}]'"
