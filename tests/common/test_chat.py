"""Chat templates: rendered as transformers renders them, in a sandbox, with errors fit for a client."""

import copy
import json
from typing import Any

import pytest

from fairlead_common.openai.chat import ChatTemplate, ChatTemplateError

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MESSAGES = [{"role": "user", "content": "Ahoy <&> ö"}, {"role": "assistant", "content": "Aye"}]


def test_indented_json_is_what_transformers_writes() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    template, tools = "{{ tools | tojson(indent=4) }}", [{"name": "töne <&>", "parameters": {"x": [1, {"y": []}]}}]
    reference, _ = render_jinja_template([MESSAGES], tools=tools, chat_template=template)
    assert ChatTemplate(template).render(MESSAGES, tools=tools) == reference[0]


CALLS = """\
{%- for message in messages %}
    {%- for call in message.tool_calls or [] %}
{{ call.function.name }}
        {%- for name, value in call.function.arguments | items %} {{ name }}={{ value | tojson }}{% endfor %}
    {%- endfor %}
{%- endfor %}"""
ARGUMENTS = {"place": 'Brest "ö"', "days": 2, "tides": [{"high": True}, None]}


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "tide", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_tool_call_arguments_in_json_are_objects_to_the_template(ensure_ascii: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    reference, _ = render_jinja_template([[call(ARGUMENTS)]], chat_template=CALLS, add_generation_prompt=False)
    message = call(json.dumps(ARGUMENTS, ensure_ascii=ensure_ascii))
    before = copy.deepcopy(message)
    assert ChatTemplate(CALLS).render([message], add_generation_prompt=False) == reference[0]
    assert message == before
    assert "place=" in reference[0]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"place": ', "", " ", "5", "null", '"text"', '""', "[]", "[1]", "[" * 100_000, "9" * 5000,
        None, 5, [], ["x"], True,
    ],
    ids=lambda arguments: repr(arguments)[:12],
)  # fmt: skip
def test_tool_call_arguments_that_are_no_object_are_an_empty_one_to_the_template(arguments: Any) -> None:
    message = call(arguments)
    before = copy.deepcopy(message)
    template = "{% for call in messages[0].tool_calls %}{{ call.function.arguments.items() | list }}{% endfor %}"
    assert ChatTemplate(template).render([message]) == "[]"
    assert message == before


def test_tool_call_arguments_that_are_missing_are_an_empty_object_to_the_template() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "tide"}}]}
    assert ChatTemplate(CALLS).render([message]) == ChatTemplate(CALLS).render([call({})])


def test_tool_call_arguments_that_are_encoded_twice_are_the_object_that_they_stand_for() -> None:
    twice = call(json.dumps(json.dumps(ARGUMENTS)))
    assert ChatTemplate(CALLS).render([twice]) == ChatTemplate(CALLS).render([call(ARGUMENTS)])


@pytest.mark.parametrize("calls", ["x", ["x"], [{}], [{"function": "x"}], [{"function": 5}]])
def test_tool_calls_of_another_shape_are_left_to_the_template(calls: Any) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    assert json.loads(ChatTemplate("{{ messages[0].tool_calls | tojson }}").render([message])) == calls


NULLS = (
    "{% for m in messages %}[{{ m.content }}{% if m.content is none %}null{% endif %}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}]{% endfor %}"
)


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": [{"function": {"name": "tide", "arguments": {}}}]},
        {"content": "aye", "tool_calls": None, "reasoning_content": None},
        {"content": None, "reasoning": "hm"},
        {"content": "aye", "thinking": "hm", "reasoning_content": "oh"},
    ],
)
def test_nulls_and_reasoning_are_to_a_template_what_transformers_makes_of_them(
    message: dict[str, Any], as_transformers: Any
) -> None:
    messages = [MESSAGES[0], {"role": "assistant", **message}]
    ours = ChatTemplate(NULLS).render(messages, add_generation_prompt=False)
    assert ours == as_transformers(messages, chat_template=NULLS)
    assert "None" not in ours
    assert "null" not in ours


@pytest.mark.parametrize(
    ("parts", "more"),
    [
        ([{"type": "thinking", "thinking": "hm", "signature": "s"}], {}),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}], {}),
        ([{"type": "reasoning", "reasoning": "h"}, {"type": "reasoning", "text": "m"}], {}),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}], {}),
        ([{"type": "thinking", "thinking": "oh"}, {"type": "redacted_thinking", "data": "x"}],
         {"reasoning_content": "hm", "thinking_blocks": [{"type": "thinking", "thinking": "oh"}]}),
    ],
)  # fmt: skip
def test_reasoning_among_an_answers_parts_is_told_as_reasoning(
    parts: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    said = {"type": "text", "text": "aye"}
    for content, shown in (([*parts, said], "aye"), (parts, "")):
        answer = {"role": "assistant", "content": content, **more}
        ours = ChatTemplate(NULLS).render([MESSAGES[0], answer], add_generation_prompt=False)
        plain = {"role": "assistant", "content": shown, "reasoning_content": "hm"}
        assert ours == ChatTemplate(NULLS).render([MESSAGES[0], plain], add_generation_prompt=False)
        assert "oh" not in ours and "<think>hm</think>" in ours


BLOCKS = [{"type": "thinking", "thinking": "h", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
          {"type": "thinking", "thinking": "m"}]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "thought"),
    [({}, "hm"), ({"reasoning_content": "oh"}, "oh"), ({"reasoning_content": None}, "hm"), ({"reasoning": "oh"}, "oh")],
)
def test_reasoning_in_blocks_beside_the_content_is_told_unless_a_field_has_some(more: Any, thought: str) -> None:
    answer = {"role": "assistant", "content": "aye", "thinking_blocks": BLOCKS, **more}
    assert ChatTemplate(NULLS).render([answer], add_generation_prompt=False) == f"[aye<think>{thought}</think>]"
    for nothing in ("x", [5], [BLOCKS[1]], None):
        answer = {"role": "assistant", "content": "aye", "thinking_blocks": nothing}
        assert ChatTemplate(NULLS).render([answer], add_generation_prompt=False) == "[aye]"


MAGISTRAL = """{{- bos_token }}{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if message['role'] == 'user' %}[INST]{{ message['content'] }}[/INST]
{%- elif message['content'] is string %}{{- message['content'] + eos_token }}
{%- else %}{%- for block in message['content'] %}
{%- if block['type'] == 'text' %}{{- block['text'] }}
{%- elif block['type'] == 'thinking' %}{{- '[THINK]' + block['thinking'] + '[/THINK]' }}
{%- else %}{{- raise_exception('Only text and thinking blocks are supported in assistant content') }}
{%- endif %}{%- endfor %}{{- eos_token }}{%- endif %}{%- endfor %}"""
"""As Magistral's and Ministral's, shortened: reasoning is a part of the content."""
LISTED = MAGISTRAL.replace("block['thinking'] +", "block['thinking'][0]['text'] +").replace(
    "== 'thinking'", "== 'thinking' and block['thinking'] is not string"
)
ENDS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("template", [MAGISTRAL, LISTED])
@pytest.mark.parametrize(
    "answer",
    [
        {"content": "aye", "reasoning_content": "hm"},
        {"content": [{"type": "text", "text": "aye"}], "reasoning": "hm"},
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "aye"}]},
        {"content": "aye", "thinking_blocks": BLOCKS},
    ],
)  # fmt: skip
def test_reasoning_reaches_templates_that_read_it_among_the_parts_of_the_content(
    template: str, answer: dict[str, Any], as_transformers: Any
) -> None:
    chat = [MESSAGES[0], {"role": "assistant", **answer}, MESSAGES[0]]
    ours = ChatTemplate(template, ENDS).render(chat)
    asked = f"[INST]{MESSAGES[0]['content']}[/INST]"
    assert ours == f"<s>{asked}[THINK]hm[/THINK]aye</s>{asked}"
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "aye"}]
    if template is MAGISTRAL:
        chat[1] = {"role": "assistant", "content": parts}
        assert ours == as_transformers(chat, chat_template=MAGISTRAL, **ENDS)
    if "reasoning_content" in answer:
        going_on = ChatTemplate(template, ENDS).render([MESSAGES[0], chat[1] | answer], continue_final_message=True)
        assert going_on == f"<s>{asked}[THINK]hm[/THINK]aye"
    silent = [MESSAGES[0], {"role": "assistant", "content": "aye"}]
    assert ChatTemplate(template, ENDS).render(silent) == f"<s>{asked}aye</s>"


@pytest.mark.parametrize(
    "template",
    [NULLS, "{{ messages[-1].content }}", "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"],
)
def test_templates_that_read_reasoning_elsewhere_or_nowhere_get_plain_content(template: str) -> None:
    chat = [MESSAGES[0], {"role": "assistant", "content": "aye", "reasoning_content": "hm"}]
    ours = ChatTemplate(template).render(chat, add_generation_prompt=False)
    assert "aye" in ours and "type" not in ours


@pytest.mark.parametrize("part", [{"type": "redacted_thinking", "data": "x"}, {"type": "thinking", "thinking": 5}])
def test_reasoning_without_a_text_is_left_out(part: dict[str, Any]) -> None:
    answer = {"role": "assistant", "content": [part, {"type": "text", "text": "aye"}]}
    assert ChatTemplate(NULLS).render([answer], add_generation_prompt=False) == "[aye]"
    with pytest.raises(ChatTemplateError, match="thinking"):
        ChatTemplate(NULLS).render([{"role": "user", "content": [part]}])


TAKEN_FOR_GRANTED = [
    "{% for m in messages %}{{ m.role + ': ' + m['content'] }}\n{% endfor %}",
    "{% for m in messages %}{% if '</think>' in m.content %}!{% endif %}{{ m.content | tojson }}{% endfor %}",
    "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}",
    "{% for m in messages %}{% if 'tool_calls' in m %}{% set c = m.tool_calls[0] %}{{ c.id + c.type }}"
    "{{ c.function.name + '' }}{% endif %}{% if m.role == 'tool' %}{{ m.tool_call_id + m.content }}{% endif %}"
    "{% endfor %}",
    "{% for t in tools %}{{ t.type + t.function.name + t.function.description }}"
    "{{ t.function.parameters.properties.items() | list }}{% endfor %}{{ messages[0].content }}",
]
"""What public templates do, among them those of Qwen3, QwQ, gpt-oss, OLMo 2, Devstral and the distilled DeepSeek-R1."""
LEFT_OUT: list[list[dict[str, Any]]] = [
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "tide"}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "tide", "arguments": None}}]}, {"role": "tool"}],
    [{"role": "assistant", "tool_calls": [{"id": None, "type": None, "function": {"name": "tide"}}]}],
    [{"role": "assistant", "content": "aye", "tool_calls": []}],
    [{"role": "assistant", "content": "aye", "reasoning": {"text": "hm"}, "thinking": ["hm"]}],
    [{"role": "assistant"}],
]


@pytest.mark.parametrize("template", TAKEN_FOR_GRANTED)
@pytest.mark.parametrize("messages", LEFT_OUT)
@pytest.mark.parametrize("function", [{}, {"description": None, "parameters": None}, {"parameters": {}}])
def test_what_a_request_may_leave_out_is_there_for_templates_that_take_it_for_granted(
    template: str, messages: list[dict[str, Any]], function: dict[str, Any]
) -> None:
    before = copy.deepcopy(messages)
    tool = {"type": "function", "function": {"name": "tide", **function}}
    for tools in (None, [tool]):
        assert "None" not in ChatTemplate(template).render([MESSAGES[0], *messages], tools=tools)
    assert messages == before


def test_what_is_left_out_stays_so_for_templates_that_tell_by_it() -> None:
    template = "{% for m in messages %}{{ 'content' in m }}{% endfor %}{{ tools is none }}"
    assert ChatTemplate(template).render([{"role": "assistant", "content": None}]) == "FalseTrue"


def test_an_answer_that_was_refused_is_what_it_said() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    parts = [{"type": "refusal", "refusal": "No."}, {"type": "output_text", "text": " Sorry."}]
    refused = {"role": "assistant", "content": None, "refusal": "No. Sorry."}
    for message in (refused, {"role": "assistant", "content": parts}):
        assert ChatTemplate(template).render([message]) == "No. Sorry."


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ messages[0].mood + 1 }}", "it needs the field 'mood'"),
        ("{{ messages[7].role + 1 }}", "it needs the field '7'"),
        ("{{ harbour + 1 }}", "it needs the variable 'harbour', which chat_template_kwargs can set"),
        ("{{ 1 + messages[0].content }}", "something in them is of another kind than it expects"),
        ("{{ messages | tojson + 5 }}{{ [messages, messages | length] | sum }}", "another kind"),
        ("{{ 1 / 0 }}", "another kind"),
        ("{{ messages[0].content.foo() }}", "it needs the field 'foo'"),
    ],
)
def test_what_a_template_failed_at_is_told_in_no_words_of_python(template: str, told: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(template).render(MESSAGES)
    assert told in str(caught.value)
    assert not any(word in str(caught.value) for word in ("object", "str", "NoneType", "operand", "undefined"))


TRIMMING = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"


@pytest.mark.parametrize("template", [CHATML, TRIMMING])
@pytest.mark.parametrize("final", ["The answer is", " The answer is ", "", "a\n\n", "<|im_end|>", "Ahoy <&> ö"])
def test_a_continued_final_message_ends_as_with_transformers(template: str, final: str, as_transformers: Any) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": final}]
    before = copy.deepcopy(messages)
    ours = ChatTemplate(template).render(messages, continue_final_message=True)
    assert ours == as_transformers(messages, chat_template=template, continue_final_message=True)
    assert ours.rstrip().endswith(final.strip())
    assert messages == before


@pytest.mark.parametrize("final", [{"content": None}, {"content": "cut </think> off"}, {}])
def test_a_final_message_that_cannot_be_continued_is_refused(final: dict[str, Any]) -> None:
    template = "{% for m in messages %}{{ (m.content or '').split('</think>')[-1] }}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="continue_final_message"):
        ChatTemplate(template).render([{"role": "assistant", **final}], continue_final_message=True)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert "one two<|im_end|>" in ChatTemplate(CHATML).render([{"role": "user", "content": parts}])


@pytest.mark.parametrize("texts", [(), ("the tide", "at noon")])
def test_a_model_without_eyes_is_told_of_images_that_tools_gave(texts: Any) -> None:
    """Agents such as Claude Code and Codex read an image by a tool, and send the result in each later request."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    content = [*({"type": "text", "text": each} for each in texts), image]
    asked = [{"role": "user", "content": "look"}, {"role": "tool", "tool_call_id": "c", "content": content}]
    told = "".join((*texts, "(an image, which this model cannot see)"))
    assert ChatTemplate(CHATML).render(asked) == ChatTemplate(CHATML).render([asked[0], {**asked[1], "content": told}])
    assert content[-1] is image, "the request stays as it came"


def test_an_image_part_is_refused_by_its_type() -> None:
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(ChatTemplateError, match="image_url"):
        ChatTemplate(CHATML).render([message])
