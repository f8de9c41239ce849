"""Which files of a listing are fetched, by listings as public models have them; and what none can be served of."""

import pytest

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_engine.sources.remote import DownloadError, RemoteFile
from fairlead_engine.sources.selection import SourceKind, needed

ALL = frozenset({".safetensors", ".bin", ".pt", ".gguf"})
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def chosen(
    *paths: str, suffixes: frozenset[str] = ALL, kind: SourceKind = SourceKind.MODEL, variant: str | None = None
) -> set[str]:
    files = [RemoteFile(path) for path in paths]
    return {file.path for file in needed(files, "hf://a/b", suffixes, kind, variant)}


@pytest.mark.parametrize(
    ("listed", "left_out"),
    [
        (["config.json", "model.safetensors.index.json", *SHARDS, "tokenizer.model"], ["consolidated.safetensors"]),
        (["config.json", "model.safetensors"], ["model.fp16.safetensors", "tf_model.h5", "flax_model.msgpack"]),
        (["config.json", "model.safetensors", "vocab.txt"], ["pytorch_model.bin", "rust_model.ot"]),
        (["config.json", "model.safetensors", "tekken.json"], ["consolidated.safetensors", "params.json"]),
        (["config.json", "model.safetensors", "tiktoken.model", "tokenizer_config.json"], ["tokenization_kimi.py"]),
        (["config.json", "model.safetensors", "tokenizer.json"], ["tekken.json", "tiktoken.model", "tokenizer.model"]),
        (["config.json", "model.safetensors", "tokenizer.model", "added_tokens.json", "special_tokens_map.json",
          "tokenizer_config.json"], ["tokenization_ernie4_5.py"]),
        (["config.json", "pytorch_model.bin"], ["training_args.bin", "optimizer.pt", "scheduler.pt"]),
        (["config.json", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"], ["x.gguf", "LICENSE"]),
        (["config.json", "consolidated.safetensors"], ["params.json"]),
        (["config.json", "medusa_lm_head.pt"], ["README.md", "training_args.bin"]),
        (["config.json", "medusa_lm_head.safetensors"], ["medusa_lm_head.pt"]),
        (["model-q4_0.gguf"], ["README.md", "imatrix.dat"]),
        (["model-q4_0.gguf"], ["config.json", "tokenizer.json"]),
        (["gemma-3-4b-it-q4_0.gguf"], ["mmproj-model-f16-4B.gguf", "imatrix.gguf", "gemma.imatrix.gguf"]),
        (["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"], ["README.md"]),
        (["Q4_K_M/big-00001-of-00002.gguf", "Q4_K_M/big-00002-of-00002.gguf"], ["config.json"]),
        (["config.json", "modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "model.safetensors"],
         ["onnx/model.onnx", "openvino/config.json", "2_Dense/pytorch_model.bin", "3_Other/pytorch_model.bin"]),
        (["config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/pytorch_model.bin",
          "model.safetensors"], ["2_Dense/rust_model.ot"]),
        (["config.json", "model.safetensors", "additional_chat_templates/tool.jinja"], ["assets/tool.jinja"]),
    ],
)  # fmt: skip
def test_what_serving_needs(listed: list[str], left_out: list[str]) -> None:
    assert chosen(*listed, *left_out) == set(listed)


@pytest.mark.parametrize(
    ("listed", "reason", "words"),
    [
        (["config.json", "tf_model.h5"], DownloadFailure.SOURCE_NOT_FOUND, "holds no weights"),
        (["adapter_config.json", "adapter_model.bin"], DownloadFailure.SOURCE_NOT_FOUND, "is an adapter and no model"),
        (["model.safetensors"], DownloadFailure.SOURCE_NOT_FOUND, "no config.json"),
        (
            ["config.json", "onnx/model.onnx", "onnx/model_q4.onnx_data"],
            DownloadFailure.SOURCE_NOT_SUPPORTED,
            "has weights as ONNX alone (onnx/model.onnx)",
        ),
        (
            ["genai_config.json", "model.onnx", "model.onnx.data"],
            DownloadFailure.SOURCE_NOT_SUPPORTED,
            "name the checkpoint that it was exported from",
        ),
        (["a-q4.gguf", "a-q8.gguf"], DownloadFailure.SOURCE_NOT_SUPPORTED, "write one as hf://a/b:NAME, of q4, q8"),
        (["config.json", "model.safetensors", "../x"], DownloadFailure.SOURCE_NOT_SUPPORTED, "no path below a folder"),
        (["config.json", "model.safetensors", "/x"], DownloadFailure.SOURCE_NOT_SUPPORTED, "no path below a folder"),
    ],
)
def test_what_cannot_be_served(listed: list[str], reason: str, words: str) -> None:
    with pytest.raises(DownloadError) as caught:
        chosen(*listed)
    assert caught.value.reason == reason and words in caught.value.message


PUBLISHED = [
    "BF16/Big-BF16-00001-of-00002.gguf", "BF16/Big-BF16-00002-of-00002.gguf", "Big-Q4_K_M.gguf", "Big-UD-Q4_K_M.gguf",
    "Big-UD-IQ1_S.gguf", "Big.Q8_0.gguf", "UD-Q2_K_XL/Big-UD-Q2_K_XL-00001-of-00002.gguf",
    "UD-Q2_K_XL/Big-UD-Q2_K_XL-00002-of-00002.gguf", "mmproj-BF16.gguf", "config.json", "model.safetensors",
]  # fmt: skip
"""As quantisations lie side by side at the hub."""


@pytest.mark.parametrize(
    ("variant", "files"),
    [
        ("Q4_K_M", {"Big-Q4_K_M.gguf"}),
        ("UD-Q4_K_M", {"Big-UD-Q4_K_M.gguf"}),
        ("iq1_s", {"Big-UD-IQ1_S.gguf"}),
        ("Q8_0", {"Big.Q8_0.gguf"}),
        ("Big.Q8_0.gguf", {"Big.Q8_0.gguf"}),
        ("BF16", set(PUBLISHED[:2])),
        ("UD-Q2_K_XL", set(PUBLISHED[6:8])),
        ("Q2_K_XL", set(PUBLISHED[6:8])),
    ],
)
def test_a_quantisation_is_named(variant: str, files: set[str]) -> None:
    assert chosen(*PUBLISHED, variant=variant) == files


def test_of_one_that_is_not_there_the_others_are_told() -> None:
    with pytest.raises(
        DownloadError, match="Q5_K; it has BF16, Q4_K_M, UD-IQ1_S, UD-Q2_K_XL, UD-Q4_K_M, Q8_0"
    ) as caught:
        chosen(*PUBLISHED, variant="Q5_K")
    assert caught.value.reason == DownloadFailure.SOURCE_NOT_FOUND


def test_weights_that_nothing_reads_are_not_fetched() -> None:
    with pytest.raises(DownloadError) as caught:
        chosen("config.json", "pytorch_model.bin", suffixes=frozenset({".safetensors"}))
    assert caught.value.reason == DownloadFailure.SOURCE_NOT_SUPPORTED and ".bin" in caught.value.message


@pytest.mark.parametrize(
    ("listed", "left_out"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], ["adapter_model.bin", "README.md", "tokenizer.json"]),
        (["adapter_config.json", "adapter_model.bin"], ["training_args.bin", "optimizer.pt", "config.json"]),
        (["adapter_config.json", "adapter_model.safetensors"], ["config.json", "model.safetensors"]),
    ],
)
def test_what_an_adapter_needs(listed: list[str], left_out: list[str]) -> None:
    assert chosen(*listed, *left_out, kind=SourceKind.ADAPTER) == set(listed)


def test_a_model_beside_an_adapter_is_taken_without_it() -> None:
    found = chosen("config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors")
    assert "model.safetensors" in found and "adapter_model.safetensors" not in found


@pytest.mark.parametrize(
    "listed", [["config.json", "model.safetensors"], ["adapter_config.json"], ["adapter_model.bin"]]
)
def test_what_is_no_adapter(listed: list[str]) -> None:
    with pytest.raises(DownloadError) as caught:
        chosen(*listed, kind=SourceKind.ADAPTER)
    assert caught.value.reason == DownloadFailure.SOURCE_NOT_FOUND
    assert "hf://a/b holds no adapter, which has adapter_config.json" in caught.value.message
    assert ("it is a model" in caught.value.message) == ("config.json" in listed)
