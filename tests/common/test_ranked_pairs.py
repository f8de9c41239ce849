"""Tokenizers without a tokenizer.json: Mistral's published ones against mistral-common, and Kimi's file against
tiktoken."""

import base64
import json
from pathlib import Path
from typing import Any

import mistral_common
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from fairlead_common.tokens.tokenizing import PromptTokenizer, TokenizerError

pytestmark = pytest.mark.xdist_group("ranked pairs")
"""In one process: reading Mistral's tokenizer by both takes four CPU seconds."""
PUBLISHED = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
KIMI_PATTERN = "|".join(
    [
        r"""[\p{Han}]+""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)  # fmt: skip
"""As the published tokenizer's program joins it."""
TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="[<"), st.sampled_from("aAbeE  \n'st12漢字カé́")
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def tekken() -> dict[str, Any]:
    return json.loads(PUBLISHED.read_bytes())


@pytest.fixture(scope="module")
def mistrals(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    folder = tmp_path_factory.mktemp("mistral")
    (folder / "tekken.json").symlink_to(PUBLISHED)
    return PromptTokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def kimis(
    tekken: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[PromptTokenizer, tiktoken.Encoding]:
    """Both readers of one file of 6,000 tokens."""
    tokens = [token["token_bytes"] for token in tekken["vocab"][:6000]]
    folder = tmp_path_factory.mktemp("kimi")
    (folder / "tiktoken.model").write_text("".join(f"{token} {rank}\n" for rank, token in enumerate(tokens)))
    added = {"6000": {"content": "[BOS]", "special": True}, "6010": {"content": "<|im_end|>", "special": True}}
    config = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ranks = {base64.b64decode(token): rank for rank, token in enumerate(tokens)}
    special = {"[BOS]": 6000, "<|im_end|>": 6010}
    return PromptTokenizer.from_folder(folder), tiktoken.Encoding(
        "kimi", pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=special
    )


@pytest.fixture(scope="module")
def theirs() -> Tekkenizer:
    return Tekkenizer.from_file(PUBLISHED)


@settings(max_examples=120, deadline=None)
@given(text=TEXTS)
def test_texts_are_cut_as_mistral_cuts_them(text: str, mistrals: PromptTokenizer, theirs: Tekkenizer) -> None:
    assert mistrals.encode(text) == theirs.encode(text, bos=True, eos=False)
    assert mistrals.decode(mistrals.encode(text)) == text


def test_special_tokens_of_mistral_have_their_ids(mistrals: PromptTokenizer, theirs: Tekkenizer) -> None:
    assert mistrals.vocab_size == theirs.n_words
    for text in ("<s>", "</s>", "[INST]", "[TOOL_CALLS]", "[/SYSTEM_PROMPT]", "<SPECIAL_999>"):
        assert mistrals.token_id(text) == theirs.get_special_token(text)
        assert mistrals.encode(text, add_special_tokens=False) == [theirs.get_special_token(text)]
    assert mistrals.special_tokens["bos_token"] == "<s>" and mistrals.special_tokens["eos_token"] == "</s>"


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_texts_are_cut_as_kimi_cuts_them(text: str, kimis: tuple[PromptTokenizer, tiktoken.Encoding]) -> None:
    ours, wanted = kimis
    assert ours.encode(text) == wanted.encode(text, disallowed_special=())
    assert ours.decode(ours.encode(text)) == text


def test_special_tokens_of_kimi_stand_behind_the_others(kimis: tuple[PromptTokenizer, tiktoken.Encoding]) -> None:
    ours, _ = kimis
    assert ours.encode("[BOS]<|im_end|><|reserved_token_6255|>") == [6000, 6010, 6255]
    assert ours.special_tokens == {"bos_token": "[BOS]"} and ours.vocab_size == 6256


SMALL = {
    "config": {"pattern": r"\s|\S+", "default_vocab_size": 260, "default_num_special_tokens": 4},
    "vocab": [{"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode()} for byte in range(256)],
}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"vocab": SMALL["vocab"][1:]}, "its 255 tokens have no consecutive ranks"),
        ({"vocab": None}, "Expected `array`, got `null`"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}, *SMALL["vocab"][1:]]}, "base64"),
        ({"vocab": [{"rank": 0, "token_bytes": ""}, *SMALL["vocab"][1:]]}, "a token is empty"),
        ({"vocab": [{"rank": 0, "token_bytes": "YWFh" * 1000}, *SMALL["vocab"][1:]]}, "a token has 3000 bytes"),
        ({"config": {**SMALL["config"], "pattern": "("}}, "end pattern with unmatched parenthesis"),
        ({"config": {**SMALL["config"], "default_vocab_size": 2**40}}, "4 special tokens of 1099511627776"),
        ({"special_tokens": [{"rank": rank, "token_str": "x"} for rank in (0, 1)]}, "two special tokens have one text"),
        ({"special_tokens": [{"rank": 0, "token_str": "a"}]}, "a special token has the text of another token, 'a'"),
    ],
)
def test_what_is_no_tokenizer_is_refused_with_the_reason(changed: dict[str, Any], problem: str, tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps({**SMALL, **changed}))
    with pytest.raises(TokenizerError, match=rf"tekken\.json cannot be read \(.*({problem})"):
        PromptTokenizer.from_folder(tmp_path)
    (tmp_path / "tekken.json").write_text(json.dumps(SMALL))
    assert PromptTokenizer.from_folder(tmp_path).encode("a b") == [1, 101, 36, 102]


def test_a_file_whose_pattern_is_not_known_says_so(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_text("IQ== 0\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "QWenTokenizer"}')
    with pytest.raises(TokenizerError, match=r"of TikTokenTokenizer alone, and tokenizer_class .* is 'QWenTokenizer'"):
        PromptTokenizer.from_folder(tmp_path)


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief, é."},
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {
                "id": "abcdefghi",
                "type": "function",
                "function": {"name": "weather", "arguments": {"city": "Oslo", "days": [1, 2]}},
            },
            {"id": "123456789", "type": "function", "function": {"name": "now", "arguments": {}}},
        ],
    },
    {"role": "tool", "tool_call_id": "abcdefghi", "content": '{"sky": "grå"}'},
    {"role": "tool", "tool_call_id": "123456789", "content": "noon"},
    {"role": "assistant", "content": "Grey."},
    {"role": "user", "content": [{"type": "text", "text": "And tomorrow?"}]},
]


@pytest.fixture(scope="module", params=["v7", "v11", "v13"])
def of_version(
    request: pytest.FixtureRequest, tekken: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A file as later checkpoints have it."""
    named = [*Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    named += [{"rank": rank, "token_str": f"<SPECIAL_{rank}>", "is_control": True} for rank in range(20, 32)]
    marks = ("[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")
    named += [{"rank": 32 + place, "token_str": mark, "is_control": True} for place, mark in enumerate(marks)]
    config = {**tekken["config"], "version": request.param, "default_vocab_size": 9000}
    content = {"config": config, "vocab": tekken["vocab"][:8000], "special_tokens": named}
    path = tmp_path_factory.mktemp(request.param) / "tekken.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.matrix(2)
@pytest.mark.parametrize("num_messages", [2, 5, 7])
@pytest.mark.parametrize("has_tools", [False, True])
def test_chats_are_written_as_mistral_writes_them(of_version: Path, num_messages: int, has_tools: bool) -> None:
    from mistral_common.protocol.instruct.request import InstructRequest
    from mistral_common.protocol.instruct.tool_calls import Function, Tool
    from mistral_common.tokens.tokenizers.instruct import (
        InstructTokenizerV7,
        InstructTokenizerV11,
        InstructTokenizerV13,
    )

    kinds = {"v7": InstructTokenizerV7, "v11": InstructTokenizerV11, "v13": InstructTokenizerV13}
    reader = Tekkenizer.from_file(of_version)
    tools = [Tool(function=Function(name="weather", description="Sky", parameters={"type": "object"}))]
    messages = CONVERSATION[:num_messages]
    written = [{**message, **_as_text(message)} for message in messages]
    request = InstructRequest(messages=written, available_tools=tools if has_tools else None)
    wanted = kinds[reader.version.value](reader).encode_instruct(request).tokens
    ours = PromptTokenizer.from_folder(of_version.parent)
    given = [tool.model_dump() for tool in tools] if has_tools else None
    assert ours.encode_chat(messages, tools=given) == wanted


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments as mistral-common takes them."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {"tool_calls": calls} if calls else {}


def test_thoughts_are_written_where_the_version_has_marks(of_version: Path) -> None:
    ours = PromptTokenizer.from_folder(of_version.parent)
    thought = {"role": "assistant", "content": "5", "reasoning_content": "2 and 3"}
    text = ours.render_chat([{"role": "user", "content": "2 + 3?"}, thought, {"role": "user", "content": "Sure?"}])
    assert ("[THINK]2 and 3[/THINK]5</s>" in text) == (of_version.parent.name.startswith("v13"))


def test_a_template_beside_the_file_wins(of_version: Path, tmp_path: Path) -> None:
    (tmp_path / "tekken.json").symlink_to(of_version)
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}own")
    assert PromptTokenizer.from_folder(tmp_path).render_chat([]) == "<s>own"
