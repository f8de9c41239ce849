"""Chat templates for Mistral's checkpoints with `tekken.json` and without a template. Chats are written as
mistral-common writes chats for the tokenizer's version in the file."""

_FIRST_WITH_SYSTEM, _FIRST_WITH_ARGUMENTS, _FIRST_WITHOUT_IDS = 7, 11, 13
"""Versions from which on system messages have marks, calls are a name and arguments, and calls have no ids."""
_LAST = 13
"""The last version without settings of the model in a chat."""
_TEMPLATE = """\
{{- bos_token }}
{%- macro text(content) -%}
{%- if content is string %}{{ content }}{% else %}{% for part in content or [] %}{{ part.text }}{% endfor %}{% endif %}
{%- endmacro %}
{%- set place = namespace(of_tools=-1) %}
{%- for message in messages %}
{%- if message.role == "user" @FIRST@ %}{% set place.of_tools = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role in ("system", "developer") %}
{{- "[SYSTEM_PROMPT]" + text(message.content) + "[/SYSTEM_PROMPT]" }}
{%- elif message.role == "user" %}
{%- if tools and loop.index0 == place.of_tools %}
{{- "[AVAILABLE_TOOLS]" + tools | tojson + "[/AVAILABLE_TOOLS]" }}
{%- endif %}
{{- "[INST]" + text(message.content) + "[/INST]" }}
{%- elif message.role == "tool" %}
{{- "[TOOL_RESULTS]" + @RESULT@text(message.content) + "[/TOOL_RESULTS]" }}
{%- else %}
@THOUGHT@{%- if message.content %}{{ text(message.content) }}{% endif %}
{%- if message.tool_calls %}
@CALLS@
{%- endif %}
{{- eos_token }}
{%- endif %}
{%- endfor %}"""
_THOUGHT = """\
{%- if message.reasoning_content %}{{ "[THINK]" + message.reasoning_content + "[/THINK]" }}{% endif %}
"""
_OBJECTS = """\
{{- "[TOOL_CALLS][" }}
{%- for call in message.tool_calls %}
{%- set made = {"name": call.function.name, "arguments": call.function.arguments, "id": call.id} %}
{{- made | tojson + ("" if loop.last else ", ") }}
{%- endfor %}
{{- "]" }}"""
_NAMED = """\
{%- for call in message.tool_calls %}
{{- "[TOOL_CALLS]" + call.function.name + @ID@"[ARGS]" + call.function.arguments | tojson }}
{%- endfor %}"""


def mistral_template(version: str) -> str | None:
    """`version`: as in `config.version`, such as `v13`; None = chats of this version are not known."""
    number = int(version[1:]) if version[:1] == "v" and version[1:].isdecimal() else 0
    if not _FIRST_WITH_SYSTEM <= number <= _LAST:
        return None
    has_ids = number < _FIRST_WITHOUT_IDS
    parts = {
        "@FIRST@": "" if has_ids else "and place.of_tools < 0",
        "@RESULT@": 'message.tool_call_id + "[TOOL_CONTENT]" + ' if has_ids else "",
        "@THOUGHT@": "" if has_ids else _THOUGHT,
        "@CALLS@": _OBJECTS if number < _FIRST_WITH_ARGUMENTS else _NAMED,
        "@ID@": '"[CALL_ID]" + call.id + ' if has_ids else "",
    }
    template = _TEMPLATE
    for mark, part in parts.items():
        template = template.replace(mark, part)
    return template
