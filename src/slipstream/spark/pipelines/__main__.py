"""`python -m slipstream.spark.pipelines`: the command `slipstream pipeline`, where `slipstream` is not on the PATH."""

import sys

from slipstream.cli import pipeline
from slipstream.cli.main import main

sys.exit(main([pipeline.NAME, *sys.argv[1:]]))
