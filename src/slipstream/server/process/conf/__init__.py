"""nats-server's configuration files: the format, typed access, the meaning of the keys."""
