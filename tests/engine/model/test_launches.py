"""What a layer asks of a GPU: how many launches, and that it never waits. Counted with kernels that are interpreted."""

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.runner import load_runner
from fairlead_engine.kernels import (
    chosen_tokens_kernel,
    decoded_product_kernel,
    draw_kernel,
    expert_product_kernel,
    gates_kernel,
    norm_rope_store_kernel,
    penalise_kernel,
    recurrence,
    recurrence_kernel,
    rms_norm_kernel,
    rounded_rows_kernel,
    routes_kernel,
    scaled_product_kernel,
    stretches_kernel,
)
from fairlead_engine.kernels.attention import paged_attention, triton_paged
from fairlead_engine.model import decoder, layers, weights
from fairlead_engine.model.linear import PlainLinear
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.lora import expert_adapters
from fairlead_engine.model.lora.adapter_slots import AdapterSlots
from fairlead_engine.model.quantization import coded_linear, int4_weight_only, int8
from fairlead_engine.model.quantization.fp8 import Fp8
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, quantize_weight
from fairlead_engine.model.quantization.stored import FORMATS
from fairlead_engine.runner import drawing, dummy_steps, logit_changes, model_part, sampler, slot_tokens, step_graphs
from fairlead_engine.types import Grammar, SamplingParams
from fairlead_engine.types.batch import NO_SNAPSHOT, Batch, TokenMasks
from fairlead_engine.types.sequences import ScheduledSequence, Sequence
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.launches import WAITING, Counted, CPUGraphs, Launches, host_reads
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields, qwen3_fields
from fairlead_engine_testing.tiny_families.experts import qwen3_moe_fields

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles for CUDA where there is one"),
    # The interpreter's, of what is in blocks that nobody has written yet; it is masked afterwards.
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

MOST_LAUNCHES = 9
OF_NO_LAYER = 4
"""Kernels are counted wherever they are launched: the last normalisation, and three for the choice of tokens."""
MOST_WITH_EXPERTS = 10
"""The router, who goes where, the product with gate and up, and the one that comes down, in place of three."""


@pytest.fixture
def launches(monkeypatch) -> Launches:
    """What layers launch from here on, every fused operation being its kernel as on CUDA."""
    found = Launches()
    for module, names in (
        (paged_attention, ("paged_attention_kernel", "put_together_kernel")),
        (norm_rope_store_kernel, ("norm_rope_store_kernel",)),
        (rms_norm_kernel, ("normalise_kernel",)),
        (gates_kernel, ("gate_kernel",)),
        (expert_product_kernel, ("expert_product_kernel",)),
        (routes_kernel, ("routes_kernel",)),
        (rounded_rows_kernel, ("rounded_rows_kernel",)),
        (scaled_product_kernel, ("scaled_product_kernel",)),
        (decoded_product_kernel, ("decoded_product_kernel", "decoded_kernel")),
        (draw_kernel, ("measure_kernel", "cut_kernel", "sum_kernel", "choose_kernel")),
        (penalise_kernel, ("count_kernel", "change_kernel")),
        (recurrence_kernel, ("convolve_kernel", "recur_kernel")),
        (stretches_kernel, ("convolve_stretches_kernel", "weigh_kernel", "carry_kernel")),
        (chosen_tokens_kernel, ("parts_kernel", "likeliest_kernel", "put_kernel")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Counted(getattr(module, name), name, found))
    for module in (rms_norm_kernel, gates_kernel):
        for name in ("rms_norm", "add_rms_norm", "silu_mul", "gelu_mul"):
            if hasattr(module, name) and hasattr(layers, name):
                monkeypatch.setattr(layers, name, getattr(module, name))
    monkeypatch.setattr(sampler, "likeliest", chosen_tokens_kernel.likeliest)
    monkeypatch.setattr(slot_tokens, "put", chosen_tokens_kernel.put)
    monkeypatch.setattr(layers, "find_routes", routes_kernel.find_routes)
    monkeypatch.setattr(layers, "gated_product", expert_product_kernel.gated_product)
    monkeypatch.setattr(layers, "weighted_product", expert_product_kernel.weighted_product)
    return found


def counted_decode(
    folder: Path, num_sequences: int, launches: Launches, monkeypatch: pytest.MonkeyPatch, name: str | None = None
) -> int:
    """Counts what all layers of a step of decodes launch, with weights in that format; how many layers there are. What
    kernels compute does not matter."""
    launches.runs_kernels = False
    runner = loaded_runner(
        folder, dtype="float32", device="cpu", num_threads=1, attention_backend="triton", quantization=name
    )
    runner.allocate_kv_cache(max(20, num_sequences), num_sequences, 4)

    def counted(method: Any) -> Any:
        def call(*args: Any) -> Any:
            with launches:
                return method(*args)

        return call

    for part, method in (
        (layers.DecoderLayer, "before_attention"),
        (layers.Attention, "attend"),
        (layers.DecoderLayer, "after_attention"),
    ):
        monkeypatch.setattr(part, method, counted(getattr(part, method)))
    sequences = [
        Sequence(f"r{i}", [5, 6, 7], 3, SamplingParams(temperature=0.0), slot=i, block_table=[i])
        for i in range(num_sequences)
    ]
    for start, num_tokens in ((0, 2), (2, 1)):  # what is counted is a decode
        for sequence in sequences:
            sequence.num_computed_tokens = start
        launches.by_name.clear()
        runner.collect(runner.launch(Batch([ScheduledSequence(sequence, num_tokens) for sequence in sequences])))
    assert not WAITING & launches.by_name.keys(), launches.by_name
    assert launches.by_name["paged_attention_kernel"] == runner.model_config.num_layers, launches.by_name
    return runner.model_config.num_layers


@pytest.mark.parametrize("fields", [llama_fields, qwen3_fields])
@pytest.mark.parametrize("num_sequences", [1, 5])
def test_a_layer_launches_little_and_never_waits(fields, num_sequences, launches, monkeypatch, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", fields())
    num_layers = counted_decode(folder, num_sequences, launches, monkeypatch)
    assert launches.by_name.total() - OF_NO_LAYER <= MOST_LAUNCHES * num_layers, launches.by_name


def keep_states_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, operation in ((recurrence_kernel, "one"), (stretches_kernel, "stretches")):
        for name in (f"convolve_{operation}", f"recur_{operation}"):
            monkeypatch.setattr(recurrence, name, getattr(module, name))


@pytest.mark.parametrize("family", ["qwen3_5", "granite_hybrid"])
def test_layers_that_keep_states_launch_no_more_than_their_graphs_are_foreseen_for(
    family: str, launches, monkeypatch, tmp_path: Path
) -> None:
    launches.runs_kernels = False
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    keep_states_with_kernels(monkeypatch)
    runner = loaded_runner(
        write_random_checkpoint(tmp_path / "model", FAMILIES[family]()), dtype="float32", device="cpu", num_threads=1,
        attention_backend="triton",
    )  # fmt: skip
    runner.allocate_kv_cache(20, 3, 4)
    computed = decoder.Decoder.__call__

    def call(*args: Any) -> Any:
        with launches:
            return computed(*args)

    monkeypatch.setattr(decoder.Decoder, "__call__", call)
    sequences = [
        Sequence(f"r{i}", [5, 6, 7], 3, SamplingParams(temperature=0.0), slot=i, block_table=[i]) for i in range(3)
    ]
    for start, num_tokens in ((0, 2), (2, 1)):  # what is counted is a decode
        for sequence in sequences:
            sequence.num_computed_tokens = start
        launches.by_name.clear()
        items = [ScheduledSequence(sequence, num_tokens) for sequence in sequences]
        restored = [] if start else [(sequence.slot, NO_SNAPSHOT) for sequence in sequences]
        runner.collect(runner.launch(Batch(items, restored=restored)))
    assert not WAITING & launches.by_name.keys(), launches.by_name
    config = runner.model_config
    assert launches.by_name["paged_attention_kernel"] == config.num_attention_layers, launches.by_name
    for name in ("convolve_kernel", "recur_kernel"):
        assert launches.by_name[name] == len(config.recurrent), launches.by_name
    foreseen = len(config.recurrent) * step_graphs._LAUNCHES_OF_STATES
    foreseen += config.num_attention_layers * step_graphs._LAUNCHES_PER_LAYER
    assert launches.by_name.total() <= foreseen, launches.by_name


@pytest.mark.parametrize("family", ["qwen3_5", "granite_hybrid", "lfm2"])
def test_prompts_through_layers_that_keep_states_are_three_kernels_however_many_and_long_they_are(
    family: str, launches, monkeypatch, tmp_path: Path
) -> None:
    """With a snapshot within a prompt, beside a decode. What torch alone computes is chosen."""
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    folder, tokens = write_random_checkpoint(tmp_path / "model", FAMILIES[family]()), []
    settings = {"dtype": "float32", "device": "cpu", "num_threads": 1}
    names = ["convolve_stretches_kernel", *(["weigh_kernel", "carry_kernel"] if family != "lfm2" else [])]
    computed = decoder.Decoder.__call__

    def call(*args: Any) -> Any:
        with host_reads(allowed=False), launches:
            return computed(*args)

    for has_kernels in (False, True):
        if has_kernels:
            keep_states_with_kernels(monkeypatch)
            monkeypatch.setattr(decoder.Decoder, "__call__", call)
        runner = loaded_runner(folder, attention_backend="triton" if has_kernels else "block_tables", **settings)
        runner.allocate_kv_cache(40, 4, 4)
        runner.allocate_snapshots(4, 2)
        sequences = [
            Sequence(
                f"r{i}", list(range(5, 5 + length)), length, SamplingParams(temperature=0.0), slot=i,
                block_table=list(range(4 * i, 4 * i + 4)),
            )
            for i, length in enumerate((2, 3, 37, 2))
        ]  # fmt: skip
        for steps in (sequences[:1], sequences, sequences):
            launches.by_name.clear()
            items = [ScheduledSequence(each, each.num_uncomputed_tokens) for each in steps]
            new = [each.slot for each in steps if not each.num_computed_tokens]
            if len(new) > 1:
                items[2].kept = [(16, 1)]
            batch = Batch(items, restored=[(slot, NO_SNAPSHOT) for slot in new])
            found = runner.collect(runner.launch(batch))
            tokens += [each.token_id for each in found]
            wanted = dict.fromkeys(names, len(runner.model_config.recurrent)) if has_kernels and new else {}
            assert {name: launches.by_name[name] for name in names if name in launches.by_name} == wanted
            assert not WAITING & launches.by_name.keys(), launches.by_name
            for sequence, token in zip(steps, found, strict=True):
                sequence.num_computed_tokens = sequence.num_tokens
                sequence.token_ids.append(token.token_id)
    assert tokens[: len(tokens) // 2] == tokens[len(tokens) // 2 :]
    compiled = [key[0] for key in launches.specialisations if key[0] in names]
    assert sorted(compiled) == sorted(names), "once for all steps"


@pytest.fixture
def coded(monkeypatch) -> None:
    """Weights are decoded by the kernel as on CUDA."""
    monkeypatch.setattr(coded_linear, "has_kernels", lambda tensor: True)
    monkeypatch.setattr(coded_linear, "can_multiply", lambda *kind: True)
    for name in ("decoded_product", "decoded"):
        monkeypatch.setattr(coded_linear, name, getattr(decoded_product_kernel, name))


def in_blocks(weight: torch.Tensor) -> QuantizedWeight:
    """As fp8 checkpoints store them."""
    return quantize_weight(weight, torch.float8_e4m3fn, largest=448, low=-448, high=448, group_size=32)


@pytest.mark.parametrize("num_sequences", [1, 5, 20])
@pytest.mark.parametrize("name", ["int4-weight-only", "fp8"])
def test_a_layer_whose_weights_are_decoded_launches_no_more_than_its_graph_is_foreseen_for(
    name, num_sequences, launches, coded, monkeypatch, tmp_path: Path
) -> None:
    if name == "fp8":
        monkeypatch.setattr(Fp8, "quantize", lambda self, weight: in_blocks(weight))
    monkeypatch.setattr(int4_weight_only, "can_pack_int4", lambda dtype: False)
    folder = write_random_checkpoint(tmp_path / "model", qwen3_fields())
    num_layers = counted_decode(folder, num_sequences, launches, monkeypatch, name)
    assert launches.by_name["decoded_product_kernel"] == 4 * num_layers, launches.by_name
    assert launches.by_name.total() - OF_NO_LAYER <= step_graphs._LAUNCHES_PER_LAYER * num_layers, launches.by_name


@pytest.mark.parametrize("num_sequences", [1, 5, pytest.param(40, marks=pytest.mark.compute)])
@pytest.mark.parametrize("name", [None, "int8"])
def test_a_layer_with_experts_launches_one_more(name, num_sequences, launches, monkeypatch, tmp_path: Path) -> None:
    """Of its own; what its attention's quantised products are is counted elsewhere."""
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    folder = write_random_checkpoint(tmp_path / "model", qwen3_moe_fields())
    if name is not None:  # of the experts alone
        monkeypatch.setattr(type(FORMATS[name]), "linear", in_floats)
    num_layers = counted_decode(folder, num_sequences, launches, monkeypatch, name)
    assert launches.by_name["expert_product_kernel"] == 2 * num_layers, launches.by_name
    assert launches.by_name.total() - OF_NO_LAYER <= MOST_WITH_EXPERTS * num_layers, launches.by_name


def in_floats(weight_format: Any, weight: Any, bias: Any, dtype: torch.dtype) -> Any:
    layer: Any = PlainLinear(weight.dequantized(dtype), bias)
    layer.weight_bytes = 0
    return layer


@pytest.mark.parametrize("num_tokens", [1, 5, 200])
@pytest.mark.parametrize("name", [None, *FORMATS])
def test_experts_take_four_launches_in_every_format_and_nobody_waits_for_who_goes_where(
    name, num_tokens, launches, monkeypatch, tmp_path: Path
) -> None:
    """The router, who goes where, and two products, which round their rows within. Whoever normalises next sums up."""
    launches.runs_kernels = False
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    folder = write_random_checkpoint(tmp_path / "model", qwen3_moe_fields())
    model = load_model(folder, read_config(folder), torch.float32, torch.device("cpu"), name)
    x = torch.randn(num_tokens, model.config.hidden_size)
    with torch.inference_mode(), host_reads(allowed=False), launches:
        model.layers[0].feed_forward.parts(x)
    assert launches.by_name["expert_product_kernel"] == 2, launches.by_name
    assert launches.by_name["routes_kernel"] == 1, launches.by_name
    assert not WAITING & launches.by_name.keys(), launches.by_name
    assert launches.by_name.total() == 4, launches.by_name


@pytest.mark.parametrize("num_tokens", [1, 5, 200])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_a_layer_with_adapted_experts_launches_no_more_than_its_graph_is_foreseen_for(
    family: str, num_tokens: int, launches: Launches, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And nobody waits for who goes where, nor for whose row is whose."""
    launches.runs_kernels = False
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    monkeypatch.setattr(expert_adapters, "weighted_product", expert_product_kernel.weighted_product)
    monkeypatch.setattr(expert_adapters, "row_product", expert_product_kernel.row_product)
    folder, cpu = write_random_checkpoint(tmp_path / "model", FAMILIES[family]()), torch.device("cpu")
    config = read_config(folder)
    slots = AdapterSlots(2, 8, torch.float32, cpu, hidden_size=config.hidden_size, expert_rank=4)
    layer = load_model(folder, config, torch.float32, cpu, slots=slots).layers[0]
    x, of_rows = torch.randn(num_tokens, config.hidden_size), torch.arange(num_tokens) % 3 - 1
    with torch.inference_mode(), host_reads(allowed=False):
        slots.now = slots.of_rows(None, of_rows)
        with launches:
            layer.attention.output(layer.attention.heads(x).flatten(1)[:, : layer.attention.attended_size])
            layer.feed_forward.parts(x)
    assert launches.by_name["expert_product_kernel"] == 2 + (4 if family == "gpt_oss" else 5), launches.by_name
    assert not WAITING & launches.by_name.keys(), launches.by_name
    most = step_graphs.ADAPTED_EXPERTS * step_graphs._LAUNCHES_PER_LAYER
    assert launches.by_name.total() + MOST_LAUNCHES <= most, launches.by_name


def test_a_product_of_rounded_rows_is_three_launches(launches, monkeypatch) -> None:
    """Rounding, the product, and its scales; of 8-bit floats, whose product takes scales, the first two."""
    for name, module in (("rounded_rows", rounded_rows_kernel), ("scaled_product", scaled_product_kernel)):
        monkeypatch.setattr(int8, name, getattr(module, name))
    weight = torch.randn(64, 32)
    for bias in (None, torch.randn(64)):
        layer = int8.Int8Linear(int8.Int8().quantize(weight), bias, torch.float32)
        x = torch.randn(3, 32)
        with torch.inference_mode(), host_reads(allowed=False), launches:
            found = layer(x)
        assert launches.by_name == {"rounded_rows_kernel": 1, "_int_mm": 1, "scaled_product_kernel": 1}
        launches.by_name.clear()
        torch.testing.assert_close(found, torch.nn.functional.linear(x, weight, bias), rtol=0.0, atol=0.5)


SAMPLINGS = {
    "greedy": [SamplingParams(temperature=0.0)] * 3,
    "drawn": [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.8, seed=1), SamplingParams(top_k=5)],
    "masked": [
        SamplingParams(temperature=0.0, grammar=Grammar("")),
        SamplingParams(),
        SamplingParams(grammar=Grammar("")),
    ],
    "everything": [
        SamplingParams(temperature=0.0, logprobs=3, frequency_penalty=1.0),
        SamplingParams(repetition_penalty=1.2, presence_penalty=0.5, min_tokens=9, min_p=0.1),
        SamplingParams(temperature=0.0, logit_bias={5: -3.0, 6: 2.0}, stop_token_ids=(9,), min_tokens=2),
    ],
    "excluding": [
        SamplingParams(temperature=0.0, bad_words=((5,), (6, 7)), dry_multiplier=1.0, dry_sequence_breakers=(3,)),
        SamplingParams(xtc_probability=0.5, top_n_sigma=1.0, dry_multiplier=1.0),
        SamplingParams(temperature=0.0, allowed_token_ids=(65, 96, 97), grammar=Grammar(""), min_tokens=9),
    ],
}


@pytest.mark.parametrize("samplings", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_step_is_launched_from_its_tokens_to_its_draws_without_waiting(
    samplings, launches, monkeypatch, tmp_path: Path
) -> None:
    folder = write_random_checkpoint(tmp_path / "model", qwen3_fields())
    runner = loaded_runner(folder, dtype="float32", device="cpu", num_threads=1, attention_backend="triton")
    runner.allocate_kv_cache(20, 3, 4)
    sequences = [
        Sequence(f"r{i}", [5, 6, 7], 3, sampling, slot=i, block_table=[i]) for i, sampling in enumerate(samplings)
    ]

    def batch() -> Batch:
        items = [ScheduledSequence(sequence, 3 if sequence.under_way is None else 1) for sequence in sequences]
        return Batch(items, masks=masks if rows else None)

    rows = [row for row, sampling in enumerate(samplings) if sampling.grammar is not None]
    num_words = runner.model_config.vocab_size // 32
    words = np.arange(len(rows) * num_words, dtype=np.int32).reshape(len(rows), num_words)

    def masks() -> TokenMasks:
        return TokenMasks(np.array(rows), words)

    monkeypatch.setattr(drawing, "has_kernels", lambda logits: True)
    monkeypatch.setattr(logit_changes, "has_kernels", lambda logits: True)
    first, second = batch(), None
    expected = [runner.collect(runner.launch(first))]
    for sequence, token in zip(sequences, expected[0], strict=True):
        sequence.token_ids.append(token.token_id)
        sequence.num_computed_tokens = 3
    decodes = Batch([ScheduledSequence(each, 1) for each in sequences], masks=first.masks)
    expected.append(runner.collect(runner.launch(decodes)))
    for row, tokens in itertools.product(range(len(rows)), expected):
        token_id = tokens[rows[row]].token_id
        assert words[row, token_id // 32] >> (token_id % 32) & 1
    for sequence in sequences:  # once more, without telling anybody what was chosen first
        del sequence.token_ids[3:]
        sequence.num_computed_tokens = 0
    runner.allocate_kv_cache(20, 3, 4)

    for module in (sampler, logit_changes):
        monkeypatch.setattr(module, "is_on_host", lambda tensor: False)
    with host_reads(allowed=False), launches:
        first = batch()
        under_way = [runner.launch(first)]
        for item in first.items:
            item.sequence.under_way = item
        second = batch()
        under_way.append(runner.launch(second))
    assert not WAITING & launches.by_name.keys(), launches.by_name
    assert [runner.collect(each) for each in under_way] == expected


@pytest.mark.parametrize("num_sequences", [pytest.param(1, marks=pytest.mark.compute), 5])
def test_a_captured_decode_is_one_launch(num_sequences, launches, monkeypatch, tmp_path: Path) -> None:
    """Beside it: what is staged for it and for the block tables, the projection to logits, and the choice of tokens."""
    folder = write_random_checkpoint(tmp_path / "model", qwen3_fields())
    graphs = CPUGraphs()
    monkeypatch.setattr(model_part, "choose_recorder", lambda *args, **settings: graphs)
    monkeypatch.setattr(sampler, "is_on_host", lambda tensor: False)
    monkeypatch.setattr(step_graphs, "_TOKEN_SIZES", (4,))
    found: list[Any] = []
    for is_captured in (False, True):
        runner = loaded_runner(folder, dtype="float32", device="cpu", num_threads=1, attention_backend="triton")
        runner.allocate_kv_cache(20, num_sequences + 1, 4)  # five sequences are padded to six
        if is_captured:
            runner.compile_steps(num_sequences + 1, 64, 16)
        sequences = [
            Sequence(f"r{i}", [5, 6, 7 + i], 3, SamplingParams(temperature=0.0), slot=i, block_table=[i])
            for i in range(num_sequences)
        ]
        for _ in range(3):  # what is counted is a decode that knows its blocks
            batch = Batch([ScheduledSequence(sequence, sequence.num_uncomputed_tokens) for sequence in sequences])
            launches.by_name.clear()
            graphs.num_replays = 0
            with launches:
                launched = runner.launch(batch)
            tokens = runner.collect(launched)
            found.append(tokens)
            for sequence, token in zip(sequences, tokens, strict=True):
                sequence.num_computed_tokens = sequence.num_tokens
                sequence.token_ids.append(token.token_id)
    assert found[3:] == found[:3]
    assert graphs.num_replays == 1
    for name in ("to", "lift_fresh", "unbind", "view_as"):  # views, and conversions to what it is already
        del launches.by_name[name]
    staged, head = {"copy_": 1}, {"_linear_pointwise": 1}
    greedy = {"parts_kernel": 1, "likeliest_kernel": 1, "put_kernel": 1}
    assert launches.by_name == {**staged, **head, **greedy}


@pytest.mark.matrix
@pytest.mark.parametrize("is_captured", [True, False])
@pytest.mark.parametrize(("num_seqs", "tree"), [(1, None), (3, None), (1, "3x9"), (3, "[[0],[1],[0,0]]")])
def test_no_request_has_a_kernel_compiled(num_seqs, tree, is_captured, launches, monkeypatch, tmp_path: Path) -> None:
    """All that random requests need was compiled before the first of them. What kernels compute does not matter."""
    launches.runs_kernels = False
    assert dummy_steps._FEWEST_TOKENS <= triton_paged._SPLIT_TOKENS, "the first context that is split must be met"
    for module, name, value in (
        (dummy_steps, "_FEWEST_TOKENS", 8), (triton_paged, "_SPLIT_TOKENS", 8), (step_graphs, "_TOKEN_SIZES", (4, 6)),
        (drawing, "has_kernels", lambda logits: True), (logit_changes, "has_kernels", lambda logits: True),
        (sampler, "is_on_host", lambda tensor: False),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    graphs = CPUGraphs() if is_captured else None
    monkeypatch.setattr(model_part, "choose_recorder", lambda *args, **settings: graphs)
    folder = write_random_checkpoint(tmp_path / "model", qwen3_fields(num_hidden_layers=2))
    guesses: dict[str, Any] = {}
    if tree is not None:
        weights_of_heads = {f"{head}.0.weight": torch.randn(256, 64) for head in range(3)}
        save_file(weights_of_heads, tmp_path / "medusa_lm_head.safetensors")
        guesses = {
            "speculative_method": "medusa",
            "speculative_model": str(tmp_path),
            "speculative_tree": tree,
            "num_speculative_tokens": 3,
        }
    config = EngineConfig(
        model=str(folder), dtype="float32", device="cpu", num_threads=1, block_size=4, attention_backend="triton",
        max_num_seqs=num_seqs, max_model_len=40, max_num_batched_tokens=9, max_num_queued_tokens=10**6,
        async_scheduling=tree is None, **guesses,
    )  # fmt: skip
    runner = load_runner(config)
    runner._part.backend._num_programs = 16
    engine = Engine(replace(config, kv_cache_memory=30 * runner.kv_bytes_per_block()), runner)
    compiled = set(launches.specialisations)
    splits = {dict(key[-13:]).get("NUM_SPLITS") for key in compiled if key[0] == "paged_attention_kernel"}
    assert splits >= {1, 2, 4}, "or nothing was to be met"
    draw = random.Random(num_seqs)
    for index in range(12):
        sampling = draw.choice([{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 3, "presence_penalty": 0.5}])
        prompt = [draw.randrange(2, 90) for _ in range(draw.choice([1, 2, 5, 20, 33]))]
        request = make_request(
            str(index), prompt, max_tokens=draw.randint(1, 7), logprobs=1, ignore_eos=True, **sampling
        )
        assert engine.add(request) is None
        for _ in range(draw.randrange(3)):
            engine.step()
    while engine.has_work():
        engine.step()
    assert launches.specialisations == compiled
