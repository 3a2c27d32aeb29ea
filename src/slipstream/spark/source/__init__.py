"""Reading with Spark: streams and buckets as tables."""
