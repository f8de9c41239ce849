"""Bodies that cost a careless server far more than they cost their sender, each with what its refusal says.

For tests of gateway and engine alike, which hold requests to one budget.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from fairlead_protocol.budget import MAX_MESSAGES, MAX_TOOLS

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
TOKENIZE = "/tokenize"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One body."""

    name: str
    path: str
    body: bytes = field(repr=False)
    param: str | None
    """The field that the refusal names; None = the body as a whole."""
    says: str
    """Part of the refusal's message."""

    def __str__(self) -> str:
        return self.name


def hostile_bodies(model: str, size: int) -> Iterator[Hostile]:
    """What gateway and engine both refuse with 400; each body has about `size` bytes."""
    salt, salted = b'"' + b"s" * size + b'"', b'[{"role":"user","content":"%b"}]' % (b"ahoy " * 400)
    yield Hostile("a salt", CHAT, _body(model, messages=salted, cache_salt=salt), "cache_salt", "256")
    message = b'{"role":"user","content":"x"}'
    many = _repeated(message, num=MAX_MESSAGES + 1)
    yield Hostile("messages", CHAT, _body(model, messages=many), "messages", "4096")
    tools = _repeated(b'{"type":"function"}', num=MAX_TOOLS + 1)
    yield Hostile("tools", CHAT, _body(model, messages=b"[%b]" % message, tools=tools), "tools", "1024")
    for name, path, place, part, says in (
        ("lists", CHAT, "chat_template_kwargs", b"[]", "lists and objects"),
        ("objects", CHAT, "messages", b"{}", "lists and objects"),
        ("empty messages", CHAT, "messages", b'{"role":""}', "texts"),
        ("texts", COMPLETION, "prompt", b'""', "texts"),
        ("texts that end in a backslash", COMPLETION, "prompt", rb'"\\"', "texts"),
        ("numbers", COMPLETION, "prompt", b"1", "items"),
        ("lists to be tokenised", TOKENIZE, "messages", b"[]", "lists and objects"),
    ):
        parts = _repeated(part, num=size // (len(part) + 1))
        value = b'{"x":%b}' % parts if place == "chat_template_kwargs" else parts
        yield Hostile(name, path, _body(model, **{place: value}), None, says)
    fields = {f"x{number:07}": b"0" for number in range(size // 13)}
    yield Hostile("fields", CHAT, _body(model, **fields), None, "texts")
    quoted = b'"' + rb"\"[{" * (size // 8) + b'"'  # quotes and brackets in a text are none
    both = _body(model, prompt=quoted, suffix=_repeated(b"[]", num=size // 6))
    yield Hostile("lists behind a text", COMPLETION, both, None, "lists and objects")


def lists_in_arguments(model: str, size: int) -> Hostile:
    """JSON within JSON, which is decoded for chat templates."""
    calls = b'[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"%b"}}]}]'
    messages = calls % _repeated(b"[]", num=size // 3)
    return Hostile("lists in arguments", CHAT, _body(model, messages=messages), "messages", "lists and objects")


def _body(model: str, **fields: bytes) -> bytes:
    """A request with these fields, whose values are JSON."""
    given = {"model": json.dumps(model).encode(), **fields}
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in given.items()) + b"}"


def _repeated(part: bytes, *, num: int) -> bytes:
    """A list of the same over and over."""
    return b"[" + b",".join([part] * num) + b"]"
