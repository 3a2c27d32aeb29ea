"""The names of the package itself: each is imported when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import slipstream
from slipstream import errors


def test_every_public_name_can_be_imported() -> None:
    for name in slipstream.__all__:
        assert getattr(slipstream, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = slipstream.Nothing


def test_every_error_can_be_imported_from_the_package() -> None:
    declared = {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")}
    assert sorted(declared - {*slipstream.__all__}) == []


def test_public_errors_are_those_of_the_errors_module() -> None:
    for name in slipstream.__all__:
        if name.endswith("Error"):
            assert getattr(slipstream, name) is getattr(errors, name)


def test_importing_the_package_imports_neither_client_nor_server() -> None:
    code = "import slipstream, sys; print([m for m in sys.modules if m.startswith('slipstream.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
