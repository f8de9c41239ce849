"""The gateways' signals for the operator: `GET /fairlead/v1/signals`, one JSON line per message.

Counters count since the gateway's start; the reader takes differences, so a lost line loses nothing.
"""

from bisect import bisect_left

import msgspec

from fairlead_common.wire.messages import LoadFigures

PATH_SIGNALS = "/fairlead/v1/signals"
INTERVAL_SECONDS = 1.0
"""Seconds between lines; a request without a ready replica sends a line at once."""

_FIRST_SECONDS, _SECONDS_RATIO, _NUM_SECONDS = 0.001, 1.25, 60
SECONDS_BOUNDS = tuple(round(_FIRST_SECONDS * _SECONDS_RATIO**power, 6) for power in range(_NUM_SECONDS))
"""Upper bounds of the buckets of durations: 1 ms to about 9 minutes, each a quarter longer."""
TOKENS_BOUNDS = tuple(float(2**power) for power in range(21))
"""Upper bounds of the buckets of tokens per request: 1 to about a million."""


def count_seconds(buckets: list[int], seconds: float) -> None:
    """Counts one duration. `buckets`: one per bound of `SECONDS_BOUNDS`, and one above; not cumulative."""
    buckets[bisect_left(SECONDS_BOUNDS, seconds)] += 1


def count_tokens(buckets: list[int], num_tokens: float) -> None:
    """Counts one request. `buckets`: one per bound of `TOKENS_BOUNDS`, and one above; not cumulative."""
    buckets[bisect_left(TOKENS_BOUNDS, num_tokens)] += 1


def no_seconds() -> list[int]:
    """Buckets in which nothing was counted."""
    return [0] * (len(SECONDS_BOUNDS) + 1)


def no_tokens() -> list[int]:
    """Buckets in which nothing was counted."""
    return [0] * (len(TOKENS_BOUNDS) + 1)


class ReplicaSignals(LoadFigures, kw_only=True, frozen=True):
    """An engine's last load line without its adapters: perhaps thousands, irrelevant for scaling, in a minute's lines
    of every operator."""

    name: str
    """The pod's name."""
    age_seconds: float
    hangs: bool = False
    """Whether the gateway judges that the engine's step will hardly end."""


class ModelSignals(msgspec.Struct, kw_only=True):
    """One gateway's word on one LLMDeployment."""

    num_arrivals: int = 0
    """Requests that came for it."""
    num_ended: int = 0
    """Ended requests, however they ended."""
    num_answered: int = 0
    """Requests answered to the end, with known output tokens."""
    prompt_tokens: int = 0
    """Of requests that were dispatched."""
    uncached_prompt_tokens: int = 0
    """Tokens of these not in the replica's cache, as predicted at dispatch."""
    output_tokens: int = 0
    """Of answered requests."""
    waiting: int = 0
    """Requests that wait in the gateway now."""
    waiting_uncached_tokens: int = 0
    """Waiting prompts' tokens uncached on the best replica; all tokens without a ready replica."""
    oldest_wait_seconds: float = 0.0
    running: int = 0
    """Requests that are with a replica now."""
    batch_kv_tokens: int = 0
    """Prompt tokens of lines of batches that are with a replica now and are no demand: nothing else counts those."""
    ttft: list[int] = msgspec.field(default_factory=no_seconds)
    """From arrival to first token, counted when the token came; of streamed answers. Buckets of `SECONDS_BOUNDS`."""
    predicted_ttft: list[int] = msgspec.field(default_factory=no_seconds)
    """The same as foreseen on arrival, the wait for a replica included; counted on arrival."""
    tpot: list[int] = msgspec.field(default_factory=no_seconds)
    """Mean time per output token after the first one, counted when the answer ended; of streamed answers with one
    sequence. Buckets of `SECONDS_BOUNDS`."""
    uncached_per_request: list[int] = msgspec.field(default_factory=no_tokens)
    """Uncached prompt tokens of each dispatched request. Buckets of `TOKENS_BOUNDS`."""
    num_ready: int = 0
    """Replicas that this gateway may send to."""
    tokenizer_problem: str = ""
    """Why prompts are left to engines to tokenise; empty where they are not."""
    replicas: dict[str, ReplicaSignals] = msgspec.field(default_factory=dict)
    """By the pod's uid: every replica with a fresh load line."""


class SignalsLine(msgspec.Struct, kw_only=True):
    """One line. Has all models, with zeros where nobody has asked."""

    gateway: str
    """Names this run of the gateway; counters begin anew with each run."""
    uptime_seconds: float
    """Since the gateway's start, by its own monotonic clock: differences between lines are exact."""
    wake: bool = False
    """Whether it comes out of turn: a model without a ready replica got a request, or requests began to wait."""
    draining: bool = False
    models: dict[str, ModelSignals] = msgspec.field(default_factory=dict)
    """By `namespace/name`."""
