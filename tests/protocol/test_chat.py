"""Chat templates: rendered as transformers renders them, in a sandbox, with errors fit for a client."""

import copy
import json
from typing import Any

import pytest

from fairlead_protocol.chat import ChatTemplate, ChatTemplateError

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = """\
{%- if tools %}
    {%- for tool in tools %}
{{ tool | tojson }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ('user', 'assistant') %}
        {{- raise_exception('unknown role ' + message.role) }}
    {%- endif %}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
    {%- else %}{{ bos_token }}{{ message.content }}{% endif %}
{%- endfor %}"""
MESSAGES = [{"role": "user", "content": "Ahoy <&> ö"}, {"role": "assistant", "content": "Aye"}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("template", [CHATML, TOOLS])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "töne", "parameters": {}}}]])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_rendering_agrees_with_transformers(template: str, tools: list | None, add_generation_prompt: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    reference, _ = render_jinja_template(
        [MESSAGES], tools=tools, chat_template=template, add_generation_prompt=add_generation_prompt, **SPECIAL
    )
    ours = ChatTemplate(template, SPECIAL).render(MESSAGES, tools=tools, add_generation_prompt=add_generation_prompt)
    assert ours == reference[0]


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


@pytest.mark.parametrize("arguments", ['{"place": ', "", "5", '"text"', "[1]", "[" * 100_000, "9" * 5000])
def test_tool_call_arguments_that_are_no_json_object_stay_as_they_are(arguments: str) -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments }}"
    assert ChatTemplate(template).render([call(arguments)]) == arguments


@pytest.mark.parametrize("calls", ["x", ["x"], [{}], [{"function": "x"}], [{"function": {"arguments": 5}}]])
def test_tool_calls_of_another_shape_are_left_to_the_template(calls: Any) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    assert json.loads(ChatTemplate("{{ messages[0].tool_calls | tojson }}").render([message])) == calls


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert "one two<|im_end|>" in ChatTemplate(CHATML).render([{"role": "user", "content": parts}])


def test_an_image_part_is_refused_by_its_type() -> None:
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(ChatTemplateError, match="image_url"):
        ChatTemplate(CHATML).render([message])


def test_a_template_refuses_with_its_own_words() -> None:
    with pytest.raises(ChatTemplateError, match="unknown role pirate"):
        ChatTemplate(TOOLS).render([{"role": "pirate", "content": "arr"}])


def test_a_template_cannot_reach_python() -> None:
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(ChatTemplateError):
        ChatTemplate(escape).render(MESSAGES)


def test_a_template_that_does_not_compile_is_refused_at_once() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{% if %}")
