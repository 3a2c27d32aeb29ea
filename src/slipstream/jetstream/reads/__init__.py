"""Reading a stream without a consumer: Direct Get, ranges, and the proof that an answer is not stale."""
