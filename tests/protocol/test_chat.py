"""Chat templates: rendered as transformers renders them, in a sandbox, with errors fit for a client."""

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
