"""Which format is told by a chat template: by the call that it writes, whatever markers it mentions."""

import time
from pathlib import Path

import pytest

from fairlead_engine.api.answers.answer_formats import TOOL_FORMATS, choose_formats, written_format
from fairlead_engine.api.answers.object_formats import Forced, Instructed
from fairlead_engine_testing.written_templates import BEGIN, END, WRITES, F

FILES = Path(__file__).parents[2] / "common" / "templates"
OTHERS = [
    F + "<tool_call>{{ f.name }}({{ f.arguments | tojson }})</tool_call>",
    F + '<odd_calls>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]</odd_calls>',
    F + "<odd:tool_call><function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>{{ v }}"
    "</parameter>{% endfor %}</function></odd:tool_call>",
    F + '<tool_call>{"name": "{{ f.name }}"}</tool_call>',
]


def test_every_format_has_a_template() -> None:
    assert set(WRITES) == set(TOOL_FORMATS)


@pytest.mark.matrix
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(
    "asks",
    [
        "{0}",
        "{{% if tools %}}Write {1}{{% endif %}}{0}",
        "{{% if messages[-1].tool_calls %}}{{{{ raise_exception('a result must follow') }}}}{{% endif %}}{0}",
        "{{{{ messages[0].content + bos_token + (messages[1].content if messages[1] else '') }}}}{0}",
    ],
)
def test_the_call_that_a_template_writes_tells_the_format(name: str, asks: str) -> None:
    others = "<tool_call> <function=f> <arg_key> <invoke name= [TOOL_CALLS] <|python_tag|> <｜tool▁calls▁begin｜>"
    template = asks.format(BEGIN + WRITES[name] + END, others)
    assert written_format(template, {"bos_token": "<s>"}) == (name, True)
    assert type(choose_formats(template, "auto", "auto").tools) is TOOL_FORMATS[name]


@pytest.mark.parametrize("write", OTHERS)
def test_a_call_that_no_format_reads_has_none_whatever_markers_it_has(write: str) -> None:
    template = BEGIN + write + END
    assert written_format(template) == (None, True)
    assert isinstance(choose_formats(template, "auto", "auto").tools, Forced)
    assert choose_formats(template, "hermes", "auto").tools is not None


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("deepseek_r1", "deepseek_v3"),
        ("gemma3", None),
        ("gpt_oss", "harmony"),
        ("hermes", "hermes"),
        ("llama31", "llama3_json"),
        ("llama32", "llama3_json"),
        ("mistral", "mistral"),
        ("olmo2", None),
        ("phi4", None),
        ("qwen25", "hermes"),
        ("qwen3", "hermes"),
    ],
)
def test_the_templates_of_families_tell_their_formats(file: str, name: str | None) -> None:
    tools = choose_formats((FILES / f"{file}.jinja").read_text(), "auto", "auto").tools
    others = {"gemma3": Instructed, "olmo2": Instructed, "phi4": Forced}
    assert type(tools) is (TOOL_FORMATS[name] if name else others[file])


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(9) %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ messages[0].content }}{% for a in range(99999) %}look_up_tide{'name': {% endfor %}",
        "{{ messages[0].content }}" + "<tool_call>{'name': 'look_up_tide', 'arguments': " + "[" * 5000,
        "{{ messages[0].content }}look_up_tide" + '<tool_call>{"name": "look_up_tide", ' * 300,
        "{{ 1 / 0 }}",
        "{% if",
        "{{ ''.__class__ }}",
        "{{ raise_exception(messages) }}",
    ],
)
def test_a_template_that_means_harm_costs_a_few_seconds_at_most(template: str) -> None:
    began = time.thread_time()
    assert written_format(template)[0] is None
    assert time.thread_time() - began < 10
