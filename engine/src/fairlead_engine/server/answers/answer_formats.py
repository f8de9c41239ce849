"""Which formats a model writes its calls and its reasoning in: as it is set, or as its chat template shows."""

from collections.abc import Mapping
from typing import NamedTuple

from fairlead_engine.server.answers.reasoning_formats import REASONING_FORMATS, ReasoningFormat
from fairlead_engine.server.answers.tool_formats import TOOL_FORMATS, ToolFormat
from fairlead_engine.server.answers.written_calls import written_format

AUTO, NONE = "auto", "none"
_TOOLS_SHOW = (
    *((marker, NONE) for marker in ("<function=", "<arg_key>", "<invoke ", "<tool_calls>")),  # not Hermes' all the same
    ("<|channel|>", "harmony"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3_json"),
)
"""What shows the format where a template writes no earlier calls, or only such as no probe has."""
_REASONING_SHOWS = (("[THINK]", "mistral"), ("<think>", "think"))


class AnswerFormats(NamedTuple):
    """What there may be in an answer besides text."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @property
    def thought(self) -> ReasoningFormat | None:
        """What reasoning stands in."""
        return self.reasoning if self.tools is None else self.tools.thought or self.reasoning

    @property
    def answer(self) -> str | None:
        """What stands before a text, where something must."""
        return None if self.tools is None else self.tools.answer

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are told apart from the answer's, which may be special tokens."""
        return tuple(marker for each in (self.tools, self.reasoning) if each is not None for marker in each.markers)


TEXT_ONLY = AnswerFormats()


def choose_formats(
    template: str | None,
    tool_call_parser: str,
    reasoning_parser: str,
    special_tokens: Mapping[str, str] | None = None,
) -> AnswerFormats:
    """The formats by name; `auto` = what the template shows, `none` = nothing is told apart. May take for ever, of a
    template that means harm."""
    return formats_named(*choose_names(template, tool_call_parser, reasoning_parser, special_tokens), template)


def choose_names(
    template: str | None,
    tool_call_parser: str,
    reasoning_parser: str,
    special_tokens: Mapping[str, str] | None = None,
    *,
    renders: bool = True,
) -> tuple[str, str]:
    """Of the format of calls, and of reasoning. `renders`: whether the template may be run to find out."""
    tools = tool_call_parser
    if tool_call_parser == AUTO:
        tools = _tools(template, special_tokens) if renders else _shown(template)
    return tools, _chosen(reasoning_parser, template, _REASONING_SHOWS)


def formats_named(tools: str, reasoning: str, template: str | None) -> AnswerFormats:
    """Those of these names, of which `none` is none."""
    is_told = tools != "harmony"  # which has reasoning of its own
    return AnswerFormats(
        TOOL_FORMATS[tools](template) if tools in TOOL_FORMATS else None,
        REASONING_FORMATS.get(reasoning) if is_told else None,
    )


def _tools(template: str | None, special_tokens: Mapping[str, str] | None) -> str:
    """The format that reads the calls which a template writes; where it writes none, the one that its text shows."""
    if not template:
        return NONE
    found, does_write = written_format(template, special_tokens)
    return _shown(template) if found is None and not does_write else found or NONE


def _shown(template: str | None) -> str:
    found = _chosen(AUTO, template, _TOOLS_SHOW)
    if found == NONE and template and "<|start_header_id|>" in template and '"parameters": ' in template:
        return "llama3_json"  # as bare objects
    return found


def _chosen(name: str, template: str | None, shows: tuple[tuple[str, str], ...]) -> str:
    if name != AUTO:
        return name
    return next((found for marker, found in shows if template is not None and marker in template), NONE)
