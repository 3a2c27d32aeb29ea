"""Data frames: messages and entries as Arrow tables, pandas or polars data frames.

`to_arrow`, `to_pandas` and `to_polars` take anything that messages are read as: `Columns`, stored messages, the
messages of a consumer's fetch, entries of a bucket. Streams and buckets have methods of the same names.
"""

from slipstream.frames.arrow import to_arrow, to_pandas, to_polars
from slipstream.frames.options import FrameOptions

__all__ = ["FrameOptions", "to_arrow", "to_pandas", "to_polars"]
