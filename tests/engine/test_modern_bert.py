"""ModernBERT is the reference's in all spellings of its configuration; what has no layer is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ModelLoadError
from fairlead_engine.types import Pooling, Reading
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.encoder_checkpoints import write_encoder

LENGTHS = (1, 300, 2, 79, 151, 7)
OLDER = {
    "layer_types": None, "rope_parameters": None, "global_attn_every_n_layers": 2, "global_rope_theta": 500.0,
    "local_rope_theta": 70.0,
}  # fmt: skip
"""How published files spell what newer ones keep in `layer_types` and `rope_parameters`."""

LONG = {
    "rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def make_engine(folder: Path, **settings: Any) -> Engine:
    return Engine(EngineConfig(model=str(folder), device="cpu", num_threads=1, **{"dtype": "float32", **settings}))


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(11)
    return [torch.randint(3, 128, (length,), generator=draw).tolist() for length in LENGTHS]


def means(folder: Path) -> list[torch.Tensor]:
    """Of the reference's hidden states of each prompt."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return [model(input_ids=torch.tensor([each])).last_hidden_state[0].mean(0) for each in prompts()]


def found(engine: Engine, pooling: Pooling, reading: Reading) -> list[torch.Tensor]:
    requests = [
        make_request(str(index), prompt, pooling=pooling, reading=reading, max_tokens=0)
        for index, prompt in enumerate(prompts())
    ]
    outputs = answered(engine, requests)
    return [torch.frombuffer(bytearray(outputs[str(index)].embedding or b""), dtype=torch.float32)
            for index in range(len(requests))]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": 36, "num_attention_heads": 6, "local_attention": 1, "norm_bias": False, "mlp_bias": False},
        {"local_attention": 128, "attention_bias": True, "hidden_activation": "relu"},
        {"layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 3, "local_attention": 40},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 800.0},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}}},
    ],
    ids=["small", "biases", "kinds", "stretched"],
)  # fmt: skip
def test_hidden_states_are_the_references(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = write_encoder(tmp_path, "modernbert", **{"max_position_embeddings": 320, **fields})
    engine = make_engine(folder, max_num_batched_tokens=400)
    for own, wanted in zip(found(engine, Pooling.MEAN, Reading.RAW), means(folder), strict=True):
        assert (own - wanted).abs().max() < 1e-4


def test_published_files_are_read(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "modernbert", max_position_embeddings=320)
    change(folder, **OLDER)
    wanted = means(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({f"model.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    for own, each in zip(found(make_engine(folder), Pooling.MEAN, Reading.RAW), wanted, strict=True):
        assert (own - each).abs().max() < 1e-4


def test_local_layers_have_the_same_base_where_theirs_is_null(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "modernbert", max_position_embeddings=320)
    change(folder, **OLDER | {"local_rope_theta": 500.0})
    wanted = found(make_engine(folder), Pooling.MEAN, Reading.RAW)
    change(folder, local_rope_theta=None)
    assert all(map(torch.equal, found(make_engine(folder), Pooling.MEAN, Reading.RAW), wanted))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_classifiers_pool_as_they_say(tmp_path: Path, pooling: str) -> None:
    fields = {"classifier_pooling": pooling, "classifier_activation": "silu", "classifier_bias": True, "num_labels": 3}
    folder = write_encoder(tmp_path, "modernbert", classifies=True, max_position_embeddings=320, **fields)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    engine = make_engine(folder)
    assert engine.info.task.pooling == pooling
    for own, prompt in zip(found(engine, Pooling(pooling), Reading.LABELS), prompts(), strict=True):
        with torch.inference_mode():
            wanted = model(input_ids=torch.tensor([prompt])).logits[0].softmax(-1)
        assert (own - wanted).abs().max() < 1e-4


def test_bfloat16_is_as_near_as_the_references_own(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "modernbert", max_position_embeddings=320)
    exact = torch.stack(means(folder))
    change(folder, dtype="bfloat16")
    rounded = torch.stack(means(folder)).float()
    own = torch.stack(found(make_engine(folder, dtype="bfloat16"), Pooling.MEAN, Reading.RAW))
    assert (own - exact).norm() < 1.5 * (rounded - exact).norm()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"hidden_activation": "mish"}, "hidden_activation mish.*supported are gelu"),
        ({"classifier_activation": "mish"}, "classifier_activation mish"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'.*cls and mean"),
        ({"num_attention_heads": 16}, "num_attention_heads is 16 but must divide hidden_size .48. into even numbers"),
        ({"layer_types": ["chunked_attention"] * 5}, "layer_types chunked_attention"),
        ({"layer_types": ["full_attention"]}, "must name as many as num_hidden_layers"),
        ({"rope_parameters": {"full_attention": {"rope_type": "spiral"}}}, "rotary scaling spiral"),
        ({"rope_parameters": {"sliding_attention": LONG}}, "rotary scaling longrope, which"),
        ({"local_attention": 0}, "local_attention is 0 but must be a positive integer"),
        ({"norm_bias": False}, "norm.bias"),
        ({"attention_bias": True}, "Wqkv.bias"),
    ],
)
def test_what_no_layer_computes_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    folder = write_encoder(tmp_path, "modernbert")
    change(folder, **fields)
    with pytest.raises(ModelLoadError, match=sentence):
        make_engine(folder)
