"""The embedded JetStream server: `Server` for programs and tests, `slipstream server` for a command line."""
