"""A model divided among ranks, each a real process: it answers as the whole does, and says which rank is lost."""

import math
import os
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError, ModelLoadError, StartError
from fairlead_engine.model import weights
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.quantization.stored import FORMATS
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner import ModelRunner, model_part
from fairlead_engine.runner.rank_messages import HERE, Join, Writer, open_store
from fairlead_engine.runner.ranks import RankLost, Ranks
from fairlead_engine.types import EngineRequest, Grammar, Pooling, SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import ScheduledSequence, Sequence
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.device_meter import GIB, DeviceMeter
from fairlead_engine_testing.greedy_answers import engine_of_blocks, small_config
from fairlead_engine_testing.launches import CPUGraphs
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.quantized_checkpoints import write_finegrained_fp8, write_gptq
from fairlead_engine_testing.tiny_families.dense import (
    apertus_fields,
    gemma2_fields,
    gemma3_fields,
    gemma4_fields,
    llama_fields,
    olmo2_fields,
    phi3_fields,
    qwen2_fields,
    qwen3_fields,
)
from fairlead_engine_testing.tiny_families.experts import (
    gemma4_moe_fields,
    gpt_oss_fields,
    llama4_fields,
    mixtral_fields,
    qwen2_moe_fields,
    qwen3_moe_fields,
)
from fairlead_engine_testing.tiny_families.latent import (
    deepseek_v2_fields,
    deepseek_v3_fields,
    deepseek_v32_fields,
    glm_moe_dsa_fields,
)
from fairlead_engine_testing.tiny_families.recurrent import (
    bamba_fields,
    falcon_h1_fields,
    granite_hybrid_fields,
    lfm2_moe_fields,
    lfm3_fields,
    nemotron_h_fields,
    qwen3_5_fields,
    qwen3_5_moe_fields,
    qwen3_next_fields,
)

pytestmark = pytest.mark.matrix

FAMILIES = {
    "llama": llama_fields(num_attention_heads=8, num_key_value_heads=4, attention_bias=True, mlp_bias=True),
    "llama4": llama4_fields(num_experts_per_tok=2),
    "one-kv-head": llama_fields(num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=True, vocab_size=131),
    "qwen2": qwen2_fields(),
    "qwen3": qwen3_fields(),
    "mixtral": mixtral_fields(),
    "olmo2": olmo2_fields(num_key_value_heads=1),
    "phi3": phi3_fields(num_key_value_heads=1),
    "gemma2": gemma2_fields(),
    "gemma3": gemma3_fields(num_key_value_heads=1),
    "gemma4": gemma4_fields(num_key_value_heads=1),
    "gemma4_moe": gemma4_moe_fields(),
    "gpt_oss": gpt_oss_fields(),
    "qwen2_moe": qwen2_moe_fields(num_hidden_layers=3, decoder_sparse_step=2),
    "qwen3_moe": qwen3_moe_fields(),
    "deepseek_v2": deepseek_v2_fields(),
    "deepseek_v3": deepseek_v3_fields(attention_bias=True),
    "deepseek_v32": deepseek_v32_fields(index_n_heads=5),
    "glm_moe_dsa": glm_moe_dsa_fields(),
    "qwen3_next": qwen3_next_fields(),
    "qwen3_5": qwen3_5_fields(num_key_value_heads=1),
    "qwen3_5_moe": qwen3_5_moe_fields(),
    "granite_hybrid": granite_hybrid_fields(mamba_n_groups=1),
    "bamba": bamba_fields(mamba_proj_bias=True),
    "falcon_h1": falcon_h1_fields(projectors_bias=True),
    "falcon-h1-normed": falcon_h1_fields(mamba_n_groups=1, mamba_rms_norm=True, mamba_proj_bias=True),
    "lfm2_moe": lfm2_moe_fields(conv_bias=True),
    "lfm3": lfm3_fields(),
    "nemotron_h": nemotron_h_fields(use_bias=True, mlp_bias=True, moe_latent_size=24),
    "apertus": apertus_fields(),
}
QUICK = ("gpt_oss", "granite_hybrid")
"""Families between which what is divided differs most, beside those with settings of their own; each starts processes
that import torch."""


def tier(family: str) -> Any:
    """A third of the other families in every run, all before a release."""
    if family in QUICK:
        return ()
    return pytest.mark.long if [*FAMILIES].index(family) % 3 else pytest.mark.compute


QUANTIZED = llama_fields(
    num_attention_heads=8, num_key_value_heads=4, hidden_size=64, intermediate_size=128, head_dim=8, attention_bias=True
)
_DIVISIBLE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
QUANTIZED_FAMILIES = {
    "llama": QUANTIZED,
    "qwen3_5": qwen3_5_fields(**_DIVISIBLE, linear_num_value_heads=4, num_key_value_heads=2),
    "bamba": bamba_fields(**_DIVISIBLE, mamba_n_groups=1),
}
"""Whose ranks divide no group of columns; the last two keep states."""
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_tokens": 12},
    {"temperature": 0.0, "max_tokens": 9, "frequency_penalty": 1.0, "logprobs": 1},
    {"temperature": 0.0, "max_tokens": 3, "prompt_logprobs": 1},
    {"temperature": 1.0, "max_tokens": 12, "seed": 3, "top_p": 0.9},
]


def requests() -> Iterator[EngineRequest]:
    for index in range(8):
        prompt = [2 + (7 * index + 3 * place) % 97 for place in range(5 + 6 * index)]
        sampling = SamplingParams(ignore_eos=True, **SAMPLINGS[index % len(SAMPLINGS)])
        yield EngineRequest(request_id=str(index), prompt_token_ids=prompt, sampling=sampling, arrival_time=index)
    for seed, text in enumerate(("start: /[a-e]{2,9}X/", 'start: "ab" | "Zabc"')):
        sampling = SamplingParams(max_tokens=12, seed=seed, grammar=Grammar(text))
        yield EngineRequest(request_id=text, prompt_token_ids=[5, 6], sampling=sampling, arrival_time=seed)
    again = [2 + (7 * 3 + 3 * place) % 97 for place in range(23)]
    yield EngineRequest(
        request_id="again", prompt_token_ids=again, sampling=SamplingParams(max_tokens=3), arrival_time=10.0
    )
    yield EngineRequest(
        request_id="vector", prompt_token_ids=[5, 6, 7], sampling=SamplingParams(max_tokens=0), arrival_time=9.0,
        pooling=Pooling.MEAN,
    )  # fmt: skip


def serve(folder: Path, **settings: Any) -> tuple[dict[str, list[int]], list[float]]:
    """Every request's tokens and the vector, with chunks, a cache too small for all, and steps that overlap."""
    write_letters(folder)
    config = small_config(
        folder, block_size=4, max_model_len=100, max_num_batched_tokens=24, max_num_queued_tokens=10_000, **settings
    )
    engine = engine_of_blocks(config, 26 if config.host_kv_cache_memory else 40)
    with closing(engine.runner):
        found = answered(engine, requests())
        assert engine.info.num_parameters == engine.runner.num_parameters
        assert bool(engine.load.num_blocks_loaded) == (config.host_kv_cache_memory is not None)
    told = {
        name: [*(each.token_id for each in output.prompt_logprobs or ()), *output.new_token_ids]
        for name, output in found.items()
    }
    return told, list(array("f", found["vector"].embedding))


def check_ranks(folder: Path, size: int = 2, *, one: dict[str, Any] | None = None, **settings: Any) -> None:
    """So many ranks answer as one does, which has settings of its own where they are given."""
    tokens, vector = serve(folder, **(settings if one is None else one))
    found, vector_of_ranks = serve(folder, tensor_parallel_size=size, **settings)
    assert found == tokens
    assert tokens['start: "ab" | "Zabc"'][-1] == 1, "its end"
    assert vector_of_ranks == pytest.approx(vector, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "size", "settings"),
    [
        *(pytest.param(name, 2, {}, marks=tier(name)) for name in FAMILIES),
        ("llama", 2, {"async_scheduling": True, "attention_backend": "block_tables"}),
        pytest.param("llama", 4, {}, marks=pytest.mark.compute),
        ("llama", 2, {"host_kv_cache_memory": 2**20}),
        ("qwen3", 2, {"speculative_method": "ngram", "prompt_lookup_min": 1}),
        pytest.param("one-kv-head", 4, {}, marks=pytest.mark.compute),
        pytest.param("qwen3", 2, {"kv_cache_dtype": "int8"}, marks=pytest.mark.compute),
        ("one-kv-head", 2, {"kv_cache_dtype": "fp8", "attention_backend": "block_tables"}),
        pytest.param("bamba", 4, {"async_scheduling": True}, marks=pytest.mark.compute),
        pytest.param("qwen3_5", 2, {"speculative_method": "ngram", "prompt_lookup_min": 1}, marks=pytest.mark.compute),
    ],
)
def test_ranks_give_the_tokens_of_one(family: str, size: int, settings: dict[str, Any], tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", FAMILIES[family])
    check_ranks(folder, size, one={"kv_cache_dtype": settings.get("kv_cache_dtype", "auto")}, **settings)


@pytest.mark.parametrize("name", FORMATS)
def test_a_weight_that_is_rounded_in_parts_is_the_same(name: str, tmp_path: Path, monkeypatch) -> None:
    folder = write_random_checkpoint(tmp_path / "model", QUANTIZED)
    config, cpu = read_config(folder), torch.device("cpu")
    x = torch.randn(3, config.hidden_size, generator=torch.Generator().manual_seed(0))

    def product() -> torch.Tensor:
        return load_model(folder, config, torch.float32, cpu, name).layers[0].feed_forward(x)

    at_once = product()
    monkeypatch.setattr(weights, "_MOST_ROUNDED", 7 * config.hidden_size)
    assert torch.equal(product(), at_once)


@pytest.mark.long
@pytest.mark.parametrize("fields", QUANTIZED_FAMILIES.values(), ids=QUANTIZED_FAMILIES)
@pytest.mark.parametrize("name", ["int8-weight-only", "int4-weight-only"])
def test_ranks_have_the_quantised_weights_of_one(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", fields)
    check_ranks(folder, quantization=name)


@pytest.mark.slow
@pytest.mark.parametrize("fields", QUANTIZED_FAMILIES.values(), ids=QUANTIZED_FAMILIES)
def test_ranks_have_columns_that_are_grouped_in_any_order(fields: dict[str, Any], tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", fields)
    check_ranks(write_gptq(folder, tmp_path / "stored", tmp_path / "meant", act_order=True, has_zeros=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_ranks_err_no_more_than_one_where_activations_are_rounded(name: str, tmp_path: Path) -> None:
    """Each rounds its part of them by a scale of its own, so tokens may differ, but by no larger error."""
    folder = write_random_checkpoint(tmp_path / "model", QUANTIZED)
    _, meant = serve(folder)
    vectors = [serve(folder, quantization=name, tensor_parallel_size=size)[1] for size in (1, 2)]
    one, two = (math.dist(vector, meant) for vector in vectors)
    assert vectors[0] != vectors[1]
    assert 0.0 < two < 1.5 * one


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_has_its_part_of_what_one_has(rank: int, tmp_path: Path) -> None:
    """Stored in blocks of 16 rows and columns; and what would divide one of them is refused by the setting."""
    folder = write_random_checkpoint(tmp_path / "floats", QUANTIZED)
    stored = write_finegrained_fp8(folder, tmp_path / "stored", (16, 16))
    config, cpu = read_config(stored), torch.device("cpu")
    whole = load_model(stored, config, torch.float32, cpu)
    part = load_model(stored, config, torch.float32, cpu, shard=Shard(rank, 2))
    assert part.num_parameters == whole.num_parameters
    assert part.weight_bytes < 0.55 * whole.weight_bytes
    x = torch.randn(3, config.hidden_size, generator=torch.Generator().manual_seed(0))
    inner = config.intermediate_size
    rows = [*range(rank * inner // 2, (rank + 1) * inner // 2)]
    both = whole.layers[0].feed_forward.gate_up(x)[:, rows + [inner + row for row in rows]]
    assert torch.equal(part.layers[0].feed_forward.gate_up(x), both)
    with pytest.raises(
        ConfigError, match=r"tensor-parallel-size: is 8, which divides .*o_proj .* of 64, in groups of 16"
    ):
        load_model(stored, config, torch.float32, cpu, shard=Shard(rank, 8))


_REFUSING_RANK = """#!{python}
import sys
from fairlead_engine.errors import ModelLoadError
from fairlead_engine.runner import rank
def refuse(*args):
    raise ModelLoadError("MissingTensor", "no norm.weight")
rank.ModelPart = refuse
sys.exit(rank.main())
"""
_CAPTURING_RANK = """#!{python}
import os, sys
from fairlead_engine.model import weights
from fairlead_engine.runner import model_part, rank
from fairlead_engine_testing.greedy_answers import engine_of_blocks, small_config
from fairlead_engine_testing.launches import CPUGraphs
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.device_meter import GIB, DeviceMeter
model_part.choose_recorder = lambda *args, **settings: CPUGraphs()
model_part.choose_meter = lambda device: DeviceMeter(4 * GIB)
weights.groups_experts = lambda device: True
def fail(*args):
    raise RuntimeError(os.environ["CAPTURES"])
if "CAPTURES" in os.environ:
    CPUGraphs.record = fail
sys.exit(rank.main())
"""


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CPUGraphs:
    """Has ranks capture graphs, and measure a device of their own, though there is none; what rank 0 captures with."""
    script = tmp_path / "rank"
    script.write_text(_CAPTURING_RANK.format(python=sys.executable))
    script.chmod(0o755)
    graphs = CPUGraphs()
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(model_part, "choose_recorder", lambda *args, enforce_eager: None if enforce_eager else graphs)
    monkeypatch.setattr(model_part, "choose_meter", lambda device: DeviceMeter(5 * GIB))
    return graphs


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixtral", "granite_hybrid"])
def test_ranks_capture_the_same_steps_and_meet_in_them(
    family: str, tmp_path: Path, devices: CPUGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are captured as all else; every rank repeats the graphs that rank 0 does, in its order."""
    folder = write_random_checkpoint(tmp_path / "model", FAMILIES[family])
    tokens, vector = serve(folder, enforce_eager=True)
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    found, vector_of_ranks = serve(folder, tensor_parallel_size=2, attention_backend="block_tables")
    assert devices.num_replays > 20
    assert found == tokens
    assert vector_of_ranks == pytest.approx(vector, abs=1e-5)


def of_ranks(folder: Path, size: int = 2, **settings: Any) -> ModelRunner:
    return loaded_runner(folder, dtype="float32", device="cpu", num_threads=1, tensor_parallel_size=size, **settings)


@pytest.mark.slow
def test_a_rank_whose_capture_fails_is_named_with_its_reason(
    tmp_path: Path, devices: CPUGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPTURES", "no memory is left for graphs")
    folder = write_random_checkpoint(tmp_path / "model", FAMILIES["llama"])
    with closing(of_ranks(folder, attention_backend="block_tables")) as runner:
        runner.allocate_kv_cache(4, 1, 4)
        with pytest.raises(
            RankLost, match=r"rank 1 of 2 was lost: enforce-eager: is off, and .* \(no memory is left for graphs\)"
        ):
            runner.compile_steps(1, 8, 16)


def test_the_rank_with_the_least_memory_decides(tmp_path: Path, devices: CPUGraphs) -> None:
    """Of 8 GiB rank 0 has 5 free and rank 1 has 4; a step took one of them, and another is kept for graphs."""
    folder = write_random_checkpoint(tmp_path / "model", FAMILIES["llama"])
    with closing(of_ranks(folder, attention_backend="block_tables")) as runner:
        found = runner.memory_for_cache(0.9, 2, 8, 100)
        assert found is not None
        assert int(7.2 * GIB) - 4 * GIB - 2 * GIB - GIB // 50 < found < int(7.2 * GIB) - 4 * GIB - 2 * GIB


def test_every_rank_reads_its_part_alone(tmp_path: Path) -> None:
    """What a rank holds is its share of the weights, but for norms, which all have."""
    folder = write_random_checkpoint(tmp_path / "model", FAMILIES["llama"])
    config = read_config(folder)
    whole = load_model(folder, config, torch.float32, torch.device("cpu"))
    parts = [load_model(folder, config, torch.float32, torch.device("cpu"), shard=Shard(rank, 4)) for rank in range(4)]
    assert {part.num_parameters for part in parts} == {whole.num_parameters}
    assert all(part.weight_bytes < 0.3 * whole.weight_bytes for part in parts)


def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", FAMILIES["llama"])
    with closing(of_ranks(folder)) as runner:
        runner.allocate_kv_cache(4, 1, 4)
        batch = Batch([ScheduledSequence(Sequence("r", [5, 6], 2, SamplingParams(), slot=0, block_table=[0]), 2)])
        runner.collect(runner.launch(batch))
        assert runner._ranks is not None
        os.kill(runner._ranks._processes[0].pid, signal.SIGKILL)
        with pytest.raises(RankLost, match=r"rank 1 of 2 was lost: it was ended by signal 9 .*short of memory"):
            for _ in range(3):  # the first may be computed before the end is noticed
                runner.collect(runner.launch(batch))


def test_a_step_that_is_given_up_is_the_last_and_nobody_is_left_in_it(tmp_path: Path, monkeypatch) -> None:
    """Ctrl-C while rank 0 chooses a token: rank 1 waits to be told it, and must not take the next step's for it."""
    folder = write_random_checkpoint(tmp_path / "model", FAMILIES["llama"])
    with closing(of_ranks(folder)) as runner:  # which waits until it has ended
        runner.allocate_kv_cache(4, 1, 4)
        batch = Batch([ScheduledSequence(Sequence("r", [5, 6], 2, SamplingParams(), slot=0, block_table=[0]), 2)])
        runner.collect(runner.launch(batch))

        def interrupted(*args: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as changed:
            changed.setattr(runner._sampler, "sample", interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner.launch(batch)
        with pytest.raises(RankLost, match=r"a step was given up while other ranks were at it \(KeyboardInterrupt"):
            runner.launch(batch)
    assert runner._ranks is not None
    assert [process.returncode for process in runner._ranks._processes] == [0]


def test_a_rank_that_looks_for_others_ends_with_rank_0(tmp_path: Path) -> None:
    """A core that is killed at the start leaves no process behind."""
    command = [sys.executable, "-P", "-m", "fairlead_engine.runner.rank"]
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank,
    ):
        try:
            assert rank.stdin is not None and rank.stdout is not None
            settings = EngineConfig(model=str(tmp_path), device="cpu")
            Writer(rank.stdin).send(Join(settings, 1, 2, silent.getsockname()[1], "info", "text"))
            assert rank.stdout.readline() == HERE
            rank.stdin.close()
            assert rank.wait(60) == 0
        finally:
            rank.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_the_store_is_reached_from_this_machine_alone() -> None:
    store = open_store()
    socket.create_connection(("127.0.0.1", store.port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_named_before_any_rank_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="there is no CUDA device"):
        Ranks(EngineConfig(model=str(tmp_path), device="cuda", tensor_parallel_size=2))


@pytest.mark.parametrize(
    ("size", "message"),
    [(3, "3 does not divide the model's 4 attention heads"), (8, "8 does not divide the model's 4 attention heads")],
)
def test_a_model_that_cannot_be_divided_so_is_refused_by_the_setting(size: int, message: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields())
    with pytest.raises(ConfigError, match=f"tensor-parallel-size: {message}"):
        of_ranks(folder, size)


def test_experts_that_cannot_be_divided_are_refused_by_their_field(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", qwen3_moe_fields(moe_intermediate_size=33))
    with pytest.raises(ConfigError, match="2 does not divide the model's moe_intermediate_size, 33"):
        of_ranks(folder)


def test_a_rank_that_ends_before_it_says_a_word_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StartError, match=r"rank 1 could not start: it ended with status 1") as raised:
        of_ranks(folder)
    assert raised.value.reason == "StartFailed"


def test_what_keeps_a_rank_from_starting_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "rank"
    script.write_text(_REFUSING_RANK.format(python=sys.executable))
    script.chmod(0o755)
    folder = write_random_checkpoint(tmp_path / "model", llama_fields())
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(ModelLoadError, match=r"rank 1 could not start: no norm.weight") as raised:
        of_ranks(folder)
    assert raised.value.reason == "MissingTensor"
