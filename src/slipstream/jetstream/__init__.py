"""JetStream for programs: acknowledged publishes, streams, Direct Get. Pure requests and decoders, thin drivers."""
