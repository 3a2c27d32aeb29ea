"""One read of a source for several outputs: which may share it, their progress, and the query that writes them."""
