"""An engine run to its end, with its books checked after every step."""

from collections.abc import Iterable

from fairlead_engine.core.engine import Engine
from fairlead_engine.core.request_stream import merged
from fairlead_engine.types import EngineRequest, SequenceOutput


def run_checked(engine: Engine) -> list[SequenceOutput]:
    """All outputs of the requests that there are."""
    outputs = []
    while engine.has_work():
        outputs += engine.step()
        engine.check()
    return outputs


def answered(engine: Engine, requests: Iterable[EngineRequest] = ()) -> dict[str, SequenceOutput]:
    """The outputs of each request as one, with these requests added."""
    for request in requests:
        assert engine.add(request) is None
    found: dict[str, SequenceOutput] = {}
    for output in run_checked(engine):
        before = found.get(output.request_id)
        found[output.request_id] = output if before is None else merged(before, output)
    return found


def tokens_of(engine: Engine, requests: Iterable[EngineRequest] = ()) -> dict[str, list[int]]:
    """The tokens that each request is answered with."""
    return {name: output.new_token_ids for name, output in answered(engine, requests).items()}
