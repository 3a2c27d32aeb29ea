"""The web console: a window into any NATS server that reads by Direct Get, and so disturbs nothing."""
