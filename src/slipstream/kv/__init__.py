"""Key-Value buckets: a bucket is a stream, a key is a subject, a revision is a sequence."""

from slipstream.kv.bucket import BucketConfig, BucketStatus
from slipstream.kv.entry import Entry, Operation

__all__ = ["BucketConfig", "BucketStatus", "Entry", "Operation"]
