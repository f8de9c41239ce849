"""Chat templates that write calls, one for every format."""

from collections.abc import Mapping
from typing import Any

from fairlead_common.openai.chat import ChatTemplate

BEGIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
END = "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
F = "{% set f = call.function %}"
CODE = "{% for k, v in f.arguments | items %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}"
GEMMA = """{%- macro written(v) -%}{%- if v is string -%}<|"|>{{ v }}<|"|>{%- elif v is mapping -%}{{ '{' }}
{%- for k, each in v | items -%}{{ k }}:{{ written(each) }}{{ ',' if not loop.last }}{%- endfor -%}{{ '}' }}
{%- elif v is iterable -%}[{%- for each in v -%}{{ written(each) }}{{ ',' if not loop.last }}{%- endfor -%}]
{%- else -%}{{ v | tojson }}{%- endif -%}{%- endmacro -%}"""
WRITES: dict[str, str] = {
    "hermes": F + '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>',
    "llama3_json": F + '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
    "mistral": F + '[TOOL_CALLS] [{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]',
    "deepseek_v3": F + "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "harmony": F + "<|channel|>commentary to=functions.{{ f.name }}<|message|>{{ f.arguments | tojson }}<|call|>",
    "glm45": F + "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>",
    "qwen3_coder": F
    + "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
    "minimax_m2": F + '<minimax:tool_call>\n<invoke name="{{ f.name }}">\n{% for k, v in f.arguments | items %}'
    '<parameter name="{{ k }}">{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n'
    "</minimax:tool_call>",
    "seed_oss": F
    + "<seed:tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>"
    "{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>",
    "deepseek_v32": F
    + '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{{ f.name }}">\n{% for k, v in f.arguments | items %}'
    "<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">"
    "{{ v if v is string else v | tojson }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "hy_v3": F + "<tool_calls:opensource>\n<tool_call:opensource>{{ f.name }}<tool_sep:opensource>\n"
    "{% for k, v in f.arguments | items %}<arg_key:opensource>{{ k }}</arg_key:opensource>\n<arg_value:opensource>"
    "{{ v if v is string else v | tojson }}</arg_value:opensource>\n{% endfor %}</tool_call:opensource>\n"
    "</tool_calls:opensource>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>"
    "{{ call.function.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>",
    "solar_open": F + "<|tool_calls|><|tool_call:begin|>{{ call.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>"
    "{{ f.arguments | tojson }}<|tool_call:end|><|calls|>",
    "apertus": F + '<|tools_prefix|>[{"{{ f.name }}": {{ f.arguments | tojson }}}]<|tools_suffix|>',
    "functionary": F + "<function={{ f.name }}>{{ f.arguments | tojson }}</function>",
    "hunyuan_a13b": F + '<tool_calls>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]</tool_calls>',
    "nemotron": F + '<TOOLCALL>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]</TOOLCALL>',
    "phi4_mini_json": F + 'functools[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]',
    "granite": F + '<|tool_call|>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]',
    "gigachat3": F + '<|function_call|>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}',
    "cohere_command3": F + '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "{{ f.name }}", "parameters": '
    "{{ f.arguments | tojson }}}\n]<|END_ACTION|>",
    "lfm2": F + "<|tool_call_start|>[{{ f.name }}(" + CODE + ")]<|tool_call_end|>",
    "olmo3": F + "<function_calls>{{ f.name }}(" + CODE + ")</function_calls>",
    "gemma4": GEMMA + F + "<|tool_call>call:{{ f.name }}{% raw %}{{% endraw %}{% for k, v in f.arguments | items %}"
    "{{ k }}:{{ written(v) }}{{ ',' if not loop.last }}{% endfor %}{% raw %}}{% endraw %}<tool_call|>",
    "pythonic": F + "[{{ f.name }}(" + CODE + ")]",
}
"""Format → how a template writes a call."""


def written_by(template: ChatTemplate, name: str, arguments: Mapping[str, Any]) -> str:
    """A call as one of `WRITES` writes it."""
    call = {"id": f"functions.{name}:0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return template.render([{"role": "assistant", "tool_calls": [call]}], add_generation_prompt=False)
