"""EmbeddingGemma is the reference's, with the dense modules that its makers put behind the mean; so are others'."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from fairlead_common.models.families.registry import find_encoder
from fairlead_common.models.json_fields import JsonFields
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ModelLoadError
from fairlead_engine.llm import LLM
from fairlead_engine.types import Pooling, Reading
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.encoder_checkpoints import (
    write_embedding_prompts,
    write_encoder,
    write_sentence_modules,
    write_word_pieces,
)
from fairlead_engine_testing.tiny_families.dense import llama_fields

LENGTHS = (1, 300, 2, 79, 151, 7)


def make_engine(folder: Path, **settings: Any) -> Engine:
    return Engine(EngineConfig(model=str(folder), device="cpu", num_threads=1, **{"dtype": "float32", **settings}))


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(11)
    return [torch.randint(3, 128, (length,), generator=draw).tolist() for length in LENGTHS]


def means(folder: Path) -> torch.Tensor:
    """Of the reference's hidden states of each prompt."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return torch.stack([model(input_ids=torch.tensor([each])).last_hidden_state[0].mean(0) for each in prompts()])


def vectors(engine: Engine, reading: Reading = Reading.RAW) -> torch.Tensor:
    requests = [
        make_request(str(index), prompt, pooling=Pooling.MEAN, reading=reading, max_tokens=0)
        for index, prompt in enumerate(prompts())
    ]
    outputs = answered(engine, requests)
    found = [outputs[str(index)].embedding or b"" for index in range(len(requests))]
    return torch.stack([torch.frombuffer(bytearray(each), dtype=torch.float32) for each in found])


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 2, "head_dim": 6, "attention_bias": True},
        {"sliding_window": 81, "num_key_value_heads": 3, "layer_types": None, "sliding_window_pattern": 2},
        {"sliding_window": 4096, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 800.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}}},
    ],
    ids=["small", "kinds", "stretched"],
)  # fmt: skip
def test_hidden_states_are_the_references(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = write_encoder(tmp_path, "embedding-gemma", **{"max_position_embeddings": 320, **fields})
    assert (vectors(make_engine(folder, max_num_batched_tokens=400)) - means(folder)).abs().max() < 1e-4


def test_windows_count_the_tokens_of_both_sides(tmp_path: Path) -> None:
    """As the file says them; the reference keeps half, and writes the whole again."""
    folder = write_encoder(tmp_path, "embedding-gemma", max_position_embeddings=320)
    change(folder / "config.json", sliding_window=33)
    assert (vectors(make_engine(folder)) - means(folder)).abs().max() < 1e-4


def test_files_with_a_prefix_are_read(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "embedding-gemma", max_position_embeddings=320)
    wanted = vectors(make_engine(folder))
    tensors = load_file(folder / "model.safetensors")
    save_file({f"model.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert torch.equal(vectors(make_engine(folder)), wanted)


def test_bfloat16_is_as_near_as_the_references_own(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "embedding-gemma", max_position_embeddings=320)
    exact = means(folder)
    change(folder / "config.json", dtype="bfloat16")
    rounded = means(folder).float()
    own = vectors(make_engine(folder, dtype="bfloat16"))
    assert (own - exact).norm() < 1.5 * (rounded - exact).norm()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"hidden_activation": "mish"}, "hidden_act mish"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping 30"),
        ({"rope_parameters": {"full_attention": {"rope_type": "spiral"}}}, "rotary scaling spiral"),
        ({"sliding_window": 0}, "sliding_window is 0 but must be a positive integer"),
        ({"attention_bias": True}, "q_proj.bias"),
    ],
)
def test_what_no_layer_computes_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    folder = write_encoder(tmp_path, "embedding-gemma")
    change(folder / "config.json", **fields)
    with pytest.raises(ModelLoadError, match=sentence):
        make_engine(folder)


def test_a_gemma_that_looks_one_way_is_no_encoder(tmp_path: Path) -> None:
    path = write_encoder(tmp_path, "embedding-gemma") / "config.json"
    assert find_encoder(JsonFields.read(path)) == "Gemma3TextModel"
    for value in (False, None):
        change(path, use_bidirectional_attention=value)
        assert find_encoder(JsonFields.read(path)) is None


@pytest.mark.parametrize(
    ("family", "dense", "fields", "activation"),
    [
        ("embedding-gemma", (60, 48), {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"},
         torch.nn.Identity()),
        ("distilbert", (20,), {"activation_function": "torch.nn.modules.activation.Tanh"}, torch.nn.Tanh()),
        ("bert", (20,), {}, torch.nn.Tanh()),
        ("modernbert", (20,), {"activation_function": None, "module_input_name": "sentence_embedding"},
         torch.nn.Identity()),
    ],
)  # fmt: skip
def test_vectors_go_through_dense_modules(
    tmp_path: Path, family: str, dense: tuple[int, ...], fields: dict[str, Any], activation: torch.nn.Module
) -> None:
    folder = write_encoder(tmp_path, family, max_position_embeddings=320)
    wanted = means(folder)
    plain = make_engine(folder).info
    for layer in write_sentence_modules(folder, dense=dense, **fields):
        wanted = activation(layer(wanted))
    engine = make_engine(folder)
    task = engine.info.task
    assert (task.pooling, task.reading, engine.info.hidden_size) == (Pooling.MEAN, Reading.UNIT, dense[-1])
    assert engine.info.weight_bytes > plain.weight_bytes
    assert (vectors(engine) - wanted).abs().max() < 1e-4
    unit = torch.nn.functional.normalize(wanted, dim=1)
    assert (vectors(engine, Reading.UNIT) - unit).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("file", "fields", "sentence"),
    [
        ("2_Dense/config.json", {"in_features": 40}, "in_features is 40 but must be 48"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.Mish"}, "activation_function is 'torch.nn.Mish'"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        ("2_Dense/config.json", {"bias": False}, "linear.bias"),
        ("2_Dense/config.json", {"out_features": 12}, "linear.weight should have shape"),
    ],
)
def test_dense_modules_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, file: str, fields: dict[str, Any], sentence: str
) -> None:
    folder = write_encoder(tmp_path, "bert")
    write_sentence_modules(folder, dense=(20,))
    change(folder / file, **fields)
    with pytest.raises(ModelLoadError, match=sentence):
        make_engine(folder)


def test_dense_modules_stand_between_pooling_and_length_and_behind_encoders_alone(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder", "bert")
    write_sentence_modules(folder, dense=(20,))
    path = folder / "modules.json"
    transformer, pooling, dense, normalize = json.loads(path.read_text())
    for order in ([transformer, dense, pooling], [transformer, pooling, normalize, dense]):
        path.write_text(json.dumps(order))
        with pytest.raises(ModelLoadError, match=r"Transformer, Pooling, Dense \(of encoders\) and Normalize, in"):
            make_engine(folder)
    decoder = write_random_checkpoint(tmp_path / "decoder", llama_fields())
    (decoder / "1_Pooling").mkdir()
    (decoder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    (decoder / "modules.json").write_text(json.dumps([transformer, pooling, dense]))
    with pytest.raises(ModelLoadError, match=r"Dense \(of encoders\)"):
        make_engine(decoder)


def test_texts_become_the_vectors_of_its_makers(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "embedding-gemma")
    layers = write_sentence_modules(folder, dense=(60, 48), activation_function=None)
    write_embedding_prompts(folder, query="ship ")
    write_word_pieces(folder)
    llm = LLM(str(folder), num_threads=1, dtype="float32", device="cpu")
    model = transformers.AutoModel.from_pretrained(folder).eval()
    texts = ["ship a line", "fairlead!"]
    wanted = []
    for text in texts:
        with torch.inference_mode():
            ids = torch.tensor([llm.model.tokenizer.encode(text)])
            wanted.append(layers[1](layers[0](model(input_ids=ids).last_hidden_state[0].mean(0))))
    unit = torch.nn.functional.normalize(torch.stack(wanted), dim=1)
    assert (torch.tensor(llm.embed(texts)) - unit).abs().max() < 1e-4
