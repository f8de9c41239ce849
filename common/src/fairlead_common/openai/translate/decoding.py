"""Bodies of dialects → their schemas, refused with the place of the problem as `messages[0].content`. Pure."""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from fairlead_common.openai.budget import MAX_TAG_LENGTH, check_json
from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.unknown_fields import UnknownFields

Asked = TypeVar("Asked", bound=msgspec.Struct)
_LONGEST_PLACE = 200
"""Characters of the place of a problem; names from the client may be long."""
_NAMED = re.compile(r"Object (?P<what>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)
_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.\w+|\[\d+\])*")
_TOOL = re.compile(r"tools\[(\d+)\](?:\.(?:function|custom)\b)?")


def tag_of(value: Any) -> str | None:
    """A name without effect on the answer, as a chat takes it; None = no text, or too long a text for a chat."""
    return value if isinstance(value, str) and len(value) <= MAX_TAG_LENGTH else None


def decoded(body: bytes, schema: type[Asked], unknown: UnknownFields) -> Asked:
    """Raises PromptError and OverBudget."""
    check_json(body)
    try:
        return unknown.decode(body, schema)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        place = path.rstrip("`").lstrip(".")
        if named := _NAMED.fullmatch(problem):
            place = f"{place}.{named['name']}".lstrip(".")
            problem = "is missing" if named["what"].startswith("missing") else "is not supported; leave it out"
        place, problem = place[:_LONGEST_PLACE], problem[:1].lower() + problem[1:]
        raise PromptError(place, f"{place or 'the request body'}: {problem}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PromptError("", f"the request body is not valid JSON: {error}") from None
    except RecursionError:
        raise PromptError("", "the request body is nested too deeply") from None


class Places:
    """Where messages and tools of a chat, and fields of other names, stand in a request."""

    def __init__(
        self, messages: Sequence[str] = (), tools: Sequence[str] = (), names: Sequence[tuple[str, str]] = ()
    ) -> None:
        """`names`: patterns and replacements, applied in order, after the places of messages and tools."""
        self._messages, self._tools, self._names = messages, tools, names

    def told(self, text: str) -> str:
        """An error's text with the request's places."""
        text = _MESSAGE.sub(lambda found: _at(self._messages, found), text)
        text = _TOOL.sub(lambda found: _at(self._tools, found), text)
        for pattern, name in self._names:
            text = re.sub(pattern, name, text)
        return text


def _at(places: Sequence[str], found: re.Match[str]) -> str:
    index = int(found[1])
    return places[index] if index < len(places) else found[0]
