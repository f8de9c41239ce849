"""The messages of the model-server protocol: what engine and gateway send each other over HTTP.

One schema per message; unknown fields are ignored on reading, so that either side may be newer.
"""

import msgspec

from fairlead_protocol import PROTOCOL_VERSION

PATH_MODEL = "/fairlead/v1/model"
PATH_DRAIN = "/fairlead/v1/drain"

HEADER_REQUEST_ID = "x-request-id"
HEADER_REPLICA = "x-fairlead-replica"
HEADER_CACHED_TOKENS = "x-fairlead-cached-tokens"
HEADER_REASON = "x-fairlead-reason"
"""On a refusal: one of the reasons below."""

REASON_ENGINE_FULL = "engine-full"
"""429 from an engine whose queue is full; nothing was started, so any replica may be asked instead."""
REASON_DRAINING = "draining"
"""503 from an engine that is shutting down; nothing was started, so another replica may be asked instead."""

REASON_LOADING = "loading"
"""503 from an engine that is still loading its model."""
REASON_ENGINE_DEAD = "engine-dead"
"""503 of `/ready` when the engine's core died or hangs; only a restart helps."""


class ModelInfo(msgspec.Struct, kw_only=True, frozen=True):
    """Reply of `GET /fairlead/v1/model`: what a gateway needs to prepare prompts for this engine."""

    protocol_version: int = PROTOCOL_VERSION
    engine_version: str
    served_name: str
    digest: str
    """Names tokenizer and chat template; equal digests tokenise equally."""
    tokenizer_json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    block_size: int
    """Tokens per KV-cache block."""
    max_model_len: int
    """Longest prompt plus completion, in tokens."""
    max_num_seqs: int
    """Sequences that one step may run."""
    max_num_waiting: int
    """Requests that may wait in the engine; more are refused with 429 and `engine-full`."""
    max_num_batched_tokens: int
    """Token budget of one step."""
    num_kv_blocks: int
    dtype: str
    device: str
    architecture: str
