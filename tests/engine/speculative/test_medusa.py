"""Medusa's heads: what they compute, and that they guess for the right place."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.runner.medusa_heads import MedusaHeads
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import run_checked
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import small_engine
from fairlead_engine_testing.tiny_families.dense import llama_fields

pytestmark = pytest.mark.matrix

VOCAB_SIZE, HIDDEN = 61, 64


class ResBlock(nn.Module):
    """As Medusa's own code has it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.silu(self.linear(x))


def heads(num_heads: int = 3, num_blocks: int = 1, seed: int = 0) -> nn.ModuleList:
    torch.manual_seed(seed)
    return nn.ModuleList(
        nn.Sequential(*(ResBlock() for _ in range(num_blocks)), nn.Linear(HIDDEN, VOCAB_SIZE, bias=False))
        for _ in range(num_heads)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"), llama_fields(vocab_size=VOCAB_SIZE))


def load_heads(folder: Path, **changes: Any) -> MedusaHeads:
    wanted = {
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB_SIZE,
        "most_drafts": 1,
        "dtype": torch.float32,
        "device": "cpu",
    }
    return MedusaHeads(folder, **{**wanted, **changes})


@pytest.mark.parametrize("num_blocks", [0, 1, 2])
@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_heads_compute_what_their_authors_code_does(num_blocks: int, form: str, tmp_path: Path) -> None:
    reference = heads(num_blocks=num_blocks)
    if form == "pt":
        torch.save(reference.state_dict(), tmp_path / "medusa_lm_head.pt")
    else:
        save_file(reference.state_dict(), tmp_path / "medusa_lm_head.safetensors")
    loaded, hidden = load_heads(tmp_path, most_drafts=3), torch.randn(5, HIDDEN)
    for place, head in enumerate(reference):
        torch.testing.assert_close(loaded.logits(place, hidden), head(hidden))


def test_heads_guess_from_the_state_that_the_last_token_was_chosen_from(folder: Path, tmp_path: Path) -> None:
    """Heads that are the model's own output say again what it has said: right where it repeats itself."""
    output = load_file(folder / "model.safetensors")["lm_head.weight"]
    save_file({f"{head}.0.weight": output.clone() for head in range(3)}, tmp_path / "medusa_lm_head.safetensors")
    engine = small_engine(
        folder, max_model_len=64, speculative_method="medusa", speculative_model=str(tmp_path), num_speculative_tokens=3
    )
    runner = engine.runner
    guessed: list[tuple[list[int], list[int]]] = []
    collect = runner.collect

    def watched(launched: Any) -> Any:
        sampled = collect(launched)
        guessed.extend((item.drafts, item.sequence.token_ids) for item in launched.batch.chunks if item.drafts)
        assert all(
            item.drafts == [item.sequence.token_ids[-1]] * len(item.drafts)
            for item in launched.batch.chunks
            if item.drafts
        )
        return sampled

    runner.collect = watched
    for index in range(4):
        engine.add(make_request(str(index), [5 + index, 9, 7], max_tokens=30, ignore_eos=True))
    run_checked(engine)
    assert len(guessed) > 8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.clear(), "no head 0"),
        (lambda tensors: tensors.pop("1.1.weight"), "1.1.weight is missing"),
        (lambda tensors: tensors.pop("0.0.linear.bias"), "0.0.linear.weight and its bias"),
        (
            lambda tensors: tensors.update({"0.1.weight": torch.zeros(VOCAB_SIZE, 3)}),
            "0.1.weight is missing, or does not",
        ),
        (lambda tensors: tensors.update({"x.weight": torch.zeros(3)}), "x.weight is of no head"),
    ],
)
def test_what_are_no_heads_is_refused(change: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"none of medusa_lm_head\.safetensors"):
        load_heads(tmp_path)
    tensors = dict(heads().state_dict())
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=says):
        load_heads(tmp_path)


def test_more_drafts_than_heads_are_refused_by_the_settings_name(tmp_path: Path) -> None:
    save_file(heads().state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="has 3 heads") as error:
        load_heads(tmp_path, most_drafts=4)
    assert error.value.field == "num_speculative_tokens"
