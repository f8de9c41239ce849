"""Prompts of texts and images for an engine, and what transformers' model says of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch

from fairlead_engine.core.engine import Engine
from fairlead_engine.images.image_decoding import fit
from fairlead_engine.types import EngineRequest, FinishReason, PromptImage, SamplingParams
from fairlead_engine_testing.checked_steps import answered

TOLERANCE = 1e-3


class ReferenceScene(ABC):
    """A prompt of texts and images, for both sides."""

    around: ClassVar[tuple[int, int]]
    """Tokens before and behind each image."""
    within: ClassVar[int]
    """The token in place of an image."""
    unwanted: ClassVar[tuple[int, ...]] = ()
    """Tokens that no answer may have."""

    def __init__(self, engine: Engine, *parts: Any) -> None:
        """`parts`: token ids, or images."""
        self.token_ids: list[int] = []
        self.pictures = [part for part in parts if not isinstance(part, list)]
        images: list[PromptImage] = []
        before, behind = self.around
        settings = engine.runner.model_config.task.images
        assert settings is not None
        for part in parts:
            if isinstance(part, list):
                self.token_ids += part
                continue
            self.token_ids.append(before)
            images.append(fit(part, settings).placed(len(self.token_ids)))
            self.token_ids += [self.within] * images[-1].num_tokens + [behind]
        self.images = tuple(images)

    @abstractmethod
    def seen(self, processor: Any, ids: torch.Tensor) -> dict[str, Any]:
        """What the reference gets beside these tokens."""

    def request(self, name: str, num_new: int, **sampling: Any) -> EngineRequest:
        return EngineRequest(
            request_id=name, prompt_token_ids=self.token_ids, images=self.images, arrival_time=0.0,
            sampling=SamplingParams(
                temperature=0.0, ignore_eos=True, max_tokens=num_new,
                bad_words=tuple((token_id,) for token_id in self.unwanted), **sampling,
            ),
        )  # fmt: skip

    def logits(self, reference: Any, processor: Any, output: list[int]) -> torch.Tensor:
        """[tokens, vocab] of the reference, in one go, without a cache."""
        ids = torch.tensor([self.token_ids + output])
        with torch.inference_mode():
            logits: torch.Tensor = reference(input_ids=ids, **self.seen(processor, ids)).logits[0]
        return logits.clone()

    def check_scores(self, engine: Engine, reference: Any, processor: Any) -> None:
        """Of all of the prompt's tokens but the first."""
        scored = answered(engine, [self.request("scored", 1, prompt_logprobs=0)])["scored"].prompt_logprobs
        assert scored is not None
        logits = self.logits(reference, processor, [])[:-1].log_softmax(-1)
        expected = logits[torch.arange(len(logits)), self.token_ids[1:]]
        assert torch.tensor([each.logprob for each in scored]).sub(expected).abs().max() <= TOLERANCE

    def check(self, reference: Any, processor: Any, output: list[int]) -> None:
        """Each token of the answer is the reference's choice."""
        logits = self.logits(reference, processor, output[:-1])[len(self.token_ids) - 1 :]
        logits[:, list(self.unwanted)] = float("-inf")
        for position, token_id in enumerate(output):
            gap = float(logits[position].max() - logits[position, token_id])
            assert gap <= TOLERANCE, f"output token {position}: {token_id} lies {gap} below the reference's choice"


def serve(engine: Engine, scenes: Sequence[ReferenceScene], num_new: int, per_step: int = 1) -> list[list[int]]:
    """Answers; so many scenes arrive at each step."""
    requests = [scene.request(f"request-{index}", num_new) for index, scene in enumerate(scenes)]
    outputs: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while requests or engine.has_work():
        arrived, requests = requests[:per_step], requests[per_step:]
        for request in arrived:
            assert engine.add(request) is None
        for output in engine.step():
            outputs[output.request_id] += output.new_token_ids
            assert output.finish_reason in (None, FinishReason.LENGTH), output.message
        engine.check()
    assert not cast(Any, engine.runner)._part.images._kept, "vectors were left"
    return list(outputs.values())


def serve_checked(
    engine: Engine, scenes: Sequence[ReferenceScene], num_new: int, reference: Any, processor: Any, per_step: int = 1
) -> None:
    """Answers that are the reference's choice."""
    for scene, output in zip(scenes, serve(engine, scenes, num_new, per_step), strict=True):
        scene.check(reference, processor, output)


def words(seed: int, num: int = 7) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(0, 250, num).tolist()
    return drawn
