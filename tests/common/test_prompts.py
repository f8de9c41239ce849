"""From a request's fields to prompts: shapes, what is refused and by which name."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from tokenizers import models

import fairlead_engine.demo
from fairlead_common.openai.prompts import ChatPrompt, CompletionPrompt, Part, PromptError
from fairlead_common.tokens.tokenizing import PromptTokenizer

USER = {"role": "user", "content": "ahoy"}


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer.from_folder(Path(fairlead_engine.demo.__file__).parent / "dinghy")


def chat(**fields: Any) -> ChatPrompt:
    return msgspec.convert({"messages": [USER], **fields}, ChatPrompt)


def test_a_chat_is_one_text_as_the_template_renders_it(tokenizer: PromptTokenizer) -> None:
    assert chat().parts(tokenizer) == [Part("messages", "<|bos|><|user|>ahoy<|end|><|assistant|>")]
    assert chat(add_generation_prompt=False).parts(tokenizer)[0].content == "<|bos|><|user|>ahoy<|end|>"
    assert not chat().adds_special_tokens
    assert chat(add_special_tokens=True).adds_special_tokens


def test_tools_and_variables_reach_the_template() -> None:
    template = "{{ tools | tojson }} {{ mood }} {{ messages[0].content }}"
    tokenizer = PromptTokenizer(
        tokenizers.Tokenizer(models.WordLevel({"?": 0}, unk_token="?")).to_str(), chat_template=template
    )
    fields = chat(tools=[{"type": "function"}], chat_template_kwargs={"mood": "merry"})
    assert fields.parts(tokenizer)[0].content == '[{"type": "function"}] merry ahoy'


def tool(**properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}


@pytest.mark.parametrize("role", ["assistant", "user"])
@pytest.mark.parametrize(
    ("calls", "field"),
    [
        ("x", "messages[1].tool_calls"),
        ({"a": 1}, "messages[1].tool_calls"),
        (["x"], "messages[1].tool_calls[0]"),
        ([None], "messages[1].tool_calls[0]"),
        ([{"id": "1", "type": "function"}], "messages[1].tool_calls[0]"),
        ([{"function": None}], "messages[1].tool_calls[0]"),
        ([{"function": {"name": "f"}}, {"function": {"name": None}}], "messages[1].tool_calls[1]"),
        ([{"function": {"arguments": "{}"}}], "messages[1].tool_calls[0]"),
    ],
)
def test_earlier_calls_that_name_no_function_are_refused_by_their_place(
    tokenizer: PromptTokenizer, role: str, calls: Any, field: str
) -> None:
    messages = [{"role": "user", "content": "Ahoy"}, {"role": role, "content": "aye", "tool_calls": calls}]
    with pytest.raises(PromptError, match="must be") as refused:
        ChatPrompt(messages=messages).parts(tokenizer)
    assert refused.value.field == field


def test_the_bundled_models_template_takes_parameters_of_any_type(tokenizer: PromptTokenizer) -> None:
    for schema, shown in (
        ({"type": "string"}, "string"), ({"type": ["string", "null"]}, "string or null"), ({}, "any"), (True, "any"),
        ({"type": []}, "any"), ({"anyOf": [{"type": "string"}]}, "any"), ({"type": ["integer"]}, "integer"),
    ):  # fmt: skip
        [part] = chat(tools=[tool(v=schema, w={"type": "number"})]).parts(tokenizer)
        assert f"f(v: {shown}, w: number): " in part.content


def test_who_is_to_blame_for_a_template_that_fails_is_named() -> None:
    template = (
        "{{ messages[0].content + '' }}{% for tool in tools or [] %}{{ '' + tool.function.parameters.a }}{% endfor %}"
    )
    failing = PromptTokenizer(
        tokenizers.Tokenizer(models.WordLevel({"?": 0}, unk_token="?")).to_str(), chat_template=template
    )
    with pytest.raises(PromptError, match="without tools") as refused:
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"a": ["x"]}}}]).parts(failing)
    assert refused.value.field == "tools"
    with pytest.raises(PromptError) as refused:
        chat(messages=[{"role": "user", "content": ""}, {"role": "x"}], tools=[tool()]).parts(failing)
    assert refused.value.field.startswith("messages")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "pirate", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "function", "content": "no place for it in this template"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": ["a", {"type": ["text"]}]}]}, "messages[0].content[1]"),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}, {"type": "text"}]},
                ]
            },
            "messages[1].content[1].text",
        ),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"continue_final_message": True}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ],
)
def test_a_chat_that_cannot_be_rendered_is_refused_by_field(
    tokenizer: PromptTokenizer, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(PromptError) as refused:
        chat(**fields).parts(tokenizer)
    assert refused.value.field == field
    assert (
        field.partition("[")[0] in refused.value.message or "template" in refused.value.message or field == "messages"
    )


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("ahoy", [Part("prompt", "ahoy")]),
        ("", [Part("prompt", "")]),
        (["a", "b"], [Part("prompt[0]", "a"), Part("prompt[1]", "b")]),
        ([5, 6], [Part("prompt", [5, 6])]),
        ([[5], []], [Part("prompt[0]", [5]), Part("prompt[1]", [])]),
    ],
)
def test_a_completion_has_prompts_in_four_shapes(tokenizer: PromptTokenizer, prompt: Any, parts: list[Part]) -> None:
    fields = CompletionPrompt(prompt=prompt)
    assert fields.parts(tokenizer) == parts
    assert fields.places() == [part.place for part in parts]
    assert fields.adds_special_tokens
    assert not CompletionPrompt(prompt=prompt, add_special_tokens=False).adds_special_tokens


@pytest.mark.parametrize("prompt", [[], ["a", 5], [5, "a"], [[5], "a"], [[5], 5], [True], [1.0], [["a"]], [None], [{}]])
def test_any_other_shape_is_refused(tokenizer: PromptTokenizer, prompt: Any) -> None:
    with pytest.raises(PromptError, match="prompt") as refused:
        CompletionPrompt(prompt=prompt).parts(tokenizer)
    assert refused.value.field == "prompt"


def test_a_text_is_tokenised_and_ids_stay_as_they_are(tokenizer: PromptTokenizer) -> None:
    plain, framed = (Part("prompt", "ahoy").encoded(tokenizer, added).token_ids for added in (False, True))
    assert framed == [tokenizer.token_id("<|bos|>"), *plain]
    assert Part("prompt", [7, 8]).encoded(tokenizer, True).token_ids == [7, 8]


def test_a_text_without_tokens_is_refused_by_its_place() -> None:
    tokenizer = PromptTokenizer(tokenizers.Tokenizer(models.WordLevel({"ahoy": 0}, unk_token="?")).to_str())
    with pytest.raises(PromptError, match=r"prompt\[3\] cannot be tokenised") as refused:
        Part("prompt[3]", "land").encoded(tokenizer, False)
    assert refused.value.field == "prompt[3]"
