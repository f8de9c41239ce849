"""`python -m fairlead`: the same as the `fairlead` command."""

import sys

from fairlead.cli.main import main

sys.exit(main())
