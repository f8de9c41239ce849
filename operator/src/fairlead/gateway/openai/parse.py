"""Bytes → InferenceRequest. Pure.

Only the top level of the JSON body is parsed. Values stay the client's bytes, so nothing is lost or reformatted before
the engine validates them. Bodies too costly for the gateway are refused (`fairlead_common.openai.budget`), and private
fields (`fairlead_…`) are dropped.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.fleet.directory import Pool
from fairlead.gateway.openai.errors import bad_request
from fairlead.routing.sessions import NO_SESSION, session_hash
from fairlead_common.http.forms import Form
from fairlead_common.openai.budget import (
    MAX_CACHE_SALT_LENGTH,
    MAX_MESSAGES,
    MAX_MODEL_NAME_LENGTH,
    MAX_TOOLS,
    OverBudget,
    Priority,
    Tag,
    check_json,
)
from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate import Translation
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.wire.adapters import with_adapter
from fairlead_common.wire.messages import FIELD_TOKENS, HEADER_SESSION, PRIVATE_FIELD_PREFIX

SESSION_HEADER = HEADER_SESSION.encode()
FORWARDED_HEADERS = frozenset({b"accept", b"traceparent", b"tracestate", b"baggage", b"user-agent", SESSION_HEADER})
"""Client headers that engines get; credentials and everything else end here."""
SESSION_FIELDS = ("prompt_cache_key", "user")
"""What names the session where the header does not, the first that is there."""
LOWEST_PRIORITY = 2**31 - 1
"""What engines are told of lines of batches."""
MAX_REQUEST_ID_LENGTH = 128
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON may raise."""

_REQUEST_ID_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-/=+")
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_salt_decoder: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(str | None)
_list_decoder: msgspec.json.Decoder[list[msgspec.Raw] | None] = msgspec.json.Decoder(list[msgspec.Raw] | None)
_tag_decoder: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(Tag | None)
_priority_decoder: msgspec.json.Decoder[Priority | None] = msgspec.json.Decoder(Priority | None)
_BOUNDS: tuple[tuple[str, msgspec.json.Decoder[Any], int, str], ...] = (
    ("messages", _list_decoder, MAX_MESSAGES, "messages"),
    ("tools", _list_decoder, MAX_TOOLS, "tools"),
    ("functions", _list_decoder, MAX_TOOLS, "functions"),
    ("cache_salt", _salt_decoder, MAX_CACHE_SALT_LENGTH, "characters"),
)
"""Fields that cost the gateway something: how long they may be, in what."""


@dataclass(slots=True, kw_only=True)
class InferenceRequest:
    """One request on its way to a replica. It owns everything the gateway knows about it."""

    request_id: str
    path: str
    """Path of the engine's API, such as `/v1/chat/completions`."""
    model: str
    """As the client wrote it; empty where path or Host choose the model."""
    adapter: str | None = None
    """The adapter named in `model`, once the model is found."""
    stream: bool
    wants_usage: bool
    """Whether the client asked for usage in its stream; the gateway collects usage in any case."""
    chosen: Pool | None = None
    """The pool chosen by path or Host header; None = by `model`."""
    fields: dict[str, msgspec.Raw]
    """The body's top level, private fields dropped; values are the client's bytes."""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Those of the client's headers that engines get."""
    priority: int = 0
    """Who goes first where not all can: the lower, in line here as in the engine."""
    is_spare: bool = False
    """Whether it is a line of a batch: it goes behind everybody else, into spare capacity alone."""
    is_suspect: bool = False
    """Whether replicas have broken down on it before."""
    session: bytes = NO_SESSION
    """Hash of the session that the client names."""
    form: Form | None = None
    """A body that is a form, with no `fields`; None = JSON."""
    num_bytes: int = 0
    """Size of the body as it came."""
    on_read: Callable[[], object] = lambda: None
    """Called when the prompt has been read: the body then no longer counts as received but as waiting."""

    @property
    def content_type(self) -> str:
        """Of the body for an engine."""
        return "application/json" if self.form is None else self.form.content_type

    def upstream_body(self, served_name: str, tokens: bytes | None = None) -> bytes:
        """The body for an engine: with the engine's name for the model, and asking for usage.

        `tokens`: JSON of the prompts as tokenised for this engine (`PromptTokens`); None = the engine tokenises.
        """
        model = with_adapter(served_name, self.adapter)
        if self.form is not None:
            return self.form.with_value("model", model.encode())
        fields = self.fields | {"model": msgspec.Raw(msgspec.json.encode(model))}
        if self.is_spare:
            fields["priority"] = msgspec.Raw(b"%d" % LOWEST_PRIORITY)
        if tokens is not None:
            fields[FIELD_TOKENS] = msgspec.Raw(tokens)
        if self.stream and not self.wants_usage:
            options = _object(self.fields.get("stream_options"))
            if options is not None:
                fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options | {"include_usage": True}))
        return msgspec.json.encode(fields)


def check_cost(body: bytes) -> None:
    """Raises OpenAIError (400) for a body with too many parts. Takes as long as decoding, so callers may pause in
    between."""
    try:
        check_json(body)
    except OverBudget as error:
        message = str(error)
        raise bad_request(f"{message[:1].upper()}{message[1:]}.", code="request_too_complex") from error


def translated(path: str, body: bytes, translation: Translation | None, unknown: UnknownFields) -> tuple[str, bytes]:
    """Path and body of the engine's API. `translation`: None = no other dialect. `unknown`: decodes the body. Raises
    OpenAIError (400). For bodies that have passed `check_cost`."""
    if translation is None:
        return path, body
    try:
        return translation.request(body, unknown)
    except PromptError as error:
        raise bad_request(error.message, param=error.field or None) from error


def parse(
    path: str, body: bytes, headers: Iterable[tuple[bytes, bytes]], *, request_id: str, chosen: Pool | None = None
) -> InferenceRequest:
    """Raises OpenAIError (400) for a body other than a JSON object, a model other than a text, and too costly fields.
    For bodies after `check_cost`."""
    try:
        if not body.isascii():
            body.decode()  # values are not decoded below, and JSON is UTF-8
        fields = _decoder.decode(body)
    except UNREADABLE as error:
        message = f"The request body is not valid JSON: {error}."
        if not body.strip():
            message = "The request has no body; send a JSON object."
        elif isinstance(error, msgspec.ValidationError):
            message = "The request body must be a JSON object."
        elif isinstance(error, RecursionError):
            message = "The request body is nested too deeply."
        raise bad_request(message, code="invalid_json") from error
    _check_bounds(fields)
    for name in [name for name in fields if name.startswith(PRIVATE_FIELD_PREFIX)]:
        del fields[name]
    stream = _is_true(fields.get("stream"))
    options = _object(fields.get("stream_options")) or {}
    headers, priority = list(headers), 0
    with suppress(*UNREADABLE):  # what is none is the engine's to refuse
        priority = _priority_decoder.decode(fields.get("priority", b"null")) or 0
    return InferenceRequest(
        request_id=request_id,
        path=path,
        chosen=chosen,
        model=_model(fields.get("model")),
        stream=stream,
        wants_usage=any(_is_true(options.get(name)) for name in ("include_usage", "continuous_usage_stats")),
        fields=fields,
        headers=[(name, value) for name, value in headers if name in FORWARDED_HEADERS],
        priority=priority,
        session=_session(headers, fields),
        num_bytes=len(body),
    )


def parse_form(
    path: str, body: bytes, headers: Mapping[bytes, bytes], *, request_id: str, chosen: Pool | None = None
) -> InferenceRequest:
    """A request whose body is a form. Raises OpenAIError (400)."""
    try:
        form = Form.of(headers.get(b"content-type", b"").decode("latin-1"), body)
        name = (form.value("model") or b"").decode()
    except UnicodeDecodeError as error:
        raise bad_request("The field 'model' must be a text in UTF-8.", param="model") from error
    except ValueError as error:
        message = str(error)
        raise bad_request(f"{message[:1].upper()}{message[1:]}.", code="invalid_form") from error
    return InferenceRequest(
        request_id=request_id,
        path=path,
        chosen=chosen,
        model=_bounded(name),
        stream=form.value("stream") == b"true",
        wants_usage=True,  # whatever is told is passed on
        fields={},
        form=form,
        headers=[header for header in headers.items() if header[0] in FORWARDED_HEADERS],
        session=_session(headers.items(), {}),
        num_bytes=len(body),
    )


def _check_bounds(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raises OpenAIError (400). Engines refuse values of another type."""
    for name, decoder, limit, unit in _BOUNDS:
        raw = fields.get(name, b"")
        if len(raw) <= limit:
            continue
        with suppress(*UNREADABLE):
            if len(decoder.decode(raw) or ()) > limit:
                message = f"The field {name!r} has more than {limit:,} {unit}; send fewer."
                raise bad_request(message, param=name, code="request_too_complex")


def request_id_from(header: bytes | None) -> str | None:
    """The client's own id, if headers and logs can carry it; else None."""
    if not header or len(header) > MAX_REQUEST_ID_LENGTH or not _REQUEST_ID_CHARACTERS.issuperset(header):
        return None
    return header.decode("ascii")


def _model(raw: msgspec.Raw | None) -> str:
    """The model's name; empty when the field is missing or null."""
    try:
        name = msgspec.json.decode(raw or b"null", type=str | None) or ""
    except UNREADABLE as error:
        raise bad_request("The field 'model' must be a string.", param="model") from error
    return _bounded(name)


def _bounded(name: str) -> str:
    if len(name) > MAX_MODEL_NAME_LENGTH:
        raise bad_request(f"The field 'model' is longer than {MAX_MODEL_NAME_LENGTH} characters.", param="model")
    return name


def _session(headers: Iterable[tuple[bytes, bytes]], fields: Mapping[str, msgspec.Raw]) -> bytes:
    """What the client names is its own affair: names that are no texts, or too long, name nothing here."""
    name = next((value.decode("latin-1") for key, value in headers if key == SESSION_HEADER), "")
    for field_name in SESSION_FIELDS:
        if name:
            break
        with suppress(*UNREADABLE):  # engines refuse it
            name = _tag_decoder.decode(fields.get(field_name, b"null")) or ""
    return session_hash(name)


def _is_true(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw).strip() == b"true"


def _object(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw] | None:
    """The top level of a nested object; empty for a missing or null one; None for anything else."""
    if raw is None or bytes(raw).strip() == b"null":
        return {}
    try:
        return _decoder.decode(raw)
    except UNREADABLE:
        return None
