"""Core NATS: `protocol` is the pure state machine, `aio` and `blocking` give it a socket, a clock and randomness."""
