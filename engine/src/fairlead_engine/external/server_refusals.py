"""Refusals of foreign servers → OpenAI's shape, and the requests that can do without what was refused. Pure.

Older versions of vLLM, and SGLang, leave the outer object out (`{"object": "error", "message": …}`), FastAPI says
`{"detail": …}`, others `{"error": "a text"}`. `code` is their HTTP status, a number, where OpenAI's is a text or null:
clients with types, such as async-openai, cannot read the whole error then.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

BEST_EFFORT = "best_effort"
"""Field of requests whose optional fields may be left out instead of a refusal."""
_WISHES: Mapping[str, re.Pattern[bytes]] = {
    "max_tokens": re.compile(rb"max_tokens|output tokens|in the completion"),
    "thinking_token_budget": re.compile(rb"thinking_token_budget"),
    "reasoning_effort": re.compile(rb"reasoning_effort"),
    "prompt_cache_options": re.compile(rb"prompt_cache_options"),
}
"""Optional fields of such requests → the words of a refusal. Servers end an answer without `max_tokens` where
their context ends."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ERROR_LINE = re.compile(rb'^data:\s*(\{\s*"(?:error"|object"\s*:\s*"error").*)$', re.MULTILINE)
"""An error among events. Line ends in a model's text are escaped, and its objects do not begin so."""


def refused_wishes(fields: Mapping[str, msgspec.Raw], refusal: bytes) -> list[str]:
    """Optional fields of the request that a refusal names."""
    if bytes(fields.get(BEST_EFFORT, b"")) != b"true":
        return []
    return [name for name, named in _WISHES.items() if name in fields and named.search(refusal)]


def in_envelope(body: bytes, status: int, path: str) -> bytes:
    """The body of a refusal, in OpenAI's shape if it has a message. `path`: of the request."""
    try:
        told = msgspec.json.decode(body, type=dict[str, Any])
    except _UNREADABLE:
        return body
    error = told.get("error", told)
    if isinstance(error, str):
        error = {"message": error}
    elif "detail" in told:
        error = {"message": _detail(told["detail"], status, path)}
    if not isinstance(error, dict) or "message" not in error:
        return body
    code = error.get("code")
    if error is told.get("error") and not isinstance(code, int):
        return body
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    whole = {"type": kind, "param": None, **error, "code": str(code) if isinstance(code, int) else code}
    return msgspec.json.encode({"error": {name: value for name, value in whole.items() if name != "object"}})


def error_of(events: bytes) -> bytes | None:
    """The first error among whole events of a stream; None = there is none."""
    found = _ERROR_LINE.search(events)
    return None if found is None else found[1]


def with_errors_in_envelope(events: bytes, path: str) -> bytes:
    """The same events, with errors in OpenAI's shape."""
    return _ERROR_LINE.sub(lambda found: b"data: " + in_envelope(found[1], HTTPStatus.BAD_GATEWAY, path), events)


def _detail(detail: Any, status: int, path: str) -> str:
    """The message of FastAPI's `detail`: a text, or a problem for each place."""
    if status == HTTPStatus.NOT_FOUND and detail == "Not Found":
        return f"What serves this model has nothing at {path}."
    if not isinstance(detail, list):
        return detail if isinstance(detail, str) else msgspec.json.encode(detail).decode()
    problems = [each for each in detail if isinstance(each, dict)]
    return "; ".join(f"{'.'.join(map(str, each.get('loc') or ()))}: {each.get('msg')}" for each in problems)
