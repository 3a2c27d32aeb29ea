"""Key-Value buckets: a bucket is a stream, a key is a subject, a revision is a sequence."""

from slipstream.kv.bucket import BucketConfig, BucketSource, BucketStatus
from slipstream.kv.cache import CacheStats
from slipstream.kv.entry import Entry, Operation

__all__ = ["BucketConfig", "BucketSource", "BucketStatus", "CacheStats", "Entry", "Operation"]
