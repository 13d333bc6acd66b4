"""`python -m rpopt.cli`."""

import sys

from rpopt.cli import main

sys.exit(main())
