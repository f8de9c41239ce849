"""Which formats a model writes its calls and its reasoning in: as it is set, or as its chat template shows."""

from typing import NamedTuple

from fairlead_engine.server.answers.reasoning_formats import REASONING_FORMATS, ReasoningFormat
from fairlead_engine.server.answers.tool_formats import TOOL_FORMATS, ToolFormat

AUTO, NONE = "auto", "none"
_TOOLS_SHOW = (
    ("<function=", NONE),  # Qwen3-Coder's, inside of Hermes' markers: no format here reads it
    ("<|channel|>", "harmony"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3_json"),
)
"""What a template has that tells the model its own earlier calls."""
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


def choose_formats(template: str | None, tool_call_parser: str, reasoning_parser: str) -> AnswerFormats:
    """The formats by name; `auto` = what the template shows, `none` = nothing is told apart."""
    tools = _chosen(tool_call_parser, template, _TOOLS_SHOW)
    if tools not in TOOL_FORMATS and template and tool_call_parser == AUTO:
        # Llama 3.1's own template writes calls as bare objects where no code interpreter is asked for.
        is_llama3 = "<|start_header_id|>" in template and '"parameters": ' in template
        tools = "llama3_json" if is_llama3 else tools
    reasoning = _chosen(reasoning_parser, template, _REASONING_SHOWS)
    is_told = tools != "harmony"  # which has reasoning of its own
    return AnswerFormats(
        TOOL_FORMATS[tools](template) if tools in TOOL_FORMATS else None,
        REASONING_FORMATS.get(reasoning) if is_told else None,
    )


def _chosen(name: str, template: str | None, shows: tuple[tuple[str, str], ...]) -> str:
    if name != AUTO:
        return name
    return next((found for marker, found in shows if template is not None and marker in template), NONE)
