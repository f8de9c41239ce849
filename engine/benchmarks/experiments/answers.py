"""What an engine in this process answers to requests."""

from typing import NamedTuple

from fairlead_engine.core.engine import Engine
from fairlead_engine.types import EngineRequest


class Answer(NamedTuple):
    """Tokens, and their log-probabilities where the request wants them."""

    token_ids: list[int]
    logprobs: list[float]


def answers_of(engine: Engine, requests: list[EngineRequest]) -> list[Answer]:
    """In the order of the requests, which all come before the first step."""
    answers = {request.request_id: Answer([], []) for request in requests}
    for request in requests:
        if (refused := engine.add(request)) is not None:
            raise SystemExit(f"request {request.request_id} was refused: {refused.message}")
    while engine.has_work():
        for output in engine.step():
            answers[output.request_id].token_ids.extend(output.new_token_ids)
            answers[output.request_id].logprobs.extend(each.logprob for each in output.logprobs or ())
    return list(answers.values())
