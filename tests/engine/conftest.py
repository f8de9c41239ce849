"""What several engine tests share: transformers as the oracle of what a checkpoint computes, kernels without a GPU."""

import os
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead_engine.core import engine, startup
from fairlead_engine.runner import ModelRunner
from fairlead_engine_testing.interpreted_kernels import keep_what_does_not_change

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # decides, when a kernel is defined, that it runs on the CPU

TOLERANCE = 1e-3
"""How far below the reference's maximum logit a chosen token may lie, in float32."""


class Reference:
    """transformers on the same checkpoint, in float32, one sequence at a time, without a cache."""

    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        from fairlead_engine_testing.unlisted_models import list_models

        list_models()
        logging.disable_progress_bar()
        self._load = lru_cache(maxsize=4)(
            lambda folder: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        )

    def model(self, folder: Path) -> Any:
        return self._load(folder)

    def logits(self, folder: Path, token_ids: list[int]) -> torch.Tensor:
        """[tokens, vocab]: row i predicts token i + 1."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(folder)(torch.tensor([token_ids])).logits[0]
        return logits

    def check_greedy(self, folder: Path, prompt: list[int], output: list[int]) -> None:
        """Every chosen token is the reference's own choice, or ties with it within the tolerance."""
        assert output
        logits = self.logits(folder, prompt + output[:-1])[len(prompt) - 1 :]
        best = logits.topk(2)
        for position, token_id in enumerate(output):
            gap = float(best.values[position, 0] - logits[position, token_id])
            assert gap <= TOLERANCE, f"output token {position}: {token_id} lies {gap} below the reference's choice"
            if best.values[position, 0] - best.values[position, 1] > TOLERANCE:
                assert token_id == int(best.indices[position, 0])


@pytest.fixture(scope="session", autouse=True)
def interpreter() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None:
        keep_what_does_not_change()


@pytest.fixture(scope="session", autouse=True)
def cold_engines() -> Iterator[None]:
    """Engines in this process leave out the six steps of a warm-up, unless `test_parity` has them: for each family."""
    with pytest.MonkeyPatch.context() as patch:
        warm_up = startup.warm_up
        patch.setattr(engine, "warm_up", lambda *args: [] if isinstance(args[0], ModelRunner) else warm_up(*args))
        yield


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference()
