"""The fields of a request with its prompt, decoded; and the prompt's beginning. Pure.

Only these fields are decoded for a gateway, by the engine's schemas: in the process of the model's tokenizer, or,
without a tokenizer, in the gateway's own. Engines refuse other values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from fairlead_common.openai.budget import CacheSalt
from fairlead_common.openai.image_parts import image_parts, url_bytes
from fairlead_common.openai.prompts import (
    CLASSIFY_PATH,
    EMBEDDINGS_PATH,
    READING_PATHS,
    RERANK_PATH,
    SCORE_PATH,
    AnswerLimit,
    ChatPrompt,
    ClassifyPrompt,
    CompletionPrompt,
    EmbeddingPrompt,
    PairPrompts,
    PromptError,
    PromptFields,
    PromptTooLong,
    RerankPrompt,
    ScorePrompt,
    TextPrompts,
)
from fairlead_common.openai.truncation import ALL_THAT_FIT
from fairlead_common.openai.truncation import FIELD as TRUNCATE
from fairlead_common.wire.blocks import NO_EXTRA, extra_bytes

Raw: TypeAlias = "msgspec.Raw | bytes | memoryview"
"""A field's JSON."""
BYTES_PER_TOKEN = 4
"""Of typical text, for untokenised prompts."""
MAX_BYTES = 1024 * 1024
MAX_VALUES = 400_000
"""Larger fields with more values are not decoded: time and memory would be many times their size."""
MAX_PROMPTS = 128
"""Per request; more are left to the engine unread, which takes more only of embeddings."""

_SCHEMAS: Mapping[str, type[PromptFields]] = {
    "/v1/chat/completions": ChatPrompt,
    "/v1/completions": CompletionPrompt,
    EMBEDDINGS_PATH: EmbeddingPrompt,
    RERANK_PATH: RerankPrompt,
    SCORE_PATH: ScorePrompt,
    CLASSIFY_PATH: ClassifyPrompt,
}
"""By path; requests for other paths have no prompt."""
_DECODERS = {
    schema: {each.name: msgspec.json.Decoder(each.type) for each in msgspec.structs.fields(schema)}
    for schema in _SCHEMAS.values()
}
_salt: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(CacheSalt | None)
_number: msgspec.json.Decoder[int | None] = msgspec.json.Decoder(int | None)
_LIMITS = ("max_tokens", "max_completion_tokens")
_OTHER_NAMES = ("best_effort", "cache_salt", "pooling", *_LIMITS)
TOKENS_PER_IMAGE = 1000
"""Estimate for an undecoded image: the tokens of a one-megapixel picture."""
_OVER_ALL = (b'"mean"', b'"max"')
"""What `pooling` says where every token is computed."""
NO_LIMIT = AnswerLimit.of(None)


@dataclass(frozen=True, slots=True)
class PromptBound:
    """How many tokens the longest of a request's prompts has at least."""

    place: str = "prompt"
    num_tokens: int = 0
    is_exact: bool = False
    """Whether it has no more."""
    limit: AnswerLimit = NO_LIMIT
    """Of its answers."""

    def excess(self, max_model_len: int) -> PromptError | None:
        """Why engines with this context would refuse the prompt with any tokenizer; None = they may accept."""
        or_more = not self.is_exact
        if self.num_tokens >= max_model_len:
            return PromptTooLong(self.place, self.num_tokens, max_model_len, or_more=or_more)
        try:
            self.limit.check(self.num_tokens, max_model_len, or_more=or_more)
        except PromptError as error:
            return error
        return None


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A request's prompt, neither rendered nor tokenised."""

    num_bytes: int
    """As the client wrote it, without its images; 0 where the path has no prompts."""
    fields: PromptFields | None
    """None = too many values or prompts, or not valid for an engine."""
    well_formed: bool
    """False = an engine will refuse the fields."""
    extra: bytes = NO_EXTRA
    """Other inputs of the prompt's block hashes."""
    limit: AnswerLimit = NO_LIMIT
    """The request's limit of its answers."""
    reads_all: bool = False
    """Whether engines compute the whole prompt, without their caches."""
    field: str = "prompt"
    """Which field has its texts or ids."""
    num_images: int = 0
    """In the messages of a chat."""
    least_ids: int = 0
    """For undecoded prompts: token ids of the longest one at least."""
    kept: int | None = None
    """Tokens of each prompt that `truncate_prompt_tokens` keeps, as the client wrote it; None = all."""

    def least(self) -> PromptBound:
        """A lower bound without a tokenizer: ids count, a text has at least one token."""
        if self.kept == ALL_THAT_FIT:
            return PromptBound(self.field, limit=self.limit)
        try:
            places = self.fields.places() if self.fields is not None else [self.field]
        except PromptError:
            return PromptBound(self.field, limit=self.limit)  # its engine says what is wrong
        if isinstance(self.fields, TextPrompts) and isinstance(self.fields.content, list):
            contents = self.fields.contents
            lengths = [len(each) if isinstance(each, list) else 1 for each in contents]
            longest = max(range(len(lengths)), key=lengths.__getitem__)
            is_exact = isinstance(contents[longest], list)
            return PromptBound(places[longest], self._cut(lengths[longest]), is_exact, self.limit)
        return PromptBound(places[0], self._cut(max(self.least_ids, int(self.well_formed))), limit=self.limit)

    def _cut(self, num_tokens: int) -> int:
        """Of a prompt with so many tokens, how many are kept."""
        return num_tokens if self.kept is None else min(num_tokens, self.kept)

    @property
    def num_tokens(self) -> int:
        """About as many as it may have."""
        if not self.well_formed:
            return 0
        estimate = self.num_bytes // BYTES_PER_TOKEN + self.num_images * TOKENS_PER_IMAGE
        if self.kept is None or self.kept == ALL_THAT_FIT:
            return estimate
        num_prompts = self.fields.num_prompts if isinstance(self.fields, TextPrompts) else 1
        return min(estimate, self.kept * num_prompts)

    def beginning(self, length: int) -> str:
        """The first `length` characters of the first user message, or of the first text of another request."""
        if isinstance(self.fields, ChatPrompt):
            first = next((each for each in self.fields.messages if each.get("role") == "user"), {})
            return _text(first.get("content"))[:length]
        if isinstance(self.fields, PairPrompts):
            return self.fields.beginning[:length]
        if self.fields is None or not self.fields.content:
            return ""
        prompt = self.fields.content
        if isinstance(prompt, str):
            return prompt[:length]
        first_part = prompt[0]
        if isinstance(first_part, str):
            return first_part[:length]
        ids = first_part if isinstance(first_part, list) else prompt
        return " ".join(str(token_id) for token_id in ids[:length])[:length]


def prompt_fields(path: str, fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """The request's fields that make its prompt; empty for paths without prompts."""
    schema = _SCHEMAS.get(path)
    names = () if schema is None else (*_DECODERS[schema], *_OTHER_NAMES)
    return {name: fields[name] for name in names if name in fields}


def raw_prompt(path: str, given: Mapping[str, Raw], adapter: str | None) -> RawPrompt:
    """What a request has as its prompt; `given`: at least those of `prompt_fields`. Never raises."""
    schema = _SCHEMAS.get(path)
    if schema is None:
        return RawPrompt(0, None, well_formed=False)
    decoders = _DECODERS[schema]
    raw = {name: given[name] for name in decoders if name in given}
    num_bytes = sum(len(value) for value in raw.values())
    if num_bytes > MAX_BYTES and sum(bytes(value).count(b",") for value in raw.values()) > MAX_VALUES:
        name = "prompt" if schema is ChatPrompt else schema.FIELD
        text = bytes(raw.get(name, b""))
        is_ids = text and not text.translate(None, b"0123456789,[] \t\r\n")
        # Of one list of ids or of a list of such lists: as many as the longest has at least.
        least_ids = -(-(text.count(b",") + 1) // max(1, text.count(b"[") - 1)) if is_ids else 0
        return RawPrompt(num_bytes, None, well_formed=True, field=name, least_ids=least_ids, kept=_kept(given, schema))
    try:
        fields = schema(**{name: decoders[name].decode(value) for name, value in raw.items()})
        salt = given.get("cache_salt")
        extra = extra_bytes(adapter=adapter, cache_salt=_salt.decode(salt or b"null"))
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        return RawPrompt(num_bytes, None, well_formed=False)
    kept = _kept(given, schema)
    if not isinstance(fields, ChatPrompt) and fields.num_prompts > MAX_PROMPTS:
        return RawPrompt(num_bytes, None, well_formed=True, field=fields.FIELD, kept=kept)
    reads_all = schema is EmbeddingPrompt and bytes(given.get("pooling", b"")) in _OVER_ALL
    num_images = 0
    if isinstance(fields, ChatPrompt) and (num_images := len(image_parts(fields.messages))):
        num_bytes = max(0, num_bytes - url_bytes(fields.messages))
    return RawPrompt(
        num_bytes,
        fields,
        well_formed=True,
        extra=extra,
        limit=_limit(path, given, schema),
        reads_all=reads_all,
        num_images=num_images,
        kept=kept,
    )


def _kept(given: Mapping[str, Raw], schema: type[PromptFields]) -> int | None:
    """Engines refuse values that are no sensible numbers."""
    if TRUNCATE not in _DECODERS[schema]:
        return None
    try:
        kept = _number.decode(given.get(TRUNCATE, b"null"))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return kept if kept is None or kept > 0 else ALL_THAT_FIT


def _limit(path: str, given: Mapping[str, Raw], schema: type[PromptFields]) -> AnswerLimit:
    """Engines refuse values that are no sensible numbers."""
    if path in READING_PATHS:
        return NO_LIMIT
    names = _LIMITS if schema is ChatPrompt else _LIMITS[:1]
    if bytes(given.get("best_effort", b"")) == b"true":
        return NO_LIMIT
    try:
        limits = [_number.decode(given.get(name, b"null")) for name in names]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return NO_LIMIT
    return AnswerLimit.of(*limits)


def _text(content: Any) -> str:
    """Of a message: its text, or that of its parts."""
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
