"""The command line: arguments in, text out. `slipstream.cli.main` is the entry point."""
