"""Requests for tests, with everything a test does not care about filled in."""

from collections.abc import Iterable
from typing import Any

from fairlead_engine.types import EngineRequest, Pooling, Reading, SamplingParams


def make_request(
    request_id: str = "request",
    prompt: Iterable[int] = (1, 2, 3),
    *,
    arrival_time: float = 0.0,
    priority: int = 0,
    cache_salt: str | None = None,
    adapter: str | None = None,
    pooling: Pooling | None = None,
    reading: Reading = Reading.UNIT,
    second_start: int | None = None,
    part_of: str | None = None,
    **sampling: Any,
) -> EngineRequest:
    """A greedy request; `sampling` are fields of `SamplingParams`."""
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(**{"temperature": 0.0, **sampling}),
        arrival_time=arrival_time,
        priority=priority,
        cache_salt=cache_salt,
        adapter=adapter,
        pooling=pooling,
        reading=reading,
        second_start=second_start,
        part_of=part_of,
    )
