"""The fields of a request that make its prompt, decoded; and what its beginning is. Pure.

Only these fields are decoded in a gateway, by the same schemas as in an engine. What does not fit them is the engine's
to refuse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.gateway.openai.parse import InferenceRequest
from fairlead_protocol.blocks import NO_EXTRA, extra_bytes
from fairlead_protocol.budget import CacheSalt
from fairlead_protocol.prompts import ChatPrompt, CompletionPrompt, PromptFields

MAX_BYTES = 4 * 1024 * 1024
"""Of these fields together, about a million tokens; longer prompts are not decoded but left to the engine."""

_SCHEMAS: Mapping[str, type[PromptFields]] = {"/v1/chat/completions": ChatPrompt, "/v1/completions": CompletionPrompt}
"""By path; requests for other paths have no prompt."""
_DECODERS = {
    schema: {each.name: msgspec.json.Decoder(each.type) for each in msgspec.structs.fields(schema)}
    for schema in _SCHEMAS.values()
}
_salt: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(CacheSalt | None)


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A request's prompt before it is rendered and tokenised."""

    num_bytes: int
    """As the client wrote it; 0 where the path has no prompts."""
    fields: PromptFields | None
    """None where they are too long, or not what an engine would take."""
    well_formed: bool
    """False where an engine is going to refuse them."""
    extra: bytes = NO_EXTRA
    """What else decides the prompt's blocks in a cache."""

    @property
    def num_messages(self) -> int:
        """Messages of a chat; 0 for other prompts."""
        return len(self.fields.messages) if isinstance(self.fields, ChatPrompt) else 0

    def beginning(self, length: int) -> str:
        """The first `length` characters of the first user message, or of the first text to be completed."""
        if isinstance(self.fields, ChatPrompt):
            first = next((each for each in self.fields.messages if each.get("role") == "user"), {})
            return _text(first.get("content"))[:length]
        if self.fields is None or not self.fields.prompt:
            return ""
        prompt = self.fields.prompt
        if isinstance(prompt, str):
            return prompt[:length]
        first_part = prompt[0]
        if isinstance(first_part, str):
            return first_part[:length]
        ids = first_part if isinstance(first_part, list) else prompt
        return " ".join(str(token_id) for token_id in ids[:length])[:length]


def raw_prompt(request: InferenceRequest) -> RawPrompt:
    """What `request` has as its prompt. Never raises."""
    schema = _SCHEMAS.get(request.path)
    if schema is None:
        return RawPrompt(0, None, well_formed=False)
    decoders = _DECODERS[schema]
    raw = {name: request.fields[name] for name in decoders if name in request.fields}
    num_bytes = sum(len(value) for value in raw.values())
    if num_bytes > MAX_BYTES:
        return RawPrompt(num_bytes, None, well_formed=True)
    try:
        fields = schema(**{name: decoders[name].decode(value) for name, value in raw.items()})
        salt = request.fields.get("cache_salt")
        extra = NO_EXTRA if salt is None else extra_bytes(cache_salt=_salt.decode(salt))
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        return RawPrompt(num_bytes, None, well_formed=False)
    return RawPrompt(num_bytes, fields, well_formed=True, extra=extra)


def _text(content: Any) -> str:
    """Of a message: its text, or that of its parts."""
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
