"""An engine run to its end, with its books checked after every step."""

from fairlead_engine.core.engine import Engine
from fairlead_engine.types import SequenceOutput


def run_checked(engine: Engine) -> list[SequenceOutput]:
    """All outputs of the requests that there are."""
    outputs = []
    while engine.has_work():
        outputs += engine.step()
        engine.check()
    return outputs
