"""Choice of the formats of a model's calls and reasoning: by setting, or by the chat template.

A template renders a known call, and each format tries to read the call back. Templates come with models and are not
trusted: a server runs the choice in a process with limits (`prompt_program.py`).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fairlead_common.openai.chat import ChatTemplate, ChatTemplateError
from fairlead_common.openai.instructed import instruction
from fairlead_engine.api.answers.answer_text import AnswerSource, CallArguments, CallBegun, CallCut, CallEnded
from fairlead_engine.api.answers.code_formats import Gemma4, Lfm2, Olmo3, Pythonic
from fairlead_engine.api.answers.named_formats import Apertus, DeepSeek, Functionary, Harmony, KimiK2, Mistral, Solar
from fairlead_engine.api.answers.object_formats import (
    CohereCommand,
    Forced,
    GigaChat,
    Granite,
    Hermes,
    Hunyuan,
    Instructed,
    Llama3,
    Nemotron,
    Phi4,
)
from fairlead_engine.api.answers.reasoning_formats import REASONING_FORMATS, ReasoningFormat
from fairlead_engine.api.answers.tagged_formats import DeepSeekTags, Glm, Hy3, MiniMax, Qwen3Coder, SeedOss
from fairlead_engine.api.answers.tool_format import ToolFormat

_MOST_CHARACTERS = 10_000
"""Bound on the examined text behind the question: a call takes a few hundred characters."""
_QUESTION = "How is the tide at 59.9 N 10.7 E?"
_NAME = "look_up_tide"
_RESULT = "It is high at half past four."
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
_IDS = ("a1B2c3D4e", f"functions.{_NAME}:0")
"""Of the call: some templates write no name but this."""
_ID = re.compile(r"\bid\b")
_FUNCTION = {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)}
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "hermes": Hermes,
    "llama3_json": Llama3,
    "mistral": Mistral,
    "deepseek_v3": DeepSeek,
    "harmony": Harmony,
    "glm45": Glm,
    "qwen3_coder": Qwen3Coder,
    "minimax_m2": MiniMax,
    "seed_oss": SeedOss,
    "kimi_k2": KimiK2,
    "deepseek_v32": DeepSeekTags,
    "hunyuan_a13b": Hunyuan,
    "hy_v3": Hy3,
    "cohere_command3": CohereCommand,
    "granite": Granite,
    "phi4_mini_json": Phi4,
    "nemotron": Nemotron,
    "lfm2": Lfm2,
    "olmo3": Olmo3,
    "gemma4": Gemma4,
    "gigachat3": GigaChat,
    "solar_open": Solar,
    "apertus": Apertus,
    "functionary": Functionary,
    "pythonic": Pythonic,
}
"""How models write calls of tools, by the name of `--tool-call-parser`."""


def written_format(template: str, special_tokens: Mapping[str, str] | None = None) -> tuple[str | None, bool]:
    """Name of the format that reads the template's call, and whether the template writes calls at all."""
    does_write = False
    formats = sorted(TOOL_FORMATS.items(), key=lambda item: not _is_signed(item[1], template))
    for answer in _answers(template, {**dict.fromkeys(_TOKENS, ""), **(special_tokens or {})}):
        does_write = True
        found = next((name for name, kind in formats if _reads(kind(template), answer)), None)
        if found is not None:
            return found, True
    return None, does_write


def _is_signed(kind: type[ToolFormat], template: str) -> bool:
    return any(sign in template for sign in kind.signs)


def _answers(template: str, special_tokens: Mapping[str, str]) -> Iterator[str]:
    """The template's text for an answer with a call, for several forms of messages; from the answer's beginning if
    known, and from the question on."""
    try:
        chat = ChatTemplate(template, special_tokens)
    except ChatTemplateError:
        return
    question: Mapping[str, Any] = {"role": "user", "content": _QUESTION}
    before = _behind_question(chat, [question], add_generation_prompt=True)
    forms = [(_IDS[0], {}), (_IDS[0], {"content": ""})]
    if _ID.search(template):
        forms.append((_IDS[1], {"content": ""}))
    for call_id, content in forms:
        written = {"id": call_id, "type": "function", "function": _FUNCTION}
        call: Mapping[str, Any] = {"role": "assistant", **content, "tool_calls": [written]}
        result = {"role": "tool", "tool_call_id": call_id, "name": _NAME, "content": "high"}
        for messages in ([question, call], [question, call, result]):
            text = _behind_question(chat, messages, add_generation_prompt=False)
            if text is None and before is None:
                return  # a template that shows no question shows no call, and may take seconds each time
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


def can_instruct(template: str, special_tokens: Mapping[str, str] | None = None) -> bool:
    """Whether a template has no place for tools, and shows a message that tells of tools, a call and a result."""
    tokens = {**dict.fromkeys(_TOKENS, ""), **(special_tokens or {})}
    question: Mapping[str, Any] = {"role": "user", "content": _QUESTION}
    call = {"role": "assistant", "tool_calls": [{"id": _IDS[0], "type": "function", "function": _FUNCTION}]}
    result = {"role": "tool", "tool_call_id": _IDS[0], "name": _NAME, "content": _RESULT}
    try:
        if _knows_tools(ChatTemplate(template, tokens), question):
            return False
        telling = ChatTemplate(template, tokens, instructs_tools=True)
        texts = [telling.render(messages, tools=[_TOOL]) for messages in ([question], [question, call, result])]
    except ChatTemplateError:
        return False
    told, written = instruction([_TOOL]), json.dumps({"name": _NAME, "arguments": _ARGUMENTS}, ensure_ascii=False)
    shown = all(told in text and _QUESTION in text for text in texts)
    return shown and written in texts[1] and _RESULT in texts[1]


def _knows_tools(chat: ChatTemplate, question: Mapping[str, Any]) -> bool:
    """Whether tools change the text, with a system message or without. Raises `ChatTemplateError` without a message."""
    if chat.render([question], tools=[_TOOL]) != chat.render([question]):
        return True
    guided = [{"role": "system", "content": _RESULT}, question]
    try:
        return chat.render(guided, tools=[_TOOL]) != chat.render(guided)
    except ChatTemplateError:
        return False


def _reads(tools: ToolFormat, answer: str) -> bool:
    """Whether the format finds exactly the rendered call behind its marker."""
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
    try:
        return names == [_NAME] and num_whole == 1 and json.loads(arguments) == _ARGUMENTS
    except (ValueError, RecursionError):
        return False


AUTO, NONE, UNKNOWN, INSTRUCTED = "auto", "none", "unknown", "instructed"
_TOOLS_SHOW = (
    *((marker, NONE) for marker in ("<function=", "<arg_key>", "<invoke ", "<tool_calls>")),  # not Hermes' all the same
    ("<|channel|>", "harmony"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3_json"),
    ("<|tool_list_start|>", "lfm2"),
    ('"List of tools: ["', "lfm2"),
    ("<|START_ACTION|>", "cohere_command3"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<TOOLCALL>", "nemotron"),
)
"""Signs of a format in templates that write no earlier calls."""
_REASONING_SHOWS = (
    ("[THINK]", "mistral"),
    ("<|START_THINKING|>", "cohere_command3"),
    ("<seed:think>", "seed_oss"),
    ("<mm:think>", "minimax_m3"),
    ("<think{}>", "hy_v3"),
    ("<|channel>thought", "gemma4"),
    ("assistant<|think|>", "solar_open"),
    ("<response></response>", "granite"),
    (r"</think>\n\n<response>", "granite"),
    ("<answer>", "hunyuan_a13b"),
    ("<think>", "think"),
)


class AnswerFormats(NamedTuple):
    """Formats of an answer's parts besides text."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def thought(self) -> ReasoningFormat | None:
        return self.reasoning if self.tools is None else self.tools.thought or self.reasoning

    @property
    def answer(self) -> str | None:
        """Prefix of a text, for formats that need a prefix."""
        return None if self.tools is None else self.tools.answer

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts with a meaning in the formats; some may be special tokens."""
        return tuple(marker for each in (self.tools, self.reasoning) if each is not None for marker in each.markers)


TEXT_ONLY = AnswerFormats()


def choose_formats(
    template: str | None,
    tool_call_parser: str,
    reasoning_parser: str,
    special_tokens: Mapping[str, str] | None = None,
) -> AnswerFormats:
    """The formats by name; `auto` = by the template, `none` = all is text. A malicious template may take forever."""
    return formats_named(*choose_names(template, tool_call_parser, reasoning_parser, special_tokens), template)


def choose_names(
    template: str | None,
    tool_call_parser: str,
    reasoning_parser: str,
    special_tokens: Mapping[str, str] | None = None,
    *,
    renders: bool = True,
) -> tuple[str, str]:
    """Names of the formats of calls and reasoning; for a template that writes no calls, the format shown by the
    template's text. `unknown` = only a grammar makes calls, `instructed` = a message tells how to call, since the
    template has no place for tools. `renders`: whether the template may run."""
    tools = tool_call_parser
    if tool_call_parser == AUTO:
        found, does_write = written_format(template, special_tokens) if template and renders else (None, False)
        tools = found or (NONE if does_write else _shown(template))
        if tools == NONE:
            can = renders and not does_write and template is not None and can_instruct(template, special_tokens)
            tools = INSTRUCTED if can else UNKNOWN
    return tools, _chosen(reasoning_parser, template, _REASONING_SHOWS)


def formats_named(tools: str, reasoning: str, template: str | None) -> AnswerFormats:
    """The formats of these names; `none` = None, `unknown` = a format for grammars."""
    others: Mapping[str, type[ToolFormat]] = {UNKNOWN: Forced, INSTRUCTED: Instructed}
    kind = TOOL_FORMATS.get(tools) or others.get(tools)
    return AnswerFormats(
        None if kind is None else kind(template),
        REASONING_FORMATS.get(reasoning) if tools != "harmony" else None,  # harmony has reasoning of its own
    )


def _shown(template: str | None) -> str:
    signed = (name for name, kind in TOOL_FORMATS.items() if template and _is_signed(kind, template))
    found = next(signed, None) or _chosen(AUTO, template, _TOOLS_SHOW)
    if found == NONE and template and "<|start_header_id|>" in template and '"parameters": ' in template:
        return "llama3_json"  # as bare objects
    return found


def _chosen(name: str, template: str | None, shows: tuple[tuple[str, str], ...]) -> str:
    if name != AUTO:
        return name
    return next((found for marker, found in shows if template is not None and marker in template), NONE)
