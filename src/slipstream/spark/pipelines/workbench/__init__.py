"""Tools to write a pipeline with: a first file from a sample of a stream, its graph, and the rows of a step."""
