"""The `slipstream` command line; `slipstream.cli.main` is its entry point."""
