"""`python -m fairlead_engine.core`: the core process of an engine server."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # nothing that imports and loading make is garbage; `serve_core` enables it again
    from fairlead_engine.core.engine import Engine
    from fairlead_engine.core.process import serve_core

    sys.exit(serve_core(Engine, modules=["fairlead_engine.runner"]))
