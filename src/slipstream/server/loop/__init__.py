"""The event loop around the engine: connections, group commits, clock, TLS, upstream servers."""
