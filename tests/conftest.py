"""What every test shares."""

pytest_plugins = ["tests.spec_plugin"]
