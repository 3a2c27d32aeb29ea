"""What lies between a socket and the NATS protocol: TLS and WebSocket, stacked."""
