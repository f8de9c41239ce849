"""`fairlead-engine compare`: what quantising costs, within bounds, as a person and a script read it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fairlead_engine.__main__ import main
from fairlead_engine.config import KV_CACHE_DTYPES, QUANTIZATIONS, EngineConfig
from fairlead_engine.runner.comparison import LogitModel, compare, random_prompts
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.quantized_checkpoints import write_compressed_tensors
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields

BOUNDS = {
    "int8": (0.003, 0.05, 0.9),
    "int8-weight-only": (0.0015, 0.04, 0.92),
    "int4-weight-only": (0.1, 0.4, 0.45),
    "fp8": (0.025, 0.15, 0.75),
}
"""For tiny random models, whose likeliest tokens are hardly likelier than others: the mean divergence in nats, the mean
error of logits over their deviation, and the share of positions with the same token."""

KV_BOUNDS = {"as stored, KV int8": (2e-4, 0.012, 0.96), "as stored, KV fp8": (0.01, 0.08, 0.85)}
"""The same for formats of the KV cache."""

ROUTED_DIVERGENCE, ROUTED_ERROR, ROUTED_DISAGREEMENT = 0.004, 0.005, 0.03
"""What models with experts may add: a router that reads rounded numbers chooses another expert here and there, and then
that token's logits are another network's."""


of_each_family = pytest.mark.parametrize(
    "family",
    [
        family if family in ("llama", "qwen3", "mixtral") else pytest.param(family, marks=pytest.mark.compute)
        for family in FAMILIES
    ],
)
"""Those that have linear layers, norms of heads, and experts; the others are made of the same."""


def bounds(family: str, dense: tuple[float, float, float]) -> tuple[float, float, float]:
    """Those of a family: most divergence, most error, least agreement.

    States carry the errors of all earlier tokens along. A query that chooses a dozen tokens loses a twelfth of what is
    seen with each that rounding leaves out. Experts whose weights are not a share of 1, or whose scores lie close,
    count up to 2.8 times. What all compute with rounded weights is transformers' to the token (`test_quantization.py`).
    """
    divergence, error, agreement = dense
    config = FAMILIES[family].config
    if config.recurrent:
        return 6 * (divergence + ROUTED_DIVERGENCE), 2.8 * (error + ROUTED_ERROR), agreement - 0.25
    if config.indexed:
        return 3 * divergence + 0.08, 1.3 * error + 0.17, agreement - 0.3
    if getattr(config, "num_experts", 0):
        divergence, error = divergence + ROUTED_DIVERGENCE, error + ROUTED_ERROR
        return 2 * divergence, 1.4 * error, agreement - 3 * ROUTED_DISAGREEMENT
    return dense


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_random_checkpoint(tmp_path / "model", llama_fields())


def run(capsys, *flags: str) -> str:
    assert main(["compare", "--num-threads", "1", *flags]) == 0
    return capsys.readouterr().out


@of_each_family
def test_errors_of_every_format_stay_within_bounds(family: str, tmp_path: Path, capsys) -> None:
    folder = write_random_checkpoint(tmp_path, FAMILIES[family]())
    told = json.loads(run(capsys, "--model", str(folder), "--dtype", "float32", "--json"))
    assert told["formats"].keys() == set(QUANTIZATIONS)
    for name, figures in told["formats"].items():
        most_divergence, most_error, least_agreement = bounds(family, BOUNDS[name])
        assert 0 < figures["mean_kl_divergence"] < most_divergence, name
        assert figures["mean_kl_divergence"] <= figures["max_kl_divergence"]
        assert figures["mean_logit_error"] < most_error * figures["logit_deviation"]
        assert figures["top1_agreement_ratio"] > least_agreement
        assert figures["num_positions"] == 8 * 64
        assert figures["weight_bytes"] < figures["reference_weight_bytes"]
    assert told["formats"]["int8"]["mean_kl_divergence"] < told["formats"]["int4-weight-only"]["mean_kl_divergence"]


def test_a_model_equals_itself_and_the_figures_are_what_they_say(folder: Path, reference) -> None:
    settings = EngineConfig(model=str(folder), dtype="float32", device="cpu", num_threads=1)
    model = LogitModel(settings)
    prompts = random_prompts(256, 3, 20, seed=1)
    assert prompts == random_prompts(256, 3, 20, seed=1) != random_prompts(256, 3, 20, seed=2)
    torch.testing.assert_close(model.logits(prompts[0]), reference.logits(folder, prompts[0]), rtol=1e-3, atol=1e-3)
    same = compare(model, model, prompts)
    assert (same.mean_logit_error, same.max_kl_divergence, same.top1_agreement_ratio) == (0.0, 0.0, 1.0)
    other = LogitModel(replace(settings, quantization="int4-weight-only"))
    found = compare(other, model, prompts)
    theirs = torch.cat([other.logits(prompt) for prompt in prompts])
    ours = torch.cat([model.logits(prompt) for prompt in prompts])
    divergence = torch.nn.functional.kl_div(
        theirs.log_softmax(-1), ours.log_softmax(-1), reduction="none", log_target=True
    )
    assert found.mean_kl_divergence == pytest.approx(float(divergence.sum(-1).mean()), rel=1e-3)
    assert found.max_logit_error == pytest.approx(float((theirs - ours).abs().max()), rel=1e-4)
    assert found.top1_agreement_ratio == pytest.approx(float((theirs.argmax(-1) == ours.argmax(-1)).float().mean()))


def test_the_table_has_a_line_for_each_format(folder: Path, capsys) -> None:
    flags = ["--model", str(folder), "--num-prompts", "2", "--prompt-tokens", "9"]
    lines = run(capsys, *flags, "--quantization", "int8", "fp8").splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["int8", "fp8"]
    assert "18 positions" in lines[-1]


@of_each_family
def test_errors_of_every_format_of_the_cache_stay_within_bounds(family: str, tmp_path: Path, capsys) -> None:
    folder = write_random_checkpoint(tmp_path, FAMILIES[family]())
    flags = ["--model", str(folder), "--dtype", "float32", "--json", "--kv-cache-dtype"]
    told = json.loads(run(capsys, *flags, *KV_CACHE_DTYPES))["formats"]
    assert told["as stored"]["max_logit_error"] == 0.0 and told.keys() == {"as stored", *KV_BOUNDS}
    for name, dense in KV_BOUNDS.items():
        most_divergence, most_error, least_agreement = bounds(family, dense)
        assert 0 < told[name]["mean_kl_divergence"] < most_divergence, name
        assert told[name]["mean_logit_error"] < most_error * told[name]["logit_deviation"], name
        assert told[name]["top1_agreement_ratio"] > least_agreement, name
    assert told["as stored, KV int8"]["mean_kl_divergence"] < told["as stored, KV fp8"]["mean_kl_divergence"]


def test_a_rounded_output_projection_is_compared_by_itself_and_with_rounded_weights(tmp_path: Path, capsys) -> None:
    folder = write_random_checkpoint(tmp_path, llama_fields(tie_word_embeddings=True))
    flags = ["--model", str(folder), "--dtype", "float32", "--json", "--head-quantization", "int8"]
    (name, alone), *_ = json.loads(run(capsys, *flags))["formats"].items()
    assert name == "as stored, head int8"
    assert 0 < alone["mean_kl_divergence"] < BOUNDS["int8"][0] / 2
    assert alone["top1_agreement_ratio"] > 0.95
    (name, both), *_ = json.loads(run(capsys, *flags, "--quantization", "int8"))["formats"].items()
    assert name == "int8, head int8"
    assert alone["mean_kl_divergence"] < both["mean_kl_divergence"] < 2 * BOUNDS["int8"][0]


def test_formats_of_weights_and_of_the_cache_go_together(folder: Path, capsys) -> None:
    flags = ["--model", str(folder), "--num-prompts", "2", "--prompt-tokens", "9", "--quantization", "int8"]
    lines = run(capsys, *flags, "--kv-cache-dtype", "auto", "int8").splitlines()
    assert [line.partition("  ")[0] for line in lines[1:3]] == ["int8", "int8, KV int8"]
    assert {line.count(".") for line in lines[1:3]} != {0} and len({len(line) for line in lines[:3]}) == 1


def test_what_is_stored_is_compared_with_what_it_was_made_of(folder: Path, tmp_path: Path, capsys) -> None:
    stored = write_compressed_tensors(folder, tmp_path / "stored", "int8")
    told = json.loads(run(capsys, "--model", str(stored), "--reference", str(folder), "--json"))
    rounded = json.loads(run(capsys, "--model", str(folder), "--quantization", "int8", "--json"))
    assert told["formats"]["as stored"] == rounded["formats"]["int8"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--model", "/nowhere"], "/nowhere does not exist"),
        (["--prompt-tokens", "513"], "prompt-tokens: 513 is more than the model's context of 512"),
        (["--reference", "OTHER"], "reference: it has 128 tokens and the model has 256"),
    ],
)
def test_what_does_not_fit_is_said(flags: list[str], says: str, folder: Path, tmp_path: Path, capsys) -> None:
    other = write_random_checkpoint(tmp_path / "other", llama_fields(vocab_size=128))
    flags = [str(other) if flag == "OTHER" else flag for flag in flags]
    assert main(["compare", "--model", str(folder), "--num-threads", "1", *flags]) == 1
    assert says in capsys.readouterr().err
