"""Verdicts, and what is proposed: every proposal, made, fits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.llmdeployment import EngineSpec, ListedAdapter, LLMDeploymentSpec, Model, Speculative
from fairlead.fit.fit_check import Fit, Memory, Verdict, assumed, check, read_shape, undivided
from fairlead.fit.memory_need import EngineChoice, reckon
from fairlead.fit.presets import presets
from fairlead.fit.remedies import remedies
from fairlead_common.models.choices import UTILIZATION, DeviceKind, SpeculativeMethod
from fairlead_common.models.load_errors import ModelLoadError

GIB = 2**30
CONFIGS = Path(__file__).parent / "configs"
LLAMA_8B, LLAMA_70B = (presets()[name].config for name in ("llama-3-1-8b-instruct", "llama-3-1-70b-instruct"))


def gpu(gib: float, **changes: Any) -> Memory:
    return Memory(device=DeviceKind.CUDA, per_rank=int(gib * GIB), name="a GPU of resources.profile mine", **changes)


def cpu(gib: float) -> Memory:
    return Memory(device=DeviceKind.CPU, per_rank=int(gib * GIB), name="resources.profile mine")


def found(config: Any, memory: Memory, **choice: Any) -> Fit:
    return check(read_shape(config), EngineChoice(**choice), memory)


def spec(engine: EngineSpec, adapters: tuple[ListedAdapter, ...] = ()) -> LLMDeploymentSpec:
    return LLMDeploymentSpec(model=Model(source="hf://acme/model"), engine=engine, adapters=adapters)


def test_a_model_that_fits() -> None:
    fit = found(LLAMA_8B, gpu(79), max_model_len=8192, max_num_seqs=16)
    assert fit.verdict is Verdict.FITS
    assert fit.held_sequences is not None and fit.held_sequences >= 16
    assert remedies(fit) == ()


def test_prefixes_in_the_hosts_memory_take_of_a_cpus_and_not_of_a_gpus() -> None:
    choice = {"max_model_len": 8192, "max_num_seqs": 2, "kv_memory": 2 * GIB, "dtype": "bfloat16"}
    kept = EngineChoice.of(spec(EngineSpec(extra_args=("--host-kv-cache-memory", "20Gi")))).host_kv_memory
    assert kept == 20 * GIB
    for memory, verdict in ((cpu(30), Verdict.TOO_LARGE), (cpu(45), Verdict.FITS), (gpu(30), Verdict.FITS)):
        fits = found(LLAMA_8B, memory, **choice)
        assert found(LLAMA_8B, memory, **choice, host_kv_memory=kept).verdict is verdict, fits.message


def test_weights_larger_than_the_memory_are_certain() -> None:
    fit = found(LLAMA_70B, gpu(79))
    assert (fit.verdict, fit.is_certain_no) == (Verdict.WEIGHTS_TOO_LARGE, True)
    assert fit.message == "the weights alone take 131.4 GiB, and a GPU of resources.profile mine has 79.0 GiB"
    assert not found(LLAMA_70B, gpu(79, is_certain=False)).is_certain_no
    assert not found(LLAMA_70B, gpu(79), is_open=True).is_certain_no


def test_what_does_not_fit_for_want_of_a_cache_is_no_certainty() -> None:
    fit = found(LLAMA_8B, gpu(16))
    assert (fit.verdict, fit.is_certain_no) == (Verdict.TOO_LARGE, False)
    assert "the cache of 2048 tokens" in fit.message


def test_fewer_sequences_than_asked_for_still_start() -> None:
    fit = found(LLAMA_8B, gpu(79), max_model_len=131072, max_num_seqs=16)
    assert fit.verdict is Verdict.FEWER_SEQUENCES
    assert {change.field for remedy in remedies(fit) for change in remedy.changes} >= {
        "engine.maxNumSeqs", "engine.maxModelLen", "engine.tensorParallelSize",
    }  # fmt: skip


def test_places_of_adapters_take_of_the_cache_and_fewer_are_proposed() -> None:
    """Llama-3.1-8B: 41,943,040 numbers at rank 16, as PEFT counts the trainable parameters of all its linear layers."""
    without = found(LLAMA_8B, gpu(24), max_model_len=2048)
    fit = found(LLAMA_8B, gpu(24), max_model_len=2048, num_adapters=2)
    assert fit.need.adapters == 2 * 41_943_040 * 2
    assert without.cache is not None and fit.cache == without.cache - fit.need.adapters
    assert "places for adapters 160.0 MiB" in fit.message
    crowded = found(LLAMA_8B, gpu(24), max_model_len=2048, num_adapters=16, adapter_rank=64)
    assert crowded.verdict is Verdict.TOO_LARGE and "places for adapters (5.0 GiB)" in crowded.message
    assert "engine.maxLoras: 1" in map(str, remedies(crowded))


def test_a_model_that_guesses_takes_weights_and_cache_and_is_not_divided() -> None:
    shape, small, memory = read_shape(LLAMA_8B), presets()["smollm2-1-7b-instruct"].config, gpu(20)
    choice = EngineChoice(max_model_len=2048, guesser="hf://acme/small", is_draft=True, quantization="fp8", ranks=2)
    draft = read_shape(small)
    fit = check(shape, choice, memory, draft)
    its = reckon(draft, EngineChoice(), DeviceKind.CUDA)
    own = reckon(shape, choice, DeviceKind.CUDA)
    assert (fit.need.draft, fit.need.weights) == (its.weights, own.weights)
    assert fit.need.kv_block == own.kv_block + its.kv_block
    assert "what guesses tokens 3.2 GiB" in fit.message and not assumed(fit)[1:]
    crowded = check(shape, choice, gpu(10), draft)
    assert crowded.verdict is Verdict.TOO_LARGE
    assert "engine.speculative: left out" in map(str, remedies(crowded))
    unknown = check(shape, choice, memory)
    assert "engine.speculative.source, whose config.json is not at hand, takes memory that is not reckoned" in assumed(
        unknown
    )


def test_a_checkpoints_layer_that_guesses_takes_weights_and_cache() -> None:
    """GLM-4.6: of its last layer what its makers publish, without copies of embeddings and output."""
    shape, memory = read_shape(json.loads((CONFIGS / "glm-4.6.json").read_text())["config"]), gpu(800)
    choice = EngineChoice.of(spec(EngineSpec(speculative=Speculative(method=SpeculativeMethod.MTP))))
    own, fit = reckon(shape, EngineChoice(), DeviceKind.CUDA), check(shape, choice, memory)
    hidden, expert, heads = 5120, 1536, 96 * 128
    linears = hidden * (2 * heads + 2 * 8 * 128) + 3 * 161 * hidden * expert + 160 * hidden + 2 * hidden * hidden
    vectors = heads + 2 * 8 * 128 + 2 * 128 + 160 + 5 * hidden
    assert fit.need.draft == 2 * (linears + vectors)
    assert (fit.need.weights, fit.need.kv_block * 92) == (own.weights, own.kv_block * 93)
    assert "what guesses tokens" in fit.message and not assumed(fit)[1:]
    crowded = check(shape, choice, gpu((own.beside_cache + own.kv(2048)) / GIB / UTILIZATION + 3))
    assert crowded.verdict is Verdict.TOO_LARGE
    assert "engine.speculative: left out" in map(str, remedies(crowded))
    refused = check(read_shape(LLAMA_8B), choice, memory)
    assert refused.verdict is Verdict.NOT_SUPPORTED and "num_nextn_predict_layers" in refused.message


def test_a_context_that_nobody_asked_for_is_lowered_as_the_engine_lowers_it() -> None:
    fit = found(LLAMA_8B, gpu(24))
    assert fit.verdict is Verdict.FITS
    assert 2048 <= fit.max_model_len < 131072
    assert fit.max_model_len % 256 == 0


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        (3, "engine.tensorParallelSize is 3, which does not divide the model's 32 attention heads"),
        (64, "which does not divide the model's 32 attention heads (num_attention_heads)"),
    ],
)
def test_ranks_that_do_not_divide_heads_are_certain_and_the_nearest_are_named(ranks: int, why: str) -> None:
    fit = found(LLAMA_8B, gpu(79), ranks=ranks)
    assert (fit.verdict, fit.is_certain_no) == (Verdict.NOT_DIVISIBLE, True)
    assert why in fit.message
    proposed = [change.value for remedy in remedies(fit) for change in remedy.changes]
    assert proposed == (["2", "4"] if ranks == 3 else ["32"])


def test_a_narrow_layer_is_not_divided() -> None:
    assert not undivided(read_shape(presets()["qwen2-5-vl-7b-instruct"].config), 2)
    narrow = {**LLAMA_8B, "intermediate_size": 14338}
    assert "intermediate_size, 14338" in undivided(read_shape(narrow), 4)
    # Ranks share heads of keys and values where there are fewer; any number of words is divided.
    assert not undivided(read_shape({**LLAMA_8B, "vocab_size": 128257}), 16)


def test_groups_with_one_scale_are_not_divided() -> None:
    quantised = {"quant_method": "awq", "bits": 4, "group_size": 128}
    config = {**LLAMA_8B, "intermediate_size": 14400, "quantization_config": quantised}
    fit = found(config, gpu(79), ranks=2)
    assert fit.verdict is Verdict.NOT_SUPPORTED
    assert "mlp.down_proj" in fit.message


def test_what_the_engine_refuses_is_said_by_its_field() -> None:
    fit = found(LLAMA_8B, gpu(79), max_model_len=200_000)
    assert fit.message == "engine.maxModelLen is 200000, and the model was made for 131072 tokens"
    assert str(remedies(fit)[0]) == "engine.maxModelLen: 131072"
    stored = {**LLAMA_8B, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    fit = found(stored, gpu(79), quantization="fp8")
    assert "engine.quantization is fp8, and the checkpoint's weights are int4-weight-only already" in fit.message
    assert str(remedies(fit)[0]) == "engine.quantization: left out"


def test_what_nobody_knows_is_no_verdict() -> None:
    memory = Memory(device=DeviceKind.CUDA, per_rank=None, name="a GPU of resources", unknown="write gpuMemory")
    fit = found(LLAMA_8B, memory)
    assert (fit.verdict, fit.usable, remedies(fit)) == (Verdict.MEMORY_UNKNOWN, None, ())
    assert fit.message.endswith("write gpuMemory")


def test_four_bits_take_less_on_a_cpu_and_more_than_eight_on_a_gpu() -> None:
    """There is no product with 4-bit integers for GPUs: they are kept as 8-bit ones, with a scale for each 32."""
    shape = read_shape(LLAMA_8B)
    sizes = {
        (kind, name): reckon(shape, EngineChoice(quantization=name), kind).weights
        for kind in DeviceKind
        for name in ("int8", "int4-weight-only")
    }
    assert sizes[DeviceKind.CPU, "int4-weight-only"] < sizes[DeviceKind.CPU, "int8"]
    assert sizes[DeviceKind.CUDA, "int4-weight-only"] > sizes[DeviceKind.CUDA, "int8"]
    fields = {str(remedy) for remedy in remedies(found(LLAMA_8B, gpu(16)))}
    assert not any("int4" in each for each in fields)


def test_a_cpu_is_reckoned_in_the_wider_format_and_refused_by_the_narrower() -> None:
    config = presets()["smollm2-1-7b-instruct"].config  # 3.2 GiB in bfloat16, 6.4 in float32
    fit = found(config, cpu(5))
    assert (fit.verdict, fit.is_certain_no) == (Verdict.TOO_LARGE, False)
    assert any("float32" in each for each in assumed(fit))
    assert found(config, cpu(5), dtype="bfloat16").verdict is Verdict.FITS
    fit = found(config, cpu(3))  # weights lie in mapped files in part
    assert (fit.verdict, fit.is_certain_no) == (Verdict.WEIGHTS_TOO_LARGE, False)


def test_other_profiles_are_proposed_by_name() -> None:
    others = {"larger": gpu(139), "smaller": gpu(22), "unknown": replace(gpu(1), per_rank=None)}
    proposed = [str(remedy) for remedy in remedies(found(LLAMA_70B, gpu(79)), others)]
    assert "engine.tensorParallelSize: 4 (with 4 GPUs in resources)" in proposed
    assert not any("smaller" in each or "unknown" in each for each in proposed)
    both = [str(each) for each in remedies(found(LLAMA_70B, gpu(79), max_num_seqs=200), {"larger": gpu(139)})]
    assert both


def test_extra_arguments_win_and_are_read() -> None:
    extra = ("--max-model-len", "4096", "--quantization=fp8", "--gpu-memory-utilization=0.5")
    engine = EngineSpec(
        max_model_len=1024, extra_args=extra,
        speculative=Speculative(method=SpeculativeMethod.DRAFT, source="pvc://models/small"), max_loras=2,
    )  # fmt: skip
    choice = EngineChoice.of(spec(engine))
    assert (choice.max_model_len, choice.quantization, choice.utilization) == (4096, "fp8", 0.5)
    assert (choice.guesser, choice.is_draft) == ("pvc://models/small", True)
    assert (choice.num_adapters, choice.adapter_rank) == (2, 16)
    given = EngineChoice.of(spec(EngineSpec(extra_args=("--max-loras=3", "--max-lora-rank=64"))))
    assert (given.num_adapters, given.adapter_rank) == (3, 64)
    listed = (ListedAdapter(name="one", source="pvc://models/one"),)
    assert EngineChoice.of(spec(EngineSpec(), listed)).num_adapters == 4
    assert (
        EngineChoice.of(spec(EngineSpec(max_loras=0))).num_adapters
        == EngineChoice.of(spec(EngineSpec())).num_adapters
        == 0
    )
    opened = (EngineSpec(image="mine"), EngineSpec(extra_args=("--device=cpu",)))
    assert [choice.is_open, *(EngineChoice.of(spec(each)).is_open for each in opened)] == [False, True, True]
    with pytest.raises(ValueError, match=r"engine\.extraArgs: --max-num-seqs many is not a whole number"):
        EngineChoice.of(spec(EngineSpec(extra_args=("--max-num-seqs", "many"))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config.json: hidden_size is missing and must be a positive integer"),
        ({"num_hidden_layers": "many"}, "config.json: num_hidden_layers is 'many' but must be a positive integer"),
        ({"num_key_value_heads": 5}, "config.json: num_key_value_heads is 5 but must divide num_attention_heads (32)"),
        ({"torch_dtype": "int3"}, "config.json asks for dtype int3"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method is 'bitsandbytes', which this"),
        ({"quantization_config": 5}, "quantization_config is 5 but must be an object"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
             "config_groups": {"a": {"input_activations": {"type": "float"}, "weights": {
                "type": "float", "strategy": "block", "block_structure": [0, 0]
            }}}}},
            "quantization_config.config_groups.a.weights.block_structure is [0, 0] but must be a list of positive",
        ),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3' but must be a positive integer"),
        ({"num_hidden_layers": 3.0}, "num_hidden_layers is 3.0 but must be a positive integer"),
        ({"hidden_size": float("nan")}, "hidden_size is nan but must be a positive integer"),
        ({"hidden_size": -float("inf")}, "hidden_size is -inf but must be a positive integer"),
        ({"vocab_size": 10**5000}, "vocab_size is a number of thousands of digits but must be"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000 but must be 10000 at most"),
        ({"head_dim": 33}, "head_dim is 33 but must be even"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false' but must be true or false"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e300}}, "max_position_embeddings is 131072 but must not be"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": -2}}, "rope_scaling.factor is -2 but must be a positive"),
        ({"architectures": ["MambaForCausalLM"]}, "architectures: names MambaForCausalLM, which is none of"),
        ({"architectures": ["BertModel"]}, "names BertModel, which is an encoder"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_reckoned_names_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError) as refused:
        read_shape({**LLAMA_8B, **changes})
    assert message in str(refused.value)


@pytest.mark.parametrize("config", [None, [], "text", 3, {"architectures": 5}])
def test_what_is_no_configuration_is_refused(config: object) -> None:
    with pytest.raises(ModelLoadError):
        read_shape(config)


MODELS = sorted(presets())


@given(
    name=st.sampled_from(MODELS),
    gib=st.floats(0.5, 150),
    is_gpu=st.booleans(),
    ranks=st.sampled_from([1, 2, 3, 4, 8]),
    length=st.one_of(st.none(), st.integers(1, 200_000)),
    sequences=st.one_of(st.none(), st.integers(1, 512)),
    kv_dtype=st.sampled_from(["auto", "fp8"]),
)
def test_every_proposal_fits_and_more_memory_never_hurts(
    name: str, gib: float, is_gpu: bool, ranks: int, length: int | None, sequences: int | None, kv_dtype: str
) -> None:
    memory = gpu(gib) if is_gpu else cpu(gib)
    choice = EngineChoice(ranks=ranks, max_model_len=length, max_num_seqs=sequences, kv_dtype=kv_dtype)
    fit = check(read_shape(presets()[name].config), choice, memory)
    assert fit.message
    for remedy in remedies(fit, {"larger": gpu(139)}):
        if fit.verdict is Verdict.NOT_DIVISIBLE:
            assert remedy.becomes.verdict is not Verdict.NOT_DIVISIBLE
        else:
            assert remedy.becomes.verdict is Verdict.FITS, str(remedy)
    if fit.verdict is Verdict.FITS:
        assert check(fit.shape, choice, replace(memory, per_rank=int(2 * gib * GIB))).verdict is Verdict.FITS
    if fit.is_certain_no:
        assert fit.verdict in (Verdict.NOT_DIVISIBLE, Verdict.WEIGHTS_TOO_LARGE)
