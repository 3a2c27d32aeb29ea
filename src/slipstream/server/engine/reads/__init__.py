"""Direct Get and the replicas that answer it."""
