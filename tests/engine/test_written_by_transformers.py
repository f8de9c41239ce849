"""Models that transformers itself has written, with its names of tensors and its `config.json`, tell what it tells."""

from pathlib import Path

import pytest
import torch
import transformers

from fairlead_engine.llm import LLM
from fairlead_engine.types import SamplingParams
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.unlisted_models import list_models

pytestmark = pytest.mark.compute

PROMPT = [7 + (5 * index + index * index // 3) % 40 for index in range(24)]


def spread_parameters(network: torch.nn.Module) -> None:
    """Draws parameters anew, so that no answer depends on one of them being zero and no two logits are alike."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, each in network.named_parameters():
            noise = torch.randn(each.shape, generator=generator)
            if each.dim() > 1:
                each.copy_(noise if "embed" in name else noise * 1.2 / each.shape[-1] ** 0.5)
            elif name.endswith("A_log"):
                each.copy_(noise.sigmoid())
            else:
                each.copy_(each.mean().round() + 0.1 * noise)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_transformers_has_written_tells_what_it_tells_there(family: str, tmp_path: Path) -> None:
    fields = FAMILIES[family](max_position_embeddings=128)
    config = transformers.AutoConfig.for_model(**fields)
    config._experts_implementation = "eager"  # the other one wants rows of whole 16 bytes
    torch.manual_seed(0)
    list_models()
    network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    spread_parameters(network)
    network.save_pretrained(tmp_path)
    write_letters(tmp_path)
    with torch.inference_mode():
        wanted = network(torch.tensor([PROMPT])).logits[0, :-1].float().log_softmax(-1)
    model = LLM(str(tmp_path), dtype="float32", device="cpu", num_threads=1, max_model_len=64)
    [found] = model.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1))
    assert found.prompt_logprobs is not None
    told = torch.tensor([each.logprob for each in found.prompt_logprobs])
    assert wanted.std() > 0.3
    assert told == pytest.approx(wanted.gather(1, torch.tensor(PROMPT[1:]).unsqueeze(1)).squeeze(1), abs=2e-3)
