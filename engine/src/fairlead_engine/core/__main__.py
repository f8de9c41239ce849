"""`python -m fairlead_engine.core`: the core process of an engine server."""

import sys

from fairlead_engine.core.engine import Engine
from fairlead_engine.core.process import serve_core

if __name__ == "__main__":
    sys.exit(serve_core(Engine))
