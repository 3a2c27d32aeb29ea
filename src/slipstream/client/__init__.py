"""Core NATS: `session` is the pure state machine, `_async` and `_sync` give it a socket, a clock and randomness."""
