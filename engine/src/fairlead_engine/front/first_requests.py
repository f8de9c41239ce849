"""A front's own first requests: a few short ones, alone, whose times are the first that is known of a server's steps.
Without them a gateway could not foresee anything for the first replica's first requests."""

import asyncio
import itertools
import logging

import msgspec

from fairlead_engine.front.foreign_engine import ForeignModel
from fairlead_engine.front.front_service import FrontService
from fairlead_protocol.http.client import HttpClient, TimeLimits
from fairlead_protocol.http.client_connection import TransportError, cause_of

log = logging.getLogger(__name__)

_PROMPTS = (16, 64, 256, 1024)
"""Tokens of each prompt."""
_NUM_TOKENS = 18
"""Of each answer: a sample of what lies between tokens, and the first and the last."""
_AT_ONCE = 8
"""Of the shortest, beside one another: what another sequence adds to a step shows in no other way."""
_ROUNDS = 3
"""The first of which is not counted: compilers and caches warm up."""
_LIMITS = TimeLimits(connect=5.0, first_byte=120.0, silence=30.0, whole=180.0)
_FIRST_ID = 100
"""Below are special tokens, mostly."""


async def warm_up(service: FrontService, model: ForeignModel) -> None:
    """Asks, and learns. A server that does not generate text, or refuses, is left with nothing known of it."""
    keeps = service.client.engine.keeps_connections
    http, serial = HttpClient(max_idle=_AT_ONCE if keeps else 0), itertools.count()
    try:
        for turn in range(_ROUNDS):
            for length in _PROMPTS:
                if length + _NUM_TOKENS < model.max_model_len:
                    await _ask(service, http, length, next(serial), is_counted=turn > 0)
            together = (_ask(service, http, _PROMPTS[0], next(serial), is_counted=turn > 0) for _ in range(_AT_ONCE))
            await asyncio.gather(*together)
        service.client.requests.cost.solve()
    except (TransportError, TimeoutError, _Refused) as error:
        log.warning("nothing is known yet of what the server's steps take", extra={"error": cause_of(error)})
    finally:
        http.close()


class _Refused(Exception):
    pass


async def _ask(service: FrontService, http: HttpClient, length: int, serial: int, *, is_counted: bool) -> None:
    """Tokens that no other prompt begins with, so that nothing of it is cached."""
    ids = [_FIRST_ID + serial, *(_FIRST_ID + (serial + index) % 100 for index in range(1, length))]
    body = msgspec.json.encode(
        {"model": service.config.name, "prompt": ids, "max_tokens": _NUM_TOKENS, "ignore_eos": True, "stream": True,
         "temperature": 0}
    )  # fmt: skip
    book, now = service.client.requests, asyncio.get_running_loop().time
    request = book.begin(length, length, is_streamed=is_counted, now=now())
    headers = {"content-type": "application/json"}
    try:
        async with http.request(
            service.config.origin, "POST", "/v1/completions", _LIMITS, headers=headers, body=body
        ) as response:
            if response.status != 200:
                raise _Refused(f"HTTP {response.status}")
            while chunk := await response.chunk():
                book.came(request, chunk.count(b"data:"), now())
    finally:
        book.end(request)
