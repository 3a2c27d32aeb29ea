"""`python -m slipstream.spark.pipelines`: the command, where the `slipstream` command is not on the PATH."""

import sys

from slipstream.spark.pipelines.cli import main

sys.exit(main())
