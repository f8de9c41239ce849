"""Tools for templates that know none: what the message says, and what becomes of calls and results in a history."""

import json
from typing import Any

import pytest

from fairlead_common.openai.chat import ChatTemplate, ChatTemplateError
from fairlead_common.openai.instructed import as_instructed, instruction
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine_testing.byte_level import byte_level

TURNS = (
    "{% for m in messages %}{% if m.role not in ROLES %}{{ raise_exception('no ' + m.role) }}{% endif %}"
    "{% if loop.index0 and m.role == messages[loop.index0 - 1].role %}{{ raise_exception('turns') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
WITH_SYSTEM = TURNS.replace("ROLES", "('system', 'developer', 'user', 'assistant')")
WITHOUT = TURNS.replace("ROLES", "('user', 'assistant')")
DEAF = "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TOOL: Any = {
    "type": "function",
    "function": {"name": "tide", "description": "Größe — 潮", "parameters": {"type": "object"}},
}
ASKED: Any = {"role": "user", "content": "How high?"}
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"port": "Oslo", "days": 2}'}}
CALLED: Any = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}
RESULTS: Any = [{"role": "tool", "tool_call_id": "c1", "content": each} for each in ("high", "low")]
WRITTEN = '<tool_call>\n{"name": "tide", "arguments": {"port": "Oslo", "days": 2}}\n</tool_call>'
ANSWERED = "<tool_response>\nhigh\n</tool_response>\n\n<tool_response>\nlow\n</tool_response>"


def rendered(source: str, messages: Any, tools: Any = (TOOL,), **options: Any) -> str:
    return ChatTemplate(source, instructs_tools=True).render(messages, tools=tools, **options)


def test_a_system_message_tells_of_tools() -> None:
    told = instruction([TOOL])
    assert json.dumps(TOOL, ensure_ascii=False) in told and "<tool_call>" in told
    assert rendered(WITH_SYSTEM, [ASKED]) == f"[system]{told}[user]How high?[assistant]"
    for role in ("system", "developer"):
        guided = [{"role": role, "content": "Be brief."}, ASKED]
        assert rendered(WITH_SYSTEM, guided) == f"[{role}]Be brief.\n\n{told}[user]How high?[assistant]"
    parts = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, ASKED]
    assert rendered(WITH_SYSTEM, parts) == rendered(WITH_SYSTEM, [{"role": "system", "content": "Be brief."}, ASKED])


@pytest.mark.parametrize("source", [WITHOUT, DEAF])
def test_the_user_tells_where_no_system_message_is_shown(source: str) -> None:
    text = rendered(source, [ASKED, {"role": "assistant", "content": "Which?"}, {"role": "user", "content": "All."}])
    assert text.startswith(f"[user]{instruction([TOOL])}\n\nHow high?[assistant]Which?[user]All.")


@pytest.mark.parametrize("source", [WITH_SYSTEM, WITHOUT])
def test_calls_and_results_are_text_and_turns_alternate(source: str) -> None:
    thanks = {"role": "user", "content": "Thanks."}
    for behind, added in (([], ""), ([thanks], "\n\nThanks.")):
        text = rendered(source, [ASKED, CALLED, *RESULTS, *behind])
        assert f"How high?[assistant]{WRITTEN}\n{WRITTEN}[user]{ANSWERED}{added}[assistant]" in text
        history = rendered(source, [ASKED, CALLED, *RESULTS, *behind], None)
        assert history == f"[user]How high?[assistant]{WRITTEN}\n{WRITTEN}[user]{ANSWERED}{added}[assistant]"


def test_what_is_said_beside_calls_is_kept() -> None:
    text = rendered(WITHOUT, [ASKED, {**CALLED, "content": "I look.", "tool_calls": [CALL]}, RESULTS[0]])
    assert f"[assistant]I look.\n{WRITTEN}[user]<tool_response>\nhigh" in text


def test_an_answer_is_continued_behind_its_calls() -> None:
    begun = [ASKED, {"role": "assistant", "content": "I lo"}]
    assert rendered(WITHOUT, begun, continue_final_message=True).endswith("[assistant]I lo")


def test_chats_without_tools_stay_as_they_are() -> None:
    chat = [{"role": "system", "content": "Be brief."}, ASKED, {"role": "assistant", "content": "Very."}]
    plain = ChatTemplate(WITH_SYSTEM).render(chat)
    assert rendered(WITH_SYSTEM, chat, None) == plain == rendered(WITH_SYSTEM, chat, [])
    with pytest.raises(ChatTemplateError, match="no system"):
        rendered(WITHOUT, chat)


def test_images_stay_parts() -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image"}]
    [asked] = as_instructed([{"role": "user", "content": parts}], [TOOL], in_system=False)
    assert asked["content"] == [{"type": "text", "text": instruction([TOOL])}, {"type": "text", "text": "\n\n"}, *parts]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": None}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 9000}}]}],
        [{"role": "assistant", "tool_calls": ["odd", 7, {}, {"function": "odd"}]}],
        [{"role": "tool", "content": ""}],
        [{"role": "function", "name": "f", "content": "x"}],
        [{"role": "assistant", "content": "", "tool_calls": []}],
    ],
)
def test_odd_histories_are_rendered(messages: Any) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    assert instruction([TOOL]) in ChatTemplate(template, instructs_tools=True).render(messages, tools=[TOOL])


def test_tools_too_deep_for_text_are_refused_in_words() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ChatTemplateError, match="too deep"):
        rendered(WITHOUT, [ASKED], [{"type": "function", "function": {"name": "f", "parameters": deep}}])


def test_a_tokenizer_that_instructs_has_a_digest_of_its_own() -> None:
    backend = byte_level(["</s>"]).to_str()
    plain = PromptTokenizer(backend, chat_template=WITHOUT)
    told = plain.instructing()
    assert told.digest == PromptTokenizer(backend, chat_template=WITHOUT, instructs_tools=True).digest != plain.digest
    assert instruction([TOOL]) in told.render_chat([ASKED], tools=[TOOL])
    assert instruction([TOOL]) not in plain.render_chat([ASKED], tools=[TOOL])
