"""Layers for multi-token prediction: the checkpoint's own layer guesses what DeepSeek-V3's arithmetic says, whatever is
cached, chunked or beside, and answers stay as they are.

The reference is the model as transformers has it, whose decoder layers compute the layer, too; transformers itself
leaves the layer out. Around it everything is plain torch, without a cache, over the whole text each time.
"""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import embedding, linear

from fairlead.fit.fit_check import read_shape
from fairlead.fit.memory_need import EngineChoice, reckon
from fairlead_common.models.choices import DeviceKind
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.runner import load_runner
from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.types import EngineLoad, EngineRequest
from fairlead_engine_testing import make_request
from fairlead_engine_testing.adapters import write_random_adapter
from fairlead_engine_testing.checked_steps import tokens_of
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import engine_of_blocks, small_config
from fairlead_engine_testing.quantized_checkpoints import write_finegrained_fp8
from fairlead_engine_testing.tiny_families.dense import llama_fields
from fairlead_engine_testing.tiny_families.experts import ernie4_5_moe_fields, glm4_moe_fields
from fairlead_engine_testing.tiny_families.latent import deepseek_v3_fields, glm4_moe_lite_fields
from fairlead_engine_testing.tiny_families.recurrent import qwen3_5_fields, qwen3_5_moe_fields, qwen3_next_fields
from fairlead_engine_testing.watched_guesses import GuessReference, biased_requests, captured_decodes, prefix_sharers

pytestmark = pytest.mark.matrix

WORDS, LAYERS = 61, 2
COMMON: dict[str, Any] = {"vocab_size": WORDS, "num_nextn_predict_layers": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v3": deepseek_v3_fields(**COMMON, hidden_size=72),
    "glm4_moe": glm4_moe_fields(**COMMON, rms_norm_eps=1e-4),
    "glm4_moe_lite": glm4_moe_lite_fields(**COMMON, num_attention_heads=3, num_key_value_heads=3),
}
OWN = f"model.layers.{LAYERS}"


class Names(NamedTuple):
    """Of what is around the decoder layer."""

    join: str
    embedding_norm: str
    hidden_norm: str
    final_norm: str


NAMES = Names(*(f"{OWN}.{name}" for name in ("eh_proj", "enorm", "hnorm", "shared_head.norm")))
QWEN_NAMES = Names("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
SAMPLINGS: list[dict[str, Any]] = [
    {"ignore_eos": True, "logit_bias": {7: 2.5, 32: 2.0}}, {"ignore_eos": True}, {"temperature": 1.0, "seed": 5},
    {"repetition_penalty": 1.3, "logit_bias": {9: 4.0}}, {"logit_bias": {7: 99.0}, "ignore_eos": True},
]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: write_random_checkpoint(root / name, fields) for name, fields in FAMILIES.items()}


class Reference(GuessReference):
    """The model and the layer, over whole texts."""

    def __init__(self, folder: Path, beside: Path) -> None:
        """`beside`: an empty folder, for the same tensors as those of a model with one more layer."""
        import transformers

        def read(path: Path) -> Any:
            return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().model

        fields = json.loads((folder / "config.json").read_text())
        num_layers, kinds = fields["num_hidden_layers"], fields.get("layer_types")
        more = {"num_hidden_layers": num_layers + 1}
        if kinds:
            more["layer_types"] = [*kinds, "full_attention"]
        self.tensors = load_file(folder / "model.safetensors")
        own = {name.replace("mtp.layers.0.", f"model.layers.{num_layers}."): x for name, x in self.tensors.items()}
        beside.mkdir()
        (beside / "config.json").write_text(json.dumps(fields | more))
        save_file(own, beside / "model.safetensors", metadata={"format": "pt"})
        self.model, longer = read(folder), read(beside)
        self.layer, self.rotary = longer.layers[num_layers], longer.rotary_emb
        self.eps = fields["rms_norm_eps"]
        self.names = QWEN_NAMES if kinds else NAMES
        self.offset = 1.0 if kinds else 0.0

    def seen(self, tokens: list[int]) -> Tensor:
        hidden: Tensor = self.model(torch.tensor([tokens])).last_hidden_state[0]
        return hidden

    def scores(self, last: Tensor) -> Tensor:
        return linear(last, self.tensors["lm_head.weight"])

    def guess(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        embedded = self.norm(self.names.embedding_norm, embedding(tokens, self.tensors["model.embed_tokens.weight"]))
        both = torch.cat((embedded, self.norm(self.names.hidden_norm, hidden)), dim=-1)
        stream = linear(both, self.tensors[f"{self.names.join}.weight"])[None]
        places = torch.arange(len(tokens))[None]
        mask = torch.full((1, 1, len(tokens), len(tokens)), float("-inf")).triu(1)
        found = self.layer(
            stream, attention_mask=mask, position_ids=places, position_embeddings=self.rotary(stream, places)
        )
        return self.norm(self.names.final_norm, (found[0] if isinstance(found, tuple) else found)[0])

    def norm(self, name: str, x: Tensor) -> Tensor:
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return scaled * (self.offset + self.tensors[f"{name}.weight"])


def config_of(folder: Path, *, guesses: bool = True, **settings: Any) -> EngineConfig:
    common: dict[str, Any] = {"block_size": 4, "max_model_len": 64, "max_num_batched_tokens": 12}
    if guesses:
        common |= {"speculative_method": "mtp", "num_speculative_tokens": 3}
    return small_config(folder, **{**common, **settings})


def held_to_the_reference(
    folder: Path,
    beside: Path,
    asked: list[EngineRequest],
    *,
    behind: dict[str, dict[int, int]] | None = None,
    **settings: Any,
) -> EngineLoad:
    reference = Reference(folder, beside / "longer")
    return reference.check(config_of(folder, **settings), asked, behind or {})


@pytest.mark.parametrize("host", [None, 2**20])
@pytest.mark.parametrize("family", FAMILIES)
def test_guesses_are_the_references(family: str, host: int | None, folders: dict[str, Path], tmp_path: Path) -> None:
    """In chunks, mixed steps and after preemption, and wherever some guesses stand and some do not."""
    load = held_to_the_reference(folders[family], tmp_path, biased_requests(), host_kv_cache_memory=host)
    assert load.num_preemptions
    assert bool(load.num_blocks_loaded) == (host is not None)
    assert 0 < sum(load.num_accepted_per_position) < load.num_draft_tokens
    assert load.num_accepted_per_position[-1], "more than one stands at a time"


def test_who_shares_a_prefix_guesses_on_with_what_stood_behind_it(folders: dict[str, Path], tmp_path: Path) -> None:
    """The keys and values of a block's last position are those of who computed it, whatever came there."""
    load = held_to_the_reference(folders["deepseek_v3"], tmp_path, prefix_sharers(), behind={"b": {15: 20}})
    assert load.prefix_hit_tokens == 16


def test_guesses_are_the_references_where_steps_are_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes without drafts are one graph, which hands out what the layer sees; of experts a CPU has none."""
    decoded = captured_decodes(monkeypatch)
    fields = FAMILIES["glm4_moe"] | {"first_k_dense_replace": LAYERS}
    folder = write_random_checkpoint(tmp_path / "model", fields)
    held_to_the_reference(folder, tmp_path, biased_requests()[:4], attention_backend="block_tables")
    assert decoded


QWENS = {
    "qwen3_next": qwen3_next_fields(**COMMON),
    "qwen3_5": qwen3_5_fields(vocab_size=WORDS, mtp_num_hidden_layers=1),
    "qwen3_5_moe": qwen3_5_moe_fields(vocab_size=WORDS, mtp_num_hidden_layers=1, num_nextn_predict_layers=0),
}


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("family", QWENS)
def test_layers_of_qwen_guess_what_the_reference_does(family: str, caches: bool, tmp_path: Path) -> None:
    """Whatever becomes of the states behind guesses that do not stand."""
    folder = write_random_checkpoint(tmp_path / "model", QWENS[family])
    load = held_to_the_reference(folder, tmp_path, biased_requests(), enable_prefix_caching=caches)
    assert 0 < sum(load.num_accepted_per_position) < load.num_draft_tokens


@pytest.mark.parametrize("family", QWENS)
def test_the_layer_of_qwen_takes_what_is_reckoned(family: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, QWENS[family])
    config = read_config(folder)
    cpu = torch.device("cpu")
    alone, guessing = (load_model(folder, config, torch.float32, cpu, guesses=guesses) for guesses in (False, True))
    assert (alone.guessing is None, guessing.guessing is None) == (True, False)
    own = {name: each for name, each in load_file(folder / "model.safetensors").items() if name.startswith("mtp.")}
    need = reckon(config, EngineChoice(guesses_itself=True), DeviceKind.CPU)
    assert guessing.weight_bytes - alone.weight_bytes == need.draft == sum(each.nbytes for each in own.values())


def mixed(draw: random.Random) -> list[EngineRequest]:
    shared = [2 + 5 * place % 50 for place in range(16)]
    return [
        make_request(
            str(index), shared[: draw.choice([0, 8, 16])] + [draw.randrange(2, 50) for _ in range(draw.randint(1, 9))],
            arrival_time=index, max_tokens=draw.randint(8, 20), **draw.choice(SAMPLINGS),
        )
        for index in range(10)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.compute) for seed in range(3, 9))])
def test_guesses_change_no_token_under_random_steps(seed: int, folders: dict[str, Path], tmp_path: Path) -> None:
    """As chains, and as trees where no layer keeps a state; in chunks, with preemption and shared prefixes."""
    draw = random.Random(seed)
    recurs, size = seed >= 6, draw.choice([1, 2, 4])
    qwen = list(QWENS.values())[seed % 3]
    folder = write_random_checkpoint(tmp_path, qwen) if recurs else folders[list(FAMILIES)[seed % 3]]
    asked = mixed(draw)
    config = config_of(
        folder, guesses=False, block_size=size, max_num_batched_tokens=draw.choice([5, 12, 40]),
        attention_backend=draw.choice(["cpu_spans", "block_tables"]),
        kv_cache_dtype=draw.choice(["auto"] if recurs else ["auto", "int8"]),
        max_model_len=40,
    )  # fmt: skip
    num_blocks = 64 // size
    expected = tokens_of(engine_of_blocks(replace(config, enable_prefix_caching=False), num_blocks), asked)
    places = draw.randint(1, 4)
    for tree in (None,) if recurs else (None, "2x12"):
        guesses = {"speculative_method": "mtp", "num_speculative_tokens": places, "speculative_tree": tree}
        engine = engine_of_blocks(replace(config, **guesses), num_blocks)
        assert tokens_of(engine, asked) == expected
        assert engine.blocks.num_free == engine.blocks.num_blocks
        assert 0 < sum(engine.load.num_accepted_per_position) < engine.load.num_draft_tokens


def test_requests_with_adapters_are_guessed_for_and_answered_as_without(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folders["glm4_moe"]
    model = write_random_checkpoint(tmp_path / "model", FAMILIES["glm4_moe"] | {"num_nextn_predict_layers": 0})
    one = write_random_adapter(tmp_path / "one", model, targets=("q_proj", "v_proj"))
    asked = [
        make_request(str(index), [3 + index, 9, 5], max_tokens=16, ignore_eos=True, adapter=(None, "one")[index % 2])
        for index in range(4)
    ]
    common: dict[str, Any] = {"lora_modules": f"one={one}", "max_loras": 1}
    expected = tokens_of(engine_of_blocks(config_of(folder, guesses=False, **common), 40), asked)
    engine = engine_of_blocks(config_of(folder, **common), 40)
    assert tokens_of(engine, asked) == expected
    assert engine.load.num_draft_tokens


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_a_layer_that_is_stored_in_8_bit_floats_guesses(family: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Its projections are read as they are stored; only `eh_proj` may be floats beside them."""
    folder = write_finegrained_fp8(folders[family], tmp_path / "stored", (16, 16))
    tensors = load_file(folder / "model.safetensors")
    floats = load_file(folders[family] / "model.safetensors")
    for name in [name for name in tensors if name.startswith(f"{OWN}.eh_proj.")]:
        del tensors[name]
    tensors[f"{OWN}.eh_proj.weight"] = floats[f"{OWN}.eh_proj.weight"]
    assert any(name.startswith(f"{OWN}.mlp") and name.endswith("weight_scale_inv") for name in tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    asked = biased_requests()
    expected = tokens_of(engine_of_blocks(config_of(folder, guesses=False), 40), asked)
    engine = engine_of_blocks(config_of(folder), 40)
    assert tokens_of(engine, asked) == expected
    assert sum(engine.load.num_accepted_per_position)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layer_takes_memory_where_it_guesses_alone(family: str, folders: dict[str, Path]) -> None:
    """As much as is reckoned before it is loaded."""
    folder = folders[family]
    alone, guessing = (load_runner(config_of(folder, guesses=guesses)) for guesses in (False, True))
    assert guessing.num_parameters == alone.num_parameters
    assert guessing.kv_bytes_per_block() * LAYERS == alone.kv_bytes_per_block() * (LAYERS + 1)
    own = {name: each for name, each in load_file(folder / "model.safetensors").items() if name.startswith(OWN)}
    copies = [own.pop(f"{OWN}.{name}.weight") for name in ("embed_tokens", "shared_head.head")]
    assert guessing.weight_bytes - alone.weight_bytes == sum(each.nbytes for each in own.values())
    assert all(len(each) == WORDS for each in copies)
    shape = read_shape(json.loads((folder / "config.json").read_text()))
    need = reckon(shape, EngineChoice(block_size=4, guesses_itself=True), DeviceKind.CPU)
    assert need.draft == guessing.weight_bytes - alone.weight_bytes
    assert need.kv_block == guessing.kv_bytes_per_block()
    model = alone._part.model
    assert isinstance(model, Decoder) and model.guessing is None


Change = Callable[[dict[str, Tensor]], object]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(OWN)], "num_nextn_predict_la"),
        (lambda tensors: tensors.pop(f"{OWN}.eh_proj.weight"), rf"num_nextn_predict_layers.*{OWN}\.eh_proj\.weight"),
        (lambda tensors: tensors.pop(f"{OWN}.enorm.weight"), rf"no tensor {OWN}\.enorm\.weight"),
        (lambda tensors: tensors.update({f"{OWN}.eh_proj.weight": torch.zeros(3, 4)}), r"eh_proj.*should have shape"),
    ],
    ids=["all of it", "projection", "norm", "misshapen"],
)
def test_a_checkpoint_without_the_layer_that_it_promises_is_refused(
    change: Change, says: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    tensors = load_file(folders["deepseek_v3"] / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(FAMILIES["deepseek_v3"]))
    with pytest.raises(ModelLoadError, match=says):
        load_runner(config_of(tmp_path))


@pytest.mark.parametrize(
    "fields",
    [deepseek_v3_fields(), glm4_moe_fields(num_nextn_predict_layers=0), llama_fields(), ernie4_5_moe_fields()],
    ids=["not said", "none", "a family without", "a family whose layers are not read"],
)
def test_a_model_that_brings_no_layer_is_refused_by_the_field(fields: dict[str, Any], tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, fields)
    with pytest.raises(ConfigError, match=r"no layer for it that is read here \(num_nextn_predict_layers\)") as error:
        load_runner(config_of(folder))
    assert error.value.field == "speculative_method"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"speculative_model": "/m"}, "speculative_model"),
        ({"prompt_lookup_min": 1}, "prompt_lookup_min"),
        ({"tensor_parallel_size": 2}, "speculative_method"),
        ({"speculative_tree": "[[0],[1]]"}, "speculative_tree"),
        ({"async_scheduling": True}, "async_scheduling"),
    ],
)
def test_settings_that_do_not_go_with_it_are_named(
    settings: dict[str, Any], field: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(folders["glm4_moe"], **settings)
    assert error.value.field == field
