"""The web console: shows any NATS server by Direct Get, without consumers that would disturb its streams."""
