"""What a layer beside a model guesses while an engine answers, for comparison with a reference."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from fairlead_engine.config import EngineConfig
from fairlead_engine.runner import model_part
from fairlead_engine.runner.step_graphs import StepGraphs
from fairlead_engine.types import EngineLoad, EngineRequest
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.greedy_answers import engine_of_blocks
from fairlead_engine_testing.launches import CPUGraphs

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


def prefix_sharers() -> list[EngineRequest]:
    """Two that share 16 tokens, `b` behind `a`, behind which `a` has 20 and `b` 33."""
    shared = [2 + 5 * place % 50 for place in range(16)]
    return [
        make_request(name, [*shared, first, 9], arrival_time=index, max_tokens=12, ignore_eos=True)
        for index, (name, first) in enumerate([("a", 20), ("b", 33)])
    ]


def captured_decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has steps captured; gets the number of sequences of each decode that is a graph."""
    decoded: list[int] = []
    kept = StepGraphs.decode

    def decode(self: StepGraphs, slots: Any, *rest: Any) -> Any:
        decoded.append(len(slots))
        return kept(self, slots, *rest)

    monkeypatch.setattr(StepGraphs, "decode", decode)
    monkeypatch.setattr(model_part, "choose_recorder", lambda *_, **__: CPUGraphs())
    return decoded


class GuessReference(ABC):
    """What guesses beside a model, over whole texts."""

    @abstractmethod
    def seen(self, tokens: list[int]) -> Tensor:
        """What the model hands out of each token."""

    @abstractmethod
    def guess(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """What stands at each place, by the token behind it and what was handed out of it."""

    @abstractmethod
    def scores(self, last: Tensor) -> Tensor:
        """The logits of one place."""

    @torch.no_grad()
    def drafts(self, tokens: list[int], num: int, bias: Mapping[int, float], behind: Mapping[int, int]) -> list[int]:
        """Behind tokens whose last one the model has not seen. `behind`: by position, which token was seen behind it
        where that is not the next one."""
        hidden = self.seen(tokens[:-1])
        seen = [behind.get(position, token) for position, token in enumerate(tokens[1:])]
        found: list[int] = []
        for _ in range(num):
            last = self.guess(torch.tensor(seen), hidden)[-1]
            logits = self.scores(last)
            for token_id, value in bias.items():
                logits[token_id] += value
            found.append(int(logits.argmax()))
            seen, hidden = [*seen, found[-1]], torch.cat((hidden, last[None]))
        return found

    def check(
        self, config: EngineConfig, asked: list[EngineRequest], behind: Mapping[str, Mapping[int, int]]
    ) -> EngineLoad:
        """All that was guessed is what this guesses. `behind`: of requests, which tokens were seen behind positions
        where others came."""
        load, guesses = watched_guesses(config, asked)
        biases = {request.request_id: dict(request.sampling.logit_bias) for request in asked}
        for request_id, known, drafts in guesses:
            assert drafts == self.drafts(known, len(drafts), biases[request_id], behind.get(request_id, {}))
        assert len({request_id for request_id, _, _ in guesses}) == len(asked)
        assert len(guesses) > 5
        return load
