"""The blocking driver of the core client, written by hand: sockets, threads and locks."""
