"""Which format a model writes its calls in, told by how its chat template writes an earlier one.

A call that is known is rendered, and read back with each format. Templates come with models and are not trusted: a
server does this in a process that can be ended (`prompt_program.py`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead_engine.server.answers.answer_text import AnswerSource
from fairlead_engine.server.answers.parts import CallArguments, CallBegun, CallCut, CallEnded
from fairlead_engine.server.answers.tool_formats import TOOL_FORMATS, ToolFormat
from fairlead_protocol.chat import ChatTemplate, ChatTemplateError

_MOST_CHARACTERS = 10_000
"""That are looked at behind the question: a call takes a few hundred."""
_QUESTION = "How is the tide at 59.9 N 10.7 E?"
_NAME = "look_up_tide"
_ARGUMENTS: Mapping[str, Any] = {"place": "Oslo", "days": 2, "heights": [0.5, "low"]}
_PARAMETERS = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "description": "A place"},
        "days": {"type": "integer", "description": "A number of days"},
        "heights": {"type": "array", "items": {}, "description": "Heights"},
    },
    "required": ["place"],
}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "The tide at a place", "parameters": _PARAMETERS},
}
_CALL = {"id": "a1B2c3D4e", "type": "function", "function": {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)}}
_RESULT = {"role": "tool", "tool_call_id": "a1B2c3D4e", "name": _NAME, "content": "high"}
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def written_format(template: str, special_tokens: Mapping[str, str] | None = None) -> tuple[str | None, bool]:
    """The name of the format that reads the call which the template writes, and whether it writes one at all."""
    does_write = False
    for answer in _answers(template, {**dict.fromkeys(_TOKENS, ""), **(special_tokens or {})}):
        does_write = True
        found = next((name for name, kind in TOOL_FORMATS.items() if _reads(kind(template), answer)), None)
        if found is not None:
            return found, True
    return None, does_write


def _answers(template: str, special_tokens: Mapping[str, str]) -> Iterator[str]:
    """What the template writes of an answer that is a call, in the ways in which templates want to be asked; where its
    beginning can be told, from there on, and from the question on."""
    try:
        chat = ChatTemplate(template, special_tokens)
    except ChatTemplateError:
        return
    question: Mapping[str, Any] = {"role": "user", "content": _QUESTION}
    before = _behind_question(chat, [question], add_generation_prompt=True)
    for content in ({}, {"content": ""}):
        call: Mapping[str, Any] = {"role": "assistant", **content, "tool_calls": [_CALL]}
        for messages in ([question, call], [question, call, _RESULT]):
            text = _behind_question(chat, messages, add_generation_prompt=False)
            if text is None or _NAME not in text:
                continue
            if before and text.startswith(before):
                yield text[len(before) :]
            yield text


def _behind_question(
    chat: ChatTemplate, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
) -> str | None:
    try:
        text = chat.render(messages, tools=[_TOOL], add_generation_prompt=add_generation_prompt)
    except ChatTemplateError:
        return None
    place = text.rfind(_QUESTION)
    return None if place < 0 else text[place + len(_QUESTION) :][:_MOST_CHARACTERS]


def _reads(tools: ToolFormat, answer: str) -> bool:
    """Whether the format finds the one call that was rendered, behind its marker, and nothing else of that kind."""
    if tools.shape.begin not in answer:
        return False
    source = AnswerSource()
    source.add(answer)
    source.is_over = True
    names, arguments, num_whole = list[str](), "", 0
    for part in tools.read(source, {_NAME: _PARAMETERS}):
        match part:
            case CallBegun():
                names.append(part.name)
            case CallArguments():
                arguments += part.text
            case CallEnded():
                num_whole += 1
            case CallCut():
                return False
    return names == [_NAME] and num_whole == 1 and _stand_for(arguments, _ARGUMENTS)


def _stand_for(text: str, value: Any) -> bool:
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
