"""The durable store, on LMDB."""
