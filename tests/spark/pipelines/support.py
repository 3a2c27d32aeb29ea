"""Pipeline files that several tests use."""

SMALL = """
[sources.orders]
stream = "ORDERS"

[outputs.copy]
from = "orders"
stream = "COPY"
subject = "subject"
value = "data"
"""
