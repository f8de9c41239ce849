"""Bodies that cost a careless server far more than they cost their sender, each with what its refusal says.

For tests of gateway and engine alike, which hold requests to one budget.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from fairlead_common.openai.budget import MAX_MESSAGES, MAX_TOOLS

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
TOKENIZE = "/tokenize"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One body."""

    name: str
    path: str
    make: Callable[[], bytes] = field(repr=False)
    """Called by who sends it: all of them at once are large."""
    param: str | None
    """The field that the refusal names; None = the body as a whole."""
    says: str
    """Part of the refusal's message."""

    @property
    def body(self) -> bytes:
        return self.make()

    def __str__(self) -> str:
        return self.name


def hostile_bodies(model: str, size: int) -> Iterator[Hostile]:
    """What gateway and engine both refuse with 400; each body has about `size` bytes."""

    def chat(**fields: bytes) -> bytes:
        return _body(model, messages=b'[{"role":"user","content":"%b"}]' % (b"ahoy " * 400), **fields)

    yield Hostile("a salt", CHAT, lambda: chat(cache_salt=b'"' + b"s" * size + b'"'), "cache_salt", "256")
    message = b'{"role":"user","content":"x"}'
    many = _repeated(message, num=MAX_MESSAGES + 1)
    yield Hostile("messages", CHAT, lambda: _body(model, messages=many), "messages", "4096")
    tools = _repeated(b'{"type":"function"}', num=MAX_TOOLS + 1)
    yield Hostile("tools", CHAT, lambda: _body(model, messages=b"[%b]" % message, tools=tools), "tools", "1024")
    for name, path, place, part, says in (
        ("lists", CHAT, "chat_template_kwargs", b"[]", "lists and objects"),
        ("objects", CHAT, "messages", b"{}", "lists and objects"),
        ("empty messages", CHAT, "messages", b'{"role":""}', "texts"),
        ("texts", COMPLETION, "prompt", b'""', "texts"),
        ("texts that end in a backslash", COMPLETION, "prompt", rb'"\\"', "texts"),
        ("numbers", COMPLETION, "prompt", b"1", "items"),
        ("lists to be tokenised", TOKENIZE, "messages", b"[]", "lists and objects"),
    ):
        yield Hostile(name, path, partial(_filled, model, place, part, size), None, says)

    def fields() -> bytes:
        return _body(model, **{f"x{number:07}": b"0" for number in range(size // 13)})

    def lists_behind_a_text() -> bytes:
        quoted = b'"' + rb"\"[{" * (size // 8) + b'"'  # quotes and brackets in a text are none
        return _body(model, prompt=quoted, suffix=_repeated(b"[]", num=size // 6))

    yield Hostile("fields", CHAT, fields, None, "texts")
    yield Hostile("lists behind a text", COMPLETION, lists_behind_a_text, None, "lists and objects")


def lists_in_arguments(model: str, size: int) -> Hostile:
    """JSON within JSON, which is decoded for chat templates."""
    calls = b'[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"%b"}}]}]'

    def make() -> bytes:
        return _body(model, messages=calls % _repeated(b"[]", num=size // 3))

    return Hostile("lists in arguments", CHAT, make, "messages", "lists and objects")


def _filled(model: str, place: str, part: bytes, size: int) -> bytes:
    """A request whose field is full of the same part."""
    parts = _repeated(part, num=size // (len(part) + 1))
    return _body(model, **{place: b'{"x":%b}' % parts if place == "chat_template_kwargs" else parts})


def _body(model: str, **fields: bytes) -> bytes:
    """A request with these fields, whose values are JSON."""
    given = {"model": json.dumps(model).encode(), **fields}
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in given.items()) + b"}"


def _repeated(part: bytes, *, num: int) -> bytes:
    """A list of the same over and over."""
    return b"[" + b",".join([part] * num) + b"]"
