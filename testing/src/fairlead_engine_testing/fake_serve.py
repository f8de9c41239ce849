"""`fairlead-engine serve` with a core that has no model: `python -m fairlead_engine_testing.fake_serve serve …`.

HTTP, processes and the core's scheduler are the product's; the model is named by `--model fake://?QUERY`, as
`fake_engine` reads it. It knows token ids below 64.
"""

import sys

from fairlead_engine.__main__ import build_parser
from fairlead_engine.commands.config_sources import from_arguments
from fairlead_engine.demo import resolve_model
from fairlead_engine.server.serve import run
from fairlead_engine_testing.fake_engine import FAKE_CORE

if __name__ == "__main__":
    engine, server = from_arguments(build_parser().parse_args())
    sys.exit(run(engine, server, core_module=FAKE_CORE, folder=resolve_model("demo://dinghy")))
