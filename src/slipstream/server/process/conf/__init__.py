"""nats-server's configuration files become `ServerOptions`: the format, typed access, what the keys mean."""
