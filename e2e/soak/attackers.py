"""Clients who mean harm, or were written carelessly: what they send must be refused, at once and for good.

Each attack says what may come back. A connection that is closed without a word is an answer to what is no HTTP; 5xx
never is, nor is silence.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

from fairlead_engine_testing import hostile_authors
from soak import neighbours
from soak.verdicts import Outcome, Verdicts

PATIENCE_SECONDS = 45.0
"""Longest time for an attack's answer: above the fleet's own time limits for heads and bodies."""
CUT = 0
"""The status of a connection that was closed without an answer."""
REFUSED = frozenset({CUT, *range(400, 500)}) - {429}
"""What is wrong with these requests will not go away: 429 and 5xx would say so."""
LOADING, DRAINING = "x-fairlead-reason: loading", "x-fairlead-reason: draining"
"""In the head of a 503: the engine has just been started again and cannot judge a request yet, or is being taken away
and takes none, which a gateway tells no client."""


@dataclass(frozen=True)
class Attack:
    """Bytes, how they are sent, and the statuses that are right."""

    name: str
    payload: bytes
    allowed: frozenset[int] = REFUSED
    pause_seconds: float = 0.0
    """Between the halves of the payload."""
    endless: bytes = b""
    """Sent after the payload until the server has had enough, 8 MiB at most."""


class Attackers:
    """Attacks on one server, drawn at random."""

    def __init__(self, url: str, model: str, verdicts: Verdicts, *, may_go: bool) -> None:
        """`may_go`: it may be taken away meanwhile; whether it ended by itself is told by the books."""
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._model = model
        self._verdicts = verdicts
        self._may_go = may_go

    async def one(self, draw: Random) -> None:
        """One attack; its outcome is entered."""
        attack = draw.choice(ATTACKS)(self._model, draw)
        started = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                status, text = await self._send(attack)
        except TimeoutError:
            self._verdicts.failed(attack.name, f"no answer within {PATIENCE_SECONDS:.0f} s", started)
        except OSError as error:
            if self._may_go:
                self._verdicts.enter(attack.name, Outcome.EXCUSED)
                return
            self._verdicts.failed(attack.name, f"no connection: {error!r}", started)
        else:
            if status in attack.allowed:
                self._verdicts.enter(attack.name, Outcome.ANSWERED)
            elif status == 503 and (LOADING in text or (self._may_go and DRAINING in text)):
                self._verdicts.enter(attack.name, Outcome.EXCUSED)
            else:
                self._verdicts.failed(attack.name, f"{status}: {text[-300:]}", started)

    async def _send(self, attack: Attack) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            await self._write(writer, attack)
            head = await reader.readline()
            if not head:
                return CUT, ""
            text = await reader.read(2000)
            return int(head.split()[1]), text.decode(errors="replace")
        except (ConnectionError, IndexError, ValueError):
            return CUT, ""
        finally:
            writer.transport.abort()

    @staticmethod
    async def _write(writer: asyncio.StreamWriter, attack: Attack) -> None:
        """As long as the server listens: what it answered before is read in any case."""
        half = len(attack.payload) // 2
        try:
            writer.write(attack.payload[:half])
            await writer.drain()
            if attack.pause_seconds:
                await asyncio.sleep(attack.pause_seconds)
            writer.write(attack.payload[half:])
            await writer.drain()
            for _ in range(2**23 // len(attack.endless) if attack.endless else 0):
                writer.write(attack.endless)
                await writer.drain()
        except ConnectionError:
            pass


def _post(body: bytes, path: str = "/v1/completions", headers: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n{headers}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def _asking(model: str, **fields: Any) -> bytes:
    return _post(json.dumps({"model": model, "prompt": "the log", "max_tokens": 4, **fields}).encode())


_CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: soak\r\ntransfer-encoding: chunked\r\n\r\n"


def _noise(model: str, draw: Random) -> Attack:
    return Attack("noise", draw.randbytes(draw.randint(1, 5000)) + b"\r\n\r\n")


def _trailers(model: str, draw: Random) -> Attack:
    return Attack("endless trailers", _CHUNKED + b"2\r\n{}\r\n0\r\n", endless=b"x-more: %s\r\n" % (b"y" * 4000))


def _extension(model: str, draw: Random) -> Attack:
    return Attack("endless chunk extension", _CHUNKED + b"2;x=", endless=b"y" * 16384)


def _header(model: str, draw: Random) -> Attack:
    return Attack("endless header", b"GET /v1/models HTTP/1.1\r\nhost: soak\r\nx-a: ", endless=b"y" * 16384)


def _digits(model: str, draw: Random) -> Attack:
    return Attack("length of digits", b"POST /v1/completions HTTP/1.1\r\nhost: soak\r\ncontent-length: %s\r\n\r\n" % (
        b"9" * draw.choice([20, 400, 5000])
    ))  # fmt: skip


def _nested(model: str, draw: Random) -> Attack:
    return Attack("nested JSON", _post(b'{"model":' + b"[" * draw.choice([100, 100_000])))


def _types(model: str, draw: Random) -> Attack:
    field = draw.choice(["max_tokens", "temperature", "n", "stop", "seed", "logprobs", "top_p", "prompt", "stream"])
    value = draw.choice([{"a": 1}, [[[]]], -7, 1e308, "\ud800\u0000", [None]])
    allowed = REFUSED | {200} if (field, value) in (("seed", -7), ("prompt", "\ud800\u0000")) else REFUSED
    if field == "stop" and isinstance(value, str):
        allowed |= {200}
    return Attack(f"{field} of a wrong type", _asking(model, **{field: value}), allowed)


def _salt(model: str, draw: Random) -> Attack:
    return Attack("endless cache_salt", _asking(model, cache_salt="s" * draw.choice([257, 2**20])))


def _impossible(model: str, draw: Random) -> Attack:
    return Attack("impossible prompt", _asking(model, prompt=draw.choice(["a", "the ", "\u00e9"]) * 2**20))


def _too_much(model: str, draw: Random) -> Attack:
    fields: dict[str, Any] = draw.choice(
        [{"n": 100_000}, {"stop": ["a"] * 999}, {"logprobs": 10**6}, {"prompt": [10**9]}]
    )
    return Attack("too much", _asking(model, **fields))


def _grammar(model: str, draw: Random) -> Attack:
    """That is none, explodes, never ends, or asks for what nothing can satisfy."""
    loop = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    deep: Any = {"type": "integer"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    wanted: dict[str, Any] = draw.choice(
        [
            {"regex": "(" * 400},
            {"regex": "((a{1,999}){1,999}){1,999}"},
            {"regex": "(?=a)b"},
            {"grammar": "start: start"},
            {"grammar": "start: /(/"},
            {"json": loop},
            {"json": deep},
            {"json": {"type": "object", "properties": {str(each): {"type": "string"} for each in range(3000)}}},
            {"json": {"type": "integer", "minimum": 2, "maximum": 1}},
            {"choice": []},
        ]
    )
    [kind] = wanted
    body = _asking(model, structured_outputs=wanted, max_tokens=2)
    return Attack(f"grammar, {kind}", body, REFUSED | {200, 429})


def _function(model: str, draw: Random) -> Attack:
    parameters = draw.choice([{"type": "wrong"}, {"$ref": "http://example.com/a"}, [], {"not": {}}, "x" * 10_000])
    name = draw.choice(["f", "", "\n"])
    tool = {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}
    chat = {"model": model, "messages": [{"role": "user", "content": "a"}], "tools": [tool], "tool_choice": "required"}
    return Attack("wrong function", _post(json.dumps({**chat, "max_tokens": 2}).encode(), "/v1/chat/completions"))


def _image(model: str, draw: Random) -> Attack:
    url = draw.choice(["data:image/png;base64,AAAA", "http://169.254.169.254/", "file:///etc/passwd", "x" * 2**20])
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "a"}]
    chat = {"model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 2}
    return Attack("image for a model that sees none", _post(json.dumps(chat).encode(), "/v1/chat/completions"))


def _adapter(model: str, draw: Random) -> Attack:
    name = draw.choice(["none", "pirate:poet", "../pirate", "", "a" * 500])
    return Attack("unknown adapter", _asking(f"{model}:{name}"))


def _unknown(model: str, draw: Random) -> Attack:
    return Attack("unknown model", _asking(f"no-{draw.random()}"))


def _path(model: str, draw: Random) -> Attack:
    path, method = draw.choice(["/", "/v1/none", "/v1/completions/../x", "/%00"]), draw.choice(["GET", "PUT", "BREW"])
    return Attack("wrong path", f"{method} {path} HTTP/1.1\r\nhost: soak\r\n\r\n".encode())


def _halting(model: str, draw: Random) -> Attack:
    pause = draw.choice([0.1, 3.0])
    return Attack("body in two halves", _asking(model, prompt="the log " * 20), REFUSED | {200, 429}, pause)


def _smuggled(model: str, draw: Random) -> Attack:
    both = "transfer-encoding: chunked\r\n"
    return Attack("length and chunks", _post(b"0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n", headers=both))


def _neighbour(model: str, draw: Random) -> Attack:
    """A request that makes a hostile author's model do its worst. Its own engine may say that it is broken."""
    name, streams = draw.choice(neighbours.NAMES), draw.random() < 0.5
    chat = {"model": name, "stream": streams, **hostile_authors.CHAT}
    allowed = REFUSED | {200, 429, 500, 503}
    if draw.random() < 0.5:
        return Attack(f"chat with {name}", _post(json.dumps(chat).encode(), "/v1/chat/completions"), allowed)
    return Attack(f"prompt for {name}", _asking(name, prompt="a" * 40), allowed)


ATTACKS: tuple[Callable[[str, Random], Attack], ...] = (
    _noise, _trailers, _extension, _header, _digits, _nested, _types, _salt, _impossible, _too_much, _unknown, _path,
    _halting, _smuggled, _grammar, _function, _image, _adapter, _neighbour,
)  # fmt: skip
