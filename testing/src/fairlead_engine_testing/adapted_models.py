"""A model that is served with adapters, and what peft computes of it."""

import random
import warnings
from array import array
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.runner import ModelRunner
from fairlead_engine.types import EngineRequest
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.requests import make_request

TOLERANCE = 1e-3
"""Of log-probabilities."""


class Peft:
    """The reference: transformers with peft's adapters, one sequence at a time."""

    def __init__(self, model: Path, adapters: Mapping[str, Path]) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first, *others = adapters
            self._model = PeftModel.from_pretrained(base, adapters[first], adapter_name=first).eval()
            for name in others:
                self._model.load_adapter(adapters[name], adapter_name=name)

    def logits(self, adapter: str | None, token_ids: list[int]) -> torch.Tensor:
        """[tokens, vocab], of the tokens that are somebody's: a soft prompt has more before them."""
        with torch.inference_mode():
            if adapter is None:
                with self._model.disable_adapter():
                    logits = self._model(torch.tensor([token_ids])).logits[0]
            else:
                self._model.set_adapter(adapter)
                logits = self._model(torch.tensor([token_ids])).logits[0]
        return logits[-len(token_ids) :]  # type: ignore[no-any-return]


def config_of(model: Path, adapters: Mapping[str, Path], **settings: Any) -> EngineConfig:
    """On a CPU, in float32, with blocks of 4 tokens."""
    common: dict[str, Any] = {
        "dtype": "float32", "device": "cpu", "num_threads": 1, "block_size": 4, "max_model_len": 64,
        "max_num_queued_tokens": 10**6, "kv_cache_memory": 2**20, "max_lora_rank": 64,
    }  # fmt: skip
    modules = ",".join(f"{name}={folder}" for name, folder in adapters.items())
    return EngineConfig(model=str(model), lora_modules=modules or None, **{**common, **settings})


@dataclass
class Answer:
    """Everything that an engine has told of a request."""

    tokens: list[int]
    logprobs: list[float]
    prompt_logprobs: list[float]
    vector: list[float]
    num_cached_tokens: int


def serve(engine: Engine, requests: Iterable[EngineRequest]) -> dict[str, Answer]:
    """By request id. None of the requests may fail."""
    found: dict[str, Answer] = {}
    for name, output in answered(engine, requests).items():
        assert output.message is None
        vector = array("f", output.embedding or b"").tolist()
        logprobs, prompt_logprobs = (
            [each.logprob for each in of or ()] for of in (output.logprobs, output.prompt_logprobs)
        )
        found[name] = Answer(output.new_token_ids, logprobs, prompt_logprobs, vector, output.num_cached_tokens)
    return found


def requests_of_all(adapters: Iterable[str], longest: int) -> list[EngineRequest]:
    """Two requests for each adapter, and two for none, with prompts drawn by chance."""
    draw = random.Random(1)
    return [
        make_request(
            str(index), [draw.randrange(2, 250) for _ in range(draw.randint(1, longest))], adapter=adapter,
            max_tokens=6, ignore_eos=True, logprobs=0,
        )
        for index, adapter in enumerate([*adapters, None] * 2)
    ]  # fmt: skip


def ranks_agree(model: Path, adapters: Mapping[str, Path], **settings: Any) -> None:
    """One rank and two give each adapter's requests the same tokens."""
    answers = []
    for size in (1, 2):
        config = config_of(model, adapters, tensor_parallel_size=size, **settings)
        requests = [
            make_request(str(index), range(3, 12 + index), adapter=adapter, max_tokens=9, ignore_eos=True)
            for index, adapter in enumerate([*adapters, None])
        ]
        with closing(ModelRunner(config)) as runner:
            answers.append({name: each.tokens for name, each in serve(Engine(config, runner), requests).items()})
    assert answers[0] == answers[1]
    assert len({tuple(tokens) for tokens in answers[0].values()}) > 3


def check(peft: Peft, request: EngineRequest, answer: Answer) -> None:
    """Tokens and log-probabilities of a greedy request are the reference's."""
    prompt = request.prompt_token_ids
    wanted = peft.logits(request.adapter, prompt + answer.tokens).log_softmax(-1)[len(prompt) - 1 : -1]
    assert len(answer.tokens) == request.sampling.max_tokens
    for row, token_id, logprob in zip(wanted, answer.tokens, answer.logprobs, strict=True):
        assert float(row[token_id]) == pytest.approx(logprob, abs=TOLERANCE)
        best = row.topk(2).values
        assert best[0] - row[token_id] <= TOLERANCE
        assert best[0] - best[1] <= TOLERANCE or token_id == int(row.argmax())
