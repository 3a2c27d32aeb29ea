"""Where streams are kept: `memory.py` is the model, `lmdb.py` the durable store; both behind `engine/ports.py`."""
