"""What a layer beside a model guesses while an engine answers, for comparison with a reference."""

from typing import Any

from fairlead_engine.config import EngineConfig
from fairlead_engine.types import EngineLoad, EngineRequest
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.greedy_answers import engine_of_blocks

Guess = tuple[str, list[int], list[int]]
"""Of a request: what was known, and what was guessed to come."""


def watched_guesses(config: EngineConfig, asked: list[EngineRequest]) -> tuple[EngineLoad, list[Guess]]:
    engine = engine_of_blocks(config, 20)
    guesses: list[Guess] = []
    collect = engine.runner.collect

    def watched(launched: Any) -> Any:
        sampled = collect(launched)
        for item in launched.batch.chunks:
            if item.drafts:
                guesses.append((item.sequence.request_id, list(item.sequence.token_ids), list(item.drafts)))
        return sampled

    engine.runner.collect = watched  # type: ignore[method-assign]
    answered(engine, asked)
    assert engine.blocks.num_free == engine.blocks.num_blocks
    return engine.load, guesses


BIASES: list[dict[int, float]] = [{}, {7: 2.5, 32: 2.0}, {7: 99.0}]
"""Some guesses stand then, and all."""


def biased_requests() -> list[EngineRequest]:
    """Six prompts of 1 to 21 tokens, of words up to 51."""
    return [
        make_request(
            str(index), [2 + (11 * index + 3 * place) % 50 for place in range(1 + 4 * index)], arrival_time=index,
            max_tokens=18, ignore_eos=True, logit_bias=BIASES[index % 3],
        )
        for index in range(6)
    ]  # fmt: skip
