"""Soft prompts on real models: what peft computes, beside LoRA adapters and none, however steps go; and nobody sees
that there are tokens before the prompt."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError
from fairlead_engine.speculative.ngram import NGramProposer
from fairlead_engine.types import EngineRequest, Pooling, SamplingParams
from fairlead_engine.types.sequences import Sequence
from fairlead_engine_testing import make_request
from fairlead_engine_testing.adapted_models import (
    TOLERANCE,
    Answer,
    Peft,
    check,
    config_of,
    ranks_agree,
    requests_of_all,
    serve,
)
from fairlead_engine_testing.adapters import write_random_adapter, write_random_soft_prompt
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields

NUM_VIRTUAL = {"short": 1, "soft": 6, "long": 11}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("soft") / "model", llama_fields())


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_adapters(tmp_path_factory.mktemp("soft-adapters"), model)


def write_adapters(folder: Path, model: Path) -> dict[str, Path]:
    """Three soft prompts and a LoRA adapter."""
    found = {
        name: write_random_soft_prompt(folder / name, model, seed=number, num_virtual_tokens=number)
        for name, number in NUM_VIRTUAL.items()
    }
    return {**found, "lora": write_random_adapter(folder / "lora", model, rank=4)}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_many_in_one_batch_are_what_peft_computes(family: str, tmp_path: Path) -> None:
    """In chunks that end among the virtual tokens, beside a LoRA adapter and none."""
    model = write_random_checkpoint(tmp_path / "model", FAMILIES[family]())
    adapters = write_adapters(tmp_path / "adapters", model)
    engine = Engine(config_of(model, adapters, max_num_batched_tokens=8, max_num_seqs=8))
    requests = requests_of_all(adapters, 14)
    found = serve(engine, requests)
    for adapter in [*adapters, None]:
        peft = Peft(model, {name: adapters[name] for name in [adapter or "lora"]})
        for request in requests:
            if request.adapter == adapter:
                check(peft, request, found[request.request_id])
    assert len({tuple(each.tokens) for each in found.values()}) > len(adapters), "adapters change what is said"


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "P_TUNING"])
def test_what_peft_has_saved_is_read(kind: str, model: Path, tmp_path: Path) -> None:
    from peft import PromptEncoderConfig, PromptTuningConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    common: dict[str, Any] = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 5}
    config = PromptTuningConfig(**common) if kind == "PROMPT_TUNING" else PromptEncoderConfig(**common)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        get_peft_model(base, config).save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/adapter_config.json").read_text())["peft_type"] == kind
    request = make_request("r", [7, 9, 30], adapter="x", max_tokens=5, ignore_eos=True, logprobs=0)
    found = serve(Engine(config_of(model, {"x": tmp_path / "saved"})), [request])
    check(Peft(model, {"x": tmp_path / "saved"}), request, found["r"])


def test_penalties_and_log_probabilities_of_prompts_see_no_virtual_tokens(
    model: Path, adapters: dict[str, Path]
) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    prompt = [8, 200, 31, 8, 90, 44]
    requests = [
        make_request("scored", prompt, adapter="soft", max_tokens=1, ignore_eos=True, prompt_logprobs=0),
        make_request("again", prompt, adapter="soft", max_tokens=1, ignore_eos=True, prompt_logprobs=0),
        make_request("penalised", prompt, adapter="soft", max_tokens=12, ignore_eos=True, repetition_penalty=5.0),
    ]
    engine = Engine(config_of(model, adapters, max_num_batched_tokens=5))
    found = {name: answer for each in requests for name, answer in serve(engine, [each]).items()}
    peft = Peft(model, {"soft": adapters["soft"]})
    logprobs = peft.logits("soft", prompt).log_softmax(-1)
    wanted = [float(row[token_id]) for row, token_id in zip(logprobs[:-1], prompt[1:], strict=True)]
    for name in ("scored", "again"):
        assert found[name].prompt_logprobs == pytest.approx(wanted, abs=TOLERANCE)
    penalty, token_ids = RepetitionPenaltyLogitsProcessor(5.0), [*prompt]
    for token_id in found["penalised"].tokens:
        row = penalty(torch.tensor([token_ids]), peft.logits("soft", token_ids)[-1:].clone())[0]
        assert float(row.max() - row[token_id]) <= TOLERANCE
        token_ids.append(token_id)


def test_repetitions_are_looked_for_behind_virtual_tokens(model: Path, adapters: dict[str, Path]) -> None:
    """All that came before the first token is one that a soft prompt has, so that nothing can repeat it."""
    common: dict[str, Any] = {"max_tokens": 1, "ignore_eos": True, "logprobs": 0, "adapter": "long"}
    plain = make_request("plain", [50], **common)
    dry = make_request("dry", [50], **common, dry_multiplier=50.0, dry_base=2.0, dry_allowed_length=1)
    biased = {50: 100.0}  # it would be chosen, were it not for a repetition that is none
    plain, dry = (replace_sampling(each, logit_bias=biased) for each in (plain, dry))
    found = serve(Engine(config_of(model, adapters)), [plain, dry])
    assert found["dry"].tokens == found["plain"].tokens == [50]


def replace_sampling(request: EngineRequest, **values: Any) -> EngineRequest:
    import msgspec

    sampling = msgspec.structs.replace(request.sampling, **values)
    return msgspec.structs.replace(request, sampling=sampling)


def test_cached_prefixes_count_without_virtual_tokens_and_belong_to_their_adapter(
    model: Path, adapters: dict[str, Path]
) -> None:
    engine = Engine(config_of(model, adapters))
    prompt = [*range(3, 22)]  # with 6 virtual tokens 25, of which 6 blocks of 4 are whole

    def ask(adapter: str | None) -> Answer:
        return serve(engine, [make_request("r", prompt, adapter=adapter, max_tokens=4, ignore_eos=True)])["r"]

    first, second = ask("soft"), ask("soft")
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 24 - 6)
    assert first.tokens == second.tokens
    assert ask("long").num_cached_tokens == ask(None).num_cached_tokens == 0
    assert engine.load.virtual_tokens == NUM_VIRTUAL


def test_nothing_is_quoted_from_virtual_tokens() -> None:
    proposer = NGramProposer(1, 3)
    for text, most, wanted in (([9], 3, []), ([9, 4], 3, []), ([9, 4, 9], 2, [4, 9])):
        sequence = Sequence("r", [9] * 6 + text, 7, SamplingParams(), num_virtual_tokens=6)
        assert proposer.propose(sequence, most) == wanted


def test_a_draft_model_is_not_asked_where_it_lacks_the_prompt(model: Path, adapters: dict[str, Path]) -> None:
    settings: dict[str, Any] = {"speculative_method": "draft", "num_speculative_tokens": 2}
    engine = Engine(config_of(model, adapters, **settings, speculative_model=str(model)))
    request = make_request("r", [5, 6, 7], adapter="long", max_tokens=4, ignore_eos=True)
    alone = serve(Engine(config_of(model, adapters)), [request])["r"].tokens
    found = serve(engine, [request, make_request("plain", [5, 6, 7], max_tokens=1)])
    assert engine.load.num_draft_tokens == 0 and found["r"].tokens == alone
    serve(engine, [make_request("r", [5, 6, 7], max_tokens=4, ignore_eos=True)])
    assert engine.load.num_draft_tokens > 0


def test_ranks_have_the_prompt_whole(tmp_path: Path) -> None:
    model = write_random_checkpoint(tmp_path / "model", llama_fields(num_key_value_heads=1))
    adapters = write_adapters(tmp_path / "adapters", model)
    ranks_agree(model, adapters, max_num_batched_tokens=8, max_num_seqs=8)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "PREFIX_TUNING'; only LORA, PROMPT_TUNING, P_TUNING are served: keys"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA"),
        ({"peft_type": ["LORA"]}, "peft_type is"),
        ({"task_type": "SEQ_2_SEQ_LM"}, "task_type is 'SEQ_2_SEQ_LM'; only soft prompts of CAUSAL_LM"),
        ({"num_transformer_submodules": 2}, "num_transformer_submodules must be 1"),
        ({"num_virtual_tokens": 0}, "num_virtual_tokens must be a whole number above 0, not 0"),
        ({"num_virtual_tokens": 7}, r"should have shape \[7, 64\], but has \[5, 64\]"),
        ({"token_dim": 128}, "token_dim is 128, and embeddings of this model have 64 numbers"),
        ({"magic": 3}, "magic is 3, which this engine does not know"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(
    config: dict[str, Any], said: str, model: Path, tmp_path: Path
) -> None:
    folder = write_random_soft_prompt(tmp_path / "soft", model)
    fields = {**json.loads((folder / "adapter_config.json").read_text()), **config}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=said):
        Engine(config_of(model, {"x": folder}))


def test_tensors_that_are_none_of_a_soft_prompt_are_refused_by_name(model: Path, tmp_path: Path) -> None:
    folder = write_random_soft_prompt(tmp_path / "soft", model)
    wrong: tuple[tuple[dict[str, torch.Tensor], str], ...] = (
        ({"prompt_embeddings": torch.full((5, 64), float("nan"))}, "no finite number"),
        ({"prompt_embeddings": torch.zeros(5, 64, dtype=torch.int32)}, "holds int32, no floats"),
        ({"base_model.model.x.lora_A.weight": torch.zeros(5, 64)}, "must hold one tensor, prompt_embeddings"),
    )
    for tensors, said in wrong:
        save_file(tensors, folder / "adapter_model.safetensors")
        with pytest.raises(ConfigError, match=said):
            Engine(config_of(model, {"x": folder}))
    huge = write_random_soft_prompt(tmp_path / "huge", model, num_virtual_tokens=63)
    with pytest.raises(ConfigError, match="its 63 virtual tokens leave no room in the context; at most 62 do"):
        Engine(config_of(model, {"x": huge}))


def test_no_vector_is_made_with_one(model: Path, adapters: dict[str, Path]) -> None:
    engine = Engine(config_of(model, adapters))
    refused = engine.add(make_request("r", [3, 4], adapter="soft", max_tokens=0, pooling=Pooling.LAST))
    assert refused is not None and "no vectors are made with soft prompts" in (refused.message or "")
