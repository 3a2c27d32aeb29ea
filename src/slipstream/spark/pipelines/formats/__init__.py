"""Binary formats of messages, Avro and Protobuf: the columns that a schema has in Spark, and records as JSON for it."""
