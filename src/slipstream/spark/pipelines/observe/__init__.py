"""What a run of a pipeline tells programs: metrics for Prometheus, and a log of events."""
