"""Captured steps answer as launched ones do: on a CPU by what plays CUDA's graphs there, and on CUDA by themselves."""

import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.model import weights
from fairlead_engine.runner import model_part, step_graphs
from fairlead_engine.runner.cuda_device import CUDAGraphs, choose_recorder
from fairlead_engine.runner.step_graphs import GraphRecorder, decode_sizes, token_sizes
from fairlead_engine.types import EngineRequest, Pooling
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.devices import HAS_CUDA, on_each_device
from fairlead_engine_testing.launches import CPUGraphs
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields, qwen3_fields
from fairlead_engine_testing.tiny_families.experts import (
    gpt_oss_fields,
    mixtral_fields,
    qwen2_moe_fields,
    qwen3_moe_fields,
)
from fairlead_engine_testing.tiny_families.latent import deepseek_v3_fields

pytestmark = pytest.mark.matrix

VOCAB_SIZE = 61


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"), qwen3_fields(vocab_size=VOCAB_SIZE))


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[CPUGraphs]:
    """Has runners on a CPU capture their steps; what captured them."""
    made: list[CPUGraphs] = []

    def choose(device: torch.device, model: Any, backend: Any, *, enforce_eager: bool) -> GraphRecorder | None:
        if enforce_eager or device.type == "cuda":
            return choose_recorder(device, model, backend, enforce_eager=enforce_eager)
        made.append(CPUGraphs())
        return made[-1]

    monkeypatch.setattr(model_part, "choose_recorder", choose)
    return made


def test_sizes_end_with_the_most_there_can_be() -> None:
    assert decode_sizes(1) == token_sizes(1, 10**9) == [1]
    assert decode_sizes(2) == [1, 2]
    assert decode_sizes(30) == [1, 2, 4, 8, 16, 24, 30]
    assert decode_sizes(256)[-3:] == [240, 248, 256]
    assert decode_sizes(10_000)[-1] == token_sizes(10_000, 200 * 10**6)[-1] == 512
    assert token_sizes(50, 1) == [8, 16, 32, 48, 50]
    assert token_sizes(700, 1)[-3:] == [512, 640, 700]
    assert [token_sizes(8192, millions * 10**6)[-1] for millions in (15, 40, 50, 70)] == [2048, 1024, 896, 640]


@pytest.mark.skipif(HAS_CUDA, reason="CUDA plays itself where there is one")
def test_cuda_is_asked_for_one_pool_and_one_stream_and_for_nothing_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured has run before, on the same stream, after what was launched until then."""
    notes: list[str] = []

    class Stream:
        def __init__(self, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: "Stream") -> None:
            notes.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self) -> None:
            notes.append("replay")

    @contextmanager
    def within(name: str) -> Iterator[None]:
        notes.append(f"begin {name}")
        yield
        notes.append(f"end {name}")

    def capture(graph: Graph, *, pool: str, stream: Stream, capture_error_mode: str) -> Any:
        return within(f"capture in {pool} on {stream.name}, {capture_error_mode}")

    main, free = Stream("main"), iter([100, 100, 60])
    for name, value in (
        ("graph_pool_handle", lambda: "pool"), ("Stream", Stream), ("current_stream", lambda: main),
        ("stream", lambda stream: within(stream.name)), ("CUDAGraph", Graph), ("graph", capture),
        ("mem_get_info", lambda: (next(free), 1000)),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    graphs = CUDAGraphs()
    assert graphs.num_bytes() == 0
    replay = graphs.record(lambda: notes.append("run"))
    replay()
    assert notes == [
        "side waits for main", "begin side", "run", "end side", "main waits for side",
        "begin capture in pool on side, thread_local", "run", "end capture in pool on side, thread_local", "replay",
    ]  # fmt: skip
    assert (graphs.num_bytes(), graphs.num_bytes()) == (0, 40)


@pytest.mark.parametrize(
    ("fields", "backend", "enforce_eager", "said"),
    [
        (llama_fields(), "triton", True, ""),
        (llama_fields(), "cpu_spans", False, "only triton"),
        (llama_fields(), "block_tables", False, "only triton"),
        (mixtral_fields(), "triton", False, "experts"),
    ],
)
def test_what_cannot_be_captured_is_launched_and_said(
    fields: dict[str, Any], backend: str, enforce_eager: bool, said: str, tmp_path: Path, caplog: Any
) -> None:
    model_folder = write_random_checkpoint(tmp_path / "model", fields)
    part = loaded_runner(model_folder, device="cpu", num_threads=1, attention_backend=backend)._part
    cuda = torch.device("cuda")
    assert choose_recorder(cuda, part.model, part.backend, enforce_eager=enforce_eager) is None
    assert said in caplog.text and bool(said) == bool(caplog.text)


def test_a_step_that_looks_at_what_it_computed_is_not_captured(tmp_path: Path, captures: list[CPUGraphs]) -> None:
    """What plays graphs on a CPU refuses what CUDA would: which experts tokens go to is read by the host there."""
    model_folder = write_random_checkpoint(tmp_path / "model", mixtral_fields())
    runner = loaded_runner(model_folder, device="cpu", num_threads=1, attention_backend="block_tables")
    runner.allocate_kv_cache(4, 2, 2)
    with pytest.raises(AssertionError, match="the host looks at a tensor of the device"):
        runner.compile_steps(2, 8, 16)


def random_requests(draw: random.Random, longest: int) -> list[EngineRequest]:
    requests = []
    for index in range(draw.randint(10, 16)):
        prompt = [draw.randrange(2, VOCAB_SIZE) for _ in range(draw.randint(1, longest * 2 // 3))]
        if draw.random() < 0.15:
            whole = (prompt * longest)[: draw.choice([longest - 1, len(prompt)])]
            pooling = draw.choice([each for each in Pooling if each is not Pooling.CLS])
            requests.append(make_request(f"r{index}", whole, max_tokens=0, pooling=pooling))
            continue
        choices: dict[str, list[Any]] = {
            "temperature": [1.0], "seed": [0, 1], "top_p": [0.8], "logprobs": [0, 2], "prompt_logprobs": [1],
            "frequency_penalty": [1.5], "logit_bias": [{7: 5.0}],
        }  # fmt: skip
        sampling = {key: draw.choice(values) for key, values in choices.items() if draw.random() < 0.3}
        most = draw.randint(1, longest - len(prompt))
        requests.append(make_request(f"r{index}", prompt, max_tokens=most, ignore_eos=True, **sampling))
    return requests


def serve(engine: Engine, requests: list[EngineRequest], draw: random.Random) -> dict[str, list[Any]]:
    """What each request got; they come, and some go, while others run."""
    waiting: list[EngineRequest] = list(requests)
    got: dict[str, list[Any]] = {}
    while waiting or engine.has_work():
        if draw.random() < 0.05:
            engine.abort(draw.choice(requests).request_id)
        while waiting and draw.random() < 0.6:
            request = waiting.pop(0)
            assert engine.add(request) is None
        for output in engine.step():
            told = got.setdefault(output.request_id, [])
            told += output.new_token_ids
            told += [each.logprob for each in (*(output.prompt_logprobs or ()), *(output.logprobs or ()))]
            told += array("f", output.embedding or b"")
        engine.check()
    return got


@on_each_device
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.compute) for seed in range(4, 12))])
def test_random_traffic_gets_the_tokens_of_steps_that_are_launched(
    device: str, seed: int, folder: Path, captures: list[CPUGraphs], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    if draw.random() < 0.3:  # larger steps are launched
        monkeypatch.setattr(step_graphs, "_TOKEN_SIZES", (1, 4))
        monkeypatch.setattr(step_graphs, "_DECODE_SIZES", (1, 2))
    size, longest, num_seqs = draw.choice([1, 2, 4, 16]), draw.choice([16, 48]), draw.choice([1, 3, 5, 6, 7, 11])
    settings: dict[str, Any] = {
        "dtype": "float32", "device": device, "block_size": size, "num_threads": 1,
        "attention_backend": "block_tables" if device == "cpu" else "triton",
        "kv_cache_dtype": draw.choice(["auto", "int8"]),
    }  # fmt: skip
    fewest = -(-longest // size)
    answers = []
    for enforce_eager in (True, False):
        runner = loaded_runner(folder, **settings, enforce_eager=enforce_eager)
        config = EngineConfig(
            model=str(folder), max_model_len=longest, max_num_seqs=num_seqs,
            max_num_batched_tokens=max(num_seqs, random.Random(seed).choice([1, 2, 7, 20, 64])),
            max_num_queued_tokens=10**6, async_scheduling=seed % 2 == 0,
            kv_cache_memory=fewest * [1, 2, 5][seed % 3] * runner.kv_bytes_per_block(), **settings,
        )  # fmt: skip
        traffic = random.Random(seed)
        answers.append(serve(Engine(config, runner), random_requests(traffic, longest), traffic))
    assert answers[1].keys() == answers[0].keys()
    for name, told in answers[0].items():
        assert answers[1][name] == pytest.approx(told, abs=1e-3)
    if device == "cpu":
        assert len(captures) == 1 and captures[0].num_replays > 10


@pytest.mark.parametrize(
    ("fields", "quantization"),
    [
        (mixtral_fields, None),
        (qwen2_moe_fields, None),
        (qwen3_moe_fields, None),
        (deepseek_v3_fields, None),
        (mixtral_fields, "int8-weight-only"),
        (gpt_oss_fields, "int4-weight-only"),
    ],
)
def test_models_with_experts_are_captured_and_give_the_tokens_of_each_expert_alone(
    fields: Any, quantization: str | None, tmp_path: Path, captures: list[CPUGraphs], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_folder = write_random_checkpoint(tmp_path / "model", fields(vocab_size=VOCAB_SIZE))
    settings: dict[str, Any] = {
        "dtype": "float32", "device": "cpu", "block_size": 4, "num_threads": 1, "attention_backend": "block_tables",
        "quantization": quantization,
    }  # fmt: skip
    answers = []
    for is_grouped in (False, True):
        monkeypatch.setattr(weights, "groups_experts", lambda device, is_grouped=is_grouped: is_grouped)
        runner = loaded_runner(model_folder, **settings, enforce_eager=not is_grouped)
        assert (runner._part.model.why_not_captured is None) is is_grouped
        config = EngineConfig(
            model=str(model_folder), max_model_len=24, max_num_seqs=5, max_num_batched_tokens=12,
            max_num_queued_tokens=10**6, kv_cache_memory=12 * runner.kv_bytes_per_block(), **settings,
        )  # fmt: skip
        traffic = random.Random(3)
        answers.append(serve(Engine(config, runner), random_requests(traffic, 24), traffic))
    assert answers[1].keys() == answers[0].keys()
    for name, told in answers[0].items():
        assert answers[1][name] == pytest.approx(told, abs=1e-3)
    assert captures[0].num_replays > 10


@pytest.mark.parametrize("family", ["qwen3_5", "granite_hybrid"])
@pytest.mark.parametrize(
    ("seed", "changes"),
    [
        pytest.param(0, {}, marks=pytest.mark.compute),
        (1, {"async_scheduling": True}),
        (2, {"speculative_method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}),
        (3, {"enable_prefix_caching": False}),
    ],
)
def test_models_that_keep_states_are_captured(
    seed: int, changes: dict[str, Any], family: str, tmp_path: Path, captures: list[CPUGraphs], monkeypatch: Any
) -> None:
    """Layers that differ in the shape of what they read, and prompts that begin alike."""
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    model_folder = write_random_checkpoint(tmp_path / "model", FAMILIES[family](vocab_size=VOCAB_SIZE))
    settings: dict[str, Any] = {
        "dtype": "float32", "device": "cpu", "block_size": 4, "num_threads": 1, "attention_backend": "block_tables",
    }  # fmt: skip
    answers = []
    for enforce_eager in (True, False):
        runner = loaded_runner(model_folder, **settings, enforce_eager=enforce_eager)
        assert runner._part.model.why_not_captured is None
        memory = 20 * runner.kv_bytes_per_block() + 30 * runner.state_bytes
        config = EngineConfig(
            model=str(model_folder), max_model_len=40, max_num_seqs=5, max_num_batched_tokens=12,
            max_num_queued_tokens=10**6, kv_cache_memory=memory, **settings, **changes,
        )  # fmt: skip
        traffic = random.Random(seed)
        first = random_requests(traffic, 30)
        again = [make_request(f"{each.request_id}+", [*each.prompt_token_ids[:30], 5], max_tokens=9) for each in first]
        engine = Engine(config, runner)
        answers.append(serve(engine, [*first[:3], *chain(*zip(first[3:], again, strict=False)), *again[-3:]], traffic))
        assert bool(engine.load.prefix_hit_tokens) is config.enable_prefix_caching
        talk = [3, 5, 7]
        for _ in range(3):  # an answer's state is kept behind a captured step
            output = answered(engine, [make_request("talk", talk, max_tokens=7, ignore_eos=True)])["talk"]
            answers[-1].setdefault("talk", []).extend([*output.new_token_ids, output.num_cached_tokens])
            talk += [*output.new_token_ids, 9]
        assert (output.num_cached_tokens >= 12) is config.enable_prefix_caching
    assert answers[1].keys() == answers[0].keys()
    for name, told in answers[0].items():
        assert answers[1][name] == pytest.approx(told, abs=1e-3)
    assert captures[0].num_replays > 10


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device")
def test_on_a_device_nothing_is_compiled_after_the_start_and_memory_is_as_was_foreseen(folder: Path) -> None:
    from triton import knobs

    share = 0.3
    config = EngineConfig(
        model=str(folder), device="cuda", max_num_seqs=48, max_model_len=4096, gpu_memory_utilization=share
    )
    engine = Engine(config)
    free, total = torch.cuda.mem_get_info()
    assert 0.8 * share < 1 - free / total < share + 0.02
    compiled: list[Any] = []
    knobs.compilation.listener = lambda **facts: compiled.append(facts["src"].name)
    try:
        draw = random.Random(0)
        answers = serve(engine, random_requests(draw, 2000), draw)
    finally:
        knobs.compilation.listener = None
    assert answers and not compiled
