"""The fixtures of `slipstream.testing.plugin`, also where the package is not installed but on the path."""

from __future__ import annotations

import pytest

from slipstream.testing import plugin


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "slipstream.testing.plugin")
