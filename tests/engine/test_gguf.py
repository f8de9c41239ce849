"""GGUF files, written and decoded by llama.cpp's own package: whole models, tokenizers, and files that are damaged."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from fairlead_common.models.gguf_file import GgufFile
from fairlead_common.models.gguf_tokenizer import read_gguf_tokenizer
from fairlead_engine.demo import resolve_model
from fairlead_engine.errors import ModelLoadError
from fairlead_engine.llm import LLM
from fairlead_engine.model.gguf_blocks import BLOCKS
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.tokenizer_files import read_tokenizer
from fairlead_engine.types import SamplingParams
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.gguf_files import dinghy_vocabulary, set_scales, write_gguf, write_metadata
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields

PROMPTS = [[5 + 7 * i % 200 for i in range(start, start + length)] for start, length in ((0, 3), (3, 40))]
CPU = torch.device("cpu")
MIXED = {
    "q_proj.weight": Kind.Q4_0,
    "k_proj.weight": Kind.Q4_1,
    "v_proj.weight": Kind.Q8_0,
    "o_proj.weight": Kind.Q5_0,
    "gate_proj.weight": Kind.Q5_1,
    "up_proj.weight": Kind.F16,
    "down_proj.weight": Kind.BF16,
    "embed_tokens.weight": Kind.Q8_0,
    "lm_head.weight": Kind.Q8_0,
}


@pytest.mark.parametrize("number", BLOCKS)
def test_blocks_mean_what_llama_cpp_decodes(number: int) -> None:
    block, kind = BLOCKS[number], Kind(number)
    assert (block.name, (block.stored.size, block.stored.num_bytes)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])
    raw = np.random.default_rng(number).integers(0, 256, (6, block.stored.num_bytes), dtype=np.uint8)
    set_scales(raw, kind, np.linspace(-0.3, 0.4, 6))
    decoded = block.decode(torch.from_numpy(raw))
    found = QuantizedWeight(decoded.values, decoded.scales, block.group_size, decoded.offsets).dequantized()
    wanted = torch.from_numpy(gguf.quants.dequantize(raw, kind))
    torch.testing.assert_close(found, wanted.view(found.shape), rtol=1e-5, atol=1e-5)
    if block.num_bits == 4:
        assert int(decoded.values.min()) >= -8 and int(decoded.values.max()) <= 7


def test_large_tables_are_decoded_a_part_at_a_time(tmp_path: Path, monkeypatch) -> None:
    from fairlead_engine.model import gguf_checkpoint

    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=128))
    file = write_gguf(floats, tmp_path / "model.gguf", tmp_path / "meant", {"embed_tokens.weight": Kind.Q8_0})
    monkeypatch.setattr(gguf_checkpoint, "_MOST_DECODED", 7 * 64)
    wanted = load_file(tmp_path / "meant" / "model.safetensors")["model.embed_tokens.weight"]
    with gguf_checkpoint.GgufCheckpoint(file, torch.float32, CPU) as checkpoint:
        assert torch.equal(checkpoint.tensor("model.embed_tokens.weight", 256, 64), wanted)
        part = checkpoint.stacked(["model.embed_tokens.weight"], [256], 64, row_parts=[slice(9, 31)])
    assert torch.equal(part, wanted[9:31])


@pytest.mark.parametrize("kinds", [{"_proj.weight": Kind.Q4_0}, {"_proj.weight": Kind.Q8_0}, MIXED, {}])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_file_is_the_model_that_its_blocks_mean(family: str, kinds, reference, tmp_path: Path) -> None:
    tied = {"tie_word_embeddings": True} if kinds is MIXED and family == "qwen3" else {}
    fields = FAMILIES[family](intermediate_size=128, **tied)
    floats = write_random_checkpoint(tmp_path / "floats", fields)
    file = write_gguf(floats, tmp_path / "model.gguf", tmp_path / "meant", kinds)
    outputs = greedy_answers(small_engine(file), PROMPTS, 8)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        reference.check_greedy(tmp_path / "meant", prompt, output)


def test_weights_of_few_bits_lie_side_by_side(reference, tmp_path: Path) -> None:
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head")
    stored = (
        Kind.IQ2_XXS,
        Kind.IQ2_XS,
        Kind.IQ3_S,
        Kind.IQ1_M,
        Kind.IQ1_S,
        Kind.TQ1_0,
        Kind.IQ3_XXS,
        Kind.IQ2_S,
        Kind.TQ2_0,
    )
    kinds = {f"{name}.weight": kind for name, kind in zip(names, stored, strict=True)}
    fields = llama_fields(hidden_size=256, intermediate_size=256, head_dim=64)
    floats = write_random_checkpoint(tmp_path / "floats", fields)
    file = write_gguf(floats, tmp_path / "model.gguf", tmp_path / "meant", kinds)
    for prompt, output in zip(PROMPTS, greedy_answers(small_engine(file), PROMPTS, 8), strict=True):
        reference.check_greedy(tmp_path / "meant", prompt, output)


def test_a_llama_is_what_transformers_reads_of_its_file(tmp_path: Path) -> None:
    """Whose rows of queries and keys are in another order."""
    from transformers import AutoModelForCausalLM

    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=128))
    file = write_gguf(floats, tmp_path / "model.gguf", tmp_path / "meant", {"_proj.weight": Kind.Q8_0})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32).eval()
    for prompt, output in zip(PROMPTS, greedy_answers(small_engine(resolve_model(str(file))), PROMPTS, 8), strict=True):
        with torch.inference_mode():
            logits = theirs(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        assert output == logits.argmax(-1).tolist()


def test_rotation_is_scaled_as_llama_3_says_by_factors(tmp_path: Path) -> None:
    from fairlead_common.models.rope_config import RopeConfig, RopeKind
    from fairlead_engine.model.rope import inverse_frequencies

    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    fields = llama_fields(
        rope_theta=500000.0, rope_scaling={**scaling, "original_max_position_embeddings": 8192}, intermediate_size=128
    )
    floats = write_random_checkpoint(tmp_path / "floats", fields)
    wanted = read_config(floats).rope
    assert wanted.kind is RopeKind.LLAMA3
    plain = inverse_frequencies(RopeConfig(theta=500000.0), 16)
    file = write_gguf(floats, tmp_path / "a.gguf", tmp_path / "meant", {})
    reader = GgufFile(file)
    factors = (plain / inverse_frequencies(wanted, 16)).numpy()
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama")
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", reader.metadata[f"llama.{key}"])
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_uint32("llama.attention.key_length", 16)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 500000.0)
    writer.add_tensor("token_embd.weight", np.zeros((256, 64), dtype=np.float32))
    writer.add_tensor("rope_freqs.weight", factors)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    assert read_config(tmp_path / "b.gguf").rope == wanted


TEXTS = ["Hello, world!  It's 12345 miles.", "naïve café\n\n  Ünïcode 東京 🚢", " leading, and trailing ", "x" * 40]


def metadata_of_pieces() -> dict:
    pieces = [
        "\u2581the", "\u2581", "the", "th", "e", "t", "h", "lo", "l", "o", "\u2581wor", "wor", "w", "r", "he", "ll",
        "ll", "or", "wo", "\u2581w",
    ]  # fmt: skip
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    scores = [0.0] * 259 + [-float(1 + 7 * index % 19) for index in range(len(tokens) - 259)]
    kinds = [2, 3, 3, *([6] * 256), *([1] * (len(tokens) - 259))]
    return {
        "model": "llama", "tokens": tokens, "scores": scores, "token_type": kinds, "bos_token_id": 1,
        "eos_token_id": 2, "unknown_token_id": 0,
    }  # fmt: skip


@pytest.mark.parametrize("metadata", [dinghy_vocabulary(), metadata_of_pieces()], ids=["gpt2", "llama"])
def test_tokenizers_are_those_that_transformers_builds(metadata: dict, tmp_path: Path) -> None:
    from transformers.integrations.gguf import convert_gguf_tokenizer

    template = "{% for m in messages %}<s>{{ m.content }}{% endfor %}"
    found = read_tokenizer(write_metadata(tmp_path / "model.gguf", metadata, chat_template=template))
    renamed = {"model": "tokenizer_type", "pre": "pre_tokenizer_type", "unknown_token_id": "unk_token_id"}
    theirs, _ = convert_gguf_tokenizer("llama", {renamed.get(name, name): value for name, value in metadata.items()})
    for text in TEXTS if metadata["model"] == "gpt2" else map(str.lstrip, TEXTS):  # they lose a space at the beginning
        ids = found.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, text
        assert found.decode(ids) == text
    assert found.special_tokens["eos_token"] == metadata["tokens"][metadata["eos_token_id"]]
    assert found.render_chat([{"role": "user", "content": "hi"}]) == "<s>hi"
    begins = found.encode("hello") != found.encode("hello", add_special_tokens=False)
    assert begins == (metadata["model"] == "llama")


@pytest.mark.parametrize("scores", [["x"] * 279, [0.0] * 278, 5, None])
def test_scores_that_are_none_are_refused_by_name(scores: object, tmp_path: Path) -> None:
    metadata = {name: value for name, value in (metadata_of_pieces() | {"scores": scores}).items() if value is not None}
    with pytest.raises(ModelLoadError, match=r"scores.*is no list with a number for each token"):
        read_tokenizer(write_metadata(tmp_path / "model.gguf", metadata))


def test_gemma_4_has_pieces_and_merges(tmp_path: Path) -> None:
    from transformers import GemmaTokenizer

    metadata = metadata_of_pieces()
    merges = ["t h", "th e", "\u2581 the", "w o", "wo r", "\u2581 wor", "l l", "h e", "l o", "\u2581 w"]
    kept = {name: value for name, value in metadata.items() if name != "scores"} | {"model": "gemma4", "merges": merges}
    found = read_tokenizer(write_metadata(tmp_path / "model.gguf", kept))
    vocabulary = {token: index for index, token in enumerate(metadata["tokens"])}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    theirs = GemmaTokenizer(vocab=vocabulary, merges=pairs, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    for text in [*TEXTS, "the world  the hello", " the lo"]:
        ids = found.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert found.decode(ids) == text
    assert found.encode("the")[0] == metadata["bos_token_id"]


MARKED = {"model": "gpt2", "tokens": ["x", "\u00cc", "\u00a3", "\u00cc\u00a3", "x\u00cc\u00a3"]}
MARKED["merges"] = ["\u00cc \u00a3", "x \u00cc\u00a3"]
"""Of x with a dot below."""


@pytest.mark.parametrize(
    ("metadata", "texts"), [(dinghy_vocabulary(), TEXTS), (MARKED, ["x\u0323x", "xx\u0323"])], ids=["dinghy", "marks"]
)
def test_marks_belong_to_words_of_qwen_3_5(metadata: dict, texts: list[str], tmp_path: Path) -> None:
    from transformers import Qwen3_5Tokenizer

    found = read_tokenizer(write_metadata(tmp_path / "model.gguf", metadata | {"pre": "qwen35"}))
    vocabulary = {token: index for index, token in enumerate(metadata["tokens"])}
    theirs = Qwen3_5Tokenizer(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in metadata["merges"]])
    for text in texts:
        assert found.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text


CUTS = {
    "gpt-2": ["Hello", "World", "123456", "'s"],
    "llama-bpe": ["Hello", "World", "123", "456", "'s"],
    "falcon-h1": ["Hello", "World", "123", "456", "'s"],
    "pixtral": ["Hello", "World", "123", "456", "'s"],
    "qwen2": ["Hello", "World", *"123456", "'s"],
    "gpt-4o": ["Hello", "World", "123", "456", "'", "s"],
    "tekken": ["Hello", "World", *"123456", "'", "s"],
    "command-r": ["Hello", "World", *"123456", "'s"],
    "deepseek-v3": ["Hello", "World", "123", "456", "'s"],
}


@pytest.mark.parametrize("pre", CUTS)
def test_texts_are_cut_as_the_file_says(pre: str, tmp_path: Path) -> None:
    """Where letters, capitals, digits and endings part, by the published patterns of each tokenizer."""
    vocabulary = dinghy_vocabulary() | {"pre": pre}
    cut = read_tokenizer(write_metadata(tmp_path / "model.gguf", vocabulary))
    by_pieces = [cut.encode(piece, add_special_tokens=False) for piece in CUTS[pre]]
    joined = "HelloWorld123456's" if pre in ("gpt-4o", "tekken") else "Hello"
    if joined == "Hello":
        by_pieces = [by_pieces[0], *by_pieces[2:]]
        joined = "Hello123456's"
    assert cut.encode(joined, add_special_tokens=False) == [token for piece in by_pieces for token in piece]
    for text in TEXTS:
        assert cut.decode(cut.encode(text, add_special_tokens=False)) == text


def test_a_file_answers_as_the_folder_that_it_was_made_of(tmp_path: Path) -> None:
    """The dinghy, whose text is cut otherwise than a file can say; its questions are cut alike."""
    folder = resolve_model("demo://dinghy")
    tokenizer = {f"ggml.{name}": value for name, value in dinghy_vocabulary().items()}
    tokenizer["chat_template"] = (folder / "chat_template.jinja").read_text()
    file = write_gguf(folder, tmp_path / "model.gguf", tmp_path / "meant", {".weight": Kind.BF16}, tokenizer=tokenizer)
    answers = []
    for model in (str(folder), str(file)):
        llm = LLM(model, dtype="float32", device="cpu", num_threads=1, kv_cache_memory=2**24)
        chat = [{"role": "user", "content": "Which month is before February?"}]
        answer = llm.chat(chat, SamplingParams(max_tokens=8))
        answers.append((answer.prompt_token_ids, answer.text, answer.finish_reason))
    assert answers[0] == answers[1] and "January" in answers[0][1]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    floats = write_random_checkpoint(folder / "floats", llama_fields(intermediate_size=128, vocab_size=64))
    return write_gguf(floats, folder / "model.gguf", folder / "meant", {"_proj.weight": Kind.Q4_0})


def test_tokenizers_are_read_without_torch(tmp_path: Path) -> None:
    """As the HTTP process reads them, which is the smaller for it."""
    write_metadata(tmp_path / "model.gguf", dinghy_vocabulary())
    program = (
        "import sys, pathlib\nfrom fairlead_engine.model.tokenizer_files import read_tokenizer\n"
        f"tokenizer = read_tokenizer(pathlib.Path({str(tmp_path / 'model.gguf')!r}))\n"
        "assert tokenizer.decode(tokenizer.encode('ahoy')) == 'ahoy'\n"
        "sys.exit(' '.join(sorted({'torch', 'numpy'} & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_not_read_is_refused_by_name(file: Path, tmp_path: Path) -> None:
    raw = file.read_bytes()
    damaged = tmp_path / "model.gguf"
    at = raw.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 16
    damaged.write_bytes(raw[:at] + (40).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(ModelLoadError, match=r"layers\.0\.self_attn\.q_proj\.weight is stored as NVFP4"):
        load_model(damaged, read_config(damaged), torch.float32, CPU)
    at = raw.index(b"llama", raw.index(b"general.architecture"))
    damaged.write_bytes(raw[:at] + b"mamba" + raw[at + 5 :])
    with pytest.raises(ModelLoadError, match=r"general\.architecture is 'mamba'"):
        read_config(damaged)
    (tmp_path / "other.gguf").write_bytes(raw)
    with pytest.raises(ModelLoadError, match=r"has 2 \.gguf files"):
        resolve_model(str(tmp_path))
    (tmp_path / "other.gguf").unlink()
    assert resolve_model(str(tmp_path)) == damaged


def test_chats_with_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain\n"}, {"name": "tool_use", "template": "{{ tools | length }}\n"}]
    file = write_metadata(tmp_path / "model.gguf", dinghy_vocabulary(), chat_template=named)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert [read_tokenizer(file).render_chat([], tools=each) for each in (None, tools)] == ["plain", "1"]


def test_parts_belong_together(tmp_path: Path) -> None:
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=128))
    write_gguf(floats, tmp_path / "model.gguf", tmp_path / "meant", {}, tensors_per_part=8)
    first, second, third = (tmp_path / f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3))
    assert GgufFile(first).paths == [first, second, third] and resolve_model(str(tmp_path)) == first
    with pytest.raises(ModelLoadError, match=r"is one of 3 parts: name the first of them, NAME-00001-of-00003\.gguf"):
        GgufFile(second)
    content = third.read_bytes()
    third.write_bytes(second.read_bytes())
    with pytest.raises(ModelLoadError, match=r"model-00003-of-00003\.gguf has a split\.no of 1"):
        GgufFile(first)
    third.write_bytes(content[:-1])
    with pytest.raises(ModelLoadError, match=r"model-00003-of-00003\.gguf ends within"):
        GgufFile(first)
    third.unlink()
    with pytest.raises(ModelLoadError, match=r"model-00003-of-00003\.gguf cannot be read"):
        GgufFile(first)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused(data, file: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    raw = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        header = raw.index(b"blk.1.ffn_up.weight") + 60
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, header))
            size = data.draw(st.sampled_from([1, 4, 8]))
            raw[at : at + size] = data.draw(st.binary(min_size=size, max_size=size))
    damaged = tmp_path_factory.mktemp("damaged") / "model.gguf"
    damaged.write_bytes(raw)
    for read in (
        lambda: load_model(damaged, read_config(damaged), torch.float32, CPU),
        lambda: read_gguf_tokenizer(GgufFile(damaged)),
    ):
        try:
            read()
        except ModelLoadError as error:
            assert error.message
