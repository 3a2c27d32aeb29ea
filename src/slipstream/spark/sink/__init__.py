"""Writing with Spark, exactly once: rows into streams and buckets."""
