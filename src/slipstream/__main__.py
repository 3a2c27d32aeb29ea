"""`python -m slipstream`: the command line."""

import sys

from slipstream.cli.main import main

sys.exit(main())
