"""OpenAI's `tool_choice` of some of the tools, for servers that know only of one and of all. Pure."""

from collections.abc import Mapping

import msgspec

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Function(msgspec.Struct, frozen=True):
    name: str


class _NamedTool(msgspec.Struct, frozen=True):
    function: _Function


class _Allowed(msgspec.Struct, frozen=True):
    mode: str
    tools: list[_NamedTool]


class _SomeAllowed(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    allowed_tools: _Allowed


def only_allowed(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """The fields to replace: the allowed tools alone, and the mode of their choice. None where nothing of the kind is
    chosen, or not well: the server refuses it."""
    try:
        allowed = msgspec.json.decode(fields["tool_choice"], type=_SomeAllowed).allowed_tools
        tools = msgspec.json.decode(fields["tools"], type=list[msgspec.Raw])
        names = {tool.function.name for tool in allowed.tools}
        kept = [tool for tool in tools if msgspec.json.decode(tool, type=_NamedTool).function.name in names]
    except (KeyError, *_UNREADABLE):
        return {}
    replaced = {"tools": kept, "tool_choice": allowed.mode} if kept else {}
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in replaced.items()}
