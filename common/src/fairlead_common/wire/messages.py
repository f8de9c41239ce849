"""The messages of the model-server protocol: what engine and gateway send each other over HTTP.

One schema per message; unknown fields are ignored on reading, so that either side may be newer.
"""

from typing import Annotated, Any

import msgspec

from fairlead_common import PROTOCOL_VERSION
from fairlead_common.tokens.embedding_prompts import EmbeddingPrompts

PATH_MODEL = "/fairlead/v1/model"
PATH_DRAIN = "/fairlead/v1/drain"
PATH_KV_BLOCKS = "/fairlead/v1/kv/blocks"
PATH_KV_EVENTS = "/fairlead/v1/kv/events"

HEADER_REQUEST_ID = "x-request-id"
HEADER_REPLICA = "x-fairlead-replica"
HEADER_CACHED_TOKENS = "x-fairlead-cached-tokens"
HEADER_PREDICTED_CACHED_TOKENS = "x-fairlead-predicted-cached-tokens"
HEADER_PREDICTED_TTFT_MS = "x-fairlead-predicted-ttft-ms"
"""Milliseconds from arrival to first token, predicted on arrival when the gateway had read the prompt. Includes a guess
at the wait in the queue."""
HEADER_QUEUE_MS = "x-fairlead-queue-ms"
"""Milliseconds that the request waited in the queue of the gateway before dispatch."""
HEADER_DISPATCH = "x-fairlead-dispatch"
"""`<gateway>:<n>` on a request to an engine: the gateway's n-th request to it, counted from 1 (`LoadLine.seen`)."""
HEADER_SESSION = "x-session-id"
"""Names the session of a request, where the client names one by a header."""
PRIVATE_FIELD_PREFIX = "fairlead_"
"""Prefix of fields that only gateways may send to engines: dropped from requests of clients, and named in no error."""
FIELD_TOKENS = f"{PRIVATE_FIELD_PREFIX}prompt_tokens"
"""Top-level field of a request to an engine: the prompts tokenised by the gateway (`PromptTokens`)."""
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

CODE_ENGINE_DEAD = "engine_dead"
"""`code` of the error that ends a request, or a stream, after the core of the engine died: computed tokens are lost."""


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of things, small enough that arithmetic in floats stays finite."""
NonNegative = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
"""Seconds, and ratios; the same."""
ShortText = Annotated[str, msgspec.Meta(max_length=1024)]
"""A name; the bound limits the memory of a gateway, which keeps names."""
MAX_ADAPTERS = 4096
"""Most adapters in a message of an engine."""


class ModelBrief(msgspec.Struct, kw_only=True, frozen=True):
    """`ModelInfo` without tokenizer and chat template, which have megabytes and are skipped unread."""

    protocol_version: Count = PROTOCOL_VERSION
    engine_version: ShortText
    served_name: ShortText
    digest: ShortText
    """Names tokenizer and chat template; equal digests tokenise equally."""
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    """Tokens per KV-cache block."""
    max_model_len: Count
    """Longest prompt plus completion, in tokens."""
    max_position_embeddings: Count | None = None
    """Longest context the model was made for, in tokens; None = not told."""
    max_num_seqs: Count
    """Sequences that one step may run."""
    max_num_queued_tokens: Count
    """Prompt tokens that may wait in the engine; requests beyond get 429 and `engine-full`."""
    max_num_batched_tokens: Count
    """Token budget of one step."""
    num_kv_blocks: Count
    dtype: ShortText
    device: ShortText
    architecture: ShortText
    adapters: Annotated[list[ShortText], msgspec.Meta(max_length=MAX_ADAPTERS)] = []
    """Adapters that requests may name in `model`, as of this message; loads report later changes."""
    shares_prefixes: bool = True
    """Whether prompts with a common beginning share computed KV blocks."""
    keeps_states: bool = False
    """Whether the model is recurrent: a cached prefix is of use up to the deepest block whose state is kept. Kept
    states are listed as blocks (`state_hash`)."""
    joins_pairs: bool = False
    """Whether two texts to compare form one prompt, as for a cross-encoder; otherwise each text is a prompt."""
    image_token: str | None = None
    """Text of the token for an image in a rendered chat, once per image; None = the model sees no images."""
    image_frame: tuple[ShortText, ShortText] | None = None
    """Texts before and behind this token, of which chat templates write the first alone (`PromptTokenizer.seeing`);
    None = they write the token."""
    instructs_tools: bool = False
    """Whether tools are told in a message of the chat, because the chat template has no place for tools."""
    capabilities: Annotated[list[ShortText], msgspec.Meta(max_length=16)] = []
    """What the model can do, in Ollama's words: `completion`, `embedding`, `tools`, `thinking`, `vision`; empty = not
    told."""


class ModelInfo(ModelBrief, kw_only=True, frozen=True):
    """Reply of `GET /fairlead/v1/model`: what a gateway needs to prepare prompts for this engine."""

    tokenizer_json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    embedding_prompts: EmbeddingPrompts = EmbeddingPrompts()
    """Texts in front of texts that become vectors."""


class PromptTokens(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """`FIELD_TOKENS`: token ids of the prompts, in the order of the request (a chat has one prompt).

    An engine with a different tokenizer digest ignores the ids and tokenises the request.
    """

    digest: str
    prompts: list[list[int]]
    second_starts: list[int | None] = []
    """Of each prompt, index of the first token of the second text of a pair; None = no pair, or no marked second text.
    As many as prompts, or empty."""


class StoredBlocks(msgspec.Struct, kw_only=True, frozen=True):
    """A chain of blocks that can be reused: each hash is the parent of the next."""

    parent: str | None
    """Hash of the block before the first; None where the first begins a prompt."""
    hashes: list[str]
    tier: str = "device"
    """Memory that holds the blocks; `device` is the memory that the model computes in."""


class KVBlocks(msgspec.Struct, kw_only=True, frozen=True):
    """Reply of `GET /fairlead/v1/kv/blocks`: every reusable block, as of `seq`. Parents come before their children
    where both are there; a child may have outlived its parent."""

    epoch: str
    """Names this run of the engine. After a restart the epoch differs and sequence numbers begin anew."""
    seq: int
    block_size: int
    blocks: list[StoredBlocks]


class StreamLine(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One line of `GET /fairlead/v1/kv/events`, a JSON object: either a change of the blocks or a load.

    A change: `seq` is one more than the change before; first everything in `removed` goes, then everything in
    `stored` comes. A load: `seq` 0 and `load` set.
    """

    seq: int = 0
    stored: list[StoredBlocks] = []
    removed: list[str] = []
    load: "LoadLine | None" = None


_NO_SECONDS = ("residual", "tokens_per_decode")


class StepCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds per unit of each kind of work in a step: what an engine has learnt about itself. All 0 until known."""

    base: NonNegative = 0.0
    prefill_token: NonNegative = 0.0
    prefill_context: NonNegative = 0.0
    """Per prefill token and token of context before it."""
    decode_seq: NonNegative = 0.0
    kv_token: NonNegative = 0.0
    """Per token of running sequences in the cache."""
    residual: NonNegative = 0.0
    """Typical relative error of the engine's own recent predictions with these numbers."""
    prefill_step: NonNegative = 0.0
    """On top of `base`, for a step that computes prompt tokens, however many."""
    tokens_per_decode: Annotated[float, msgspec.Meta(ge=1.0, le=1e6)] = 1.0
    """Tokens, not seconds: tokens per step of a running sequence, above 1 where drafts are accepted."""

    @property
    def seconds(self) -> dict[str, float]:
        """The costs in seconds, by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in _NO_SECONDS}

    @property
    def is_known(self) -> bool:
        """Whether anything has been learnt."""
        return any(value > 0.0 for value in self.seconds.values())


class LoadFigures(msgspec.Struct, kw_only=True, frozen=True):
    """The load of an engine, in every message with a load. Declare a new figure here, count it in the engine core
    (`Engine.load`), and read it in the component that decides by it."""

    waiting: Count
    """Requests that no step has touched yet."""
    running: Count
    queued_prefill_tokens: Count
    """Prompt tokens of waiting and running requests still to be computed. Excludes tokens that waiting requests are
    expected to find in the cache: cached, or being computed for other requests, at the last lookup of each."""
    kv_blocks_free: Count
    """Free blocks, including blocks with reusable prefixes."""
    kv_blocks_total: Count
    kv_blocks_host: Count = 0
    """Blocks that the host's memory has room for beside the device's: prefixes there can be reused, too."""
    kv_states: Count = 0
    """States that a recurrent model can keep, which are listed beside the blocks."""
    kv_tokens: Count
    """Tokens of running requests that are in the cache: what each decode step reads."""
    token_budget: Count
    """Tokens that one step may compute."""
    max_num_seqs: Count
    """Sequences that one step may run: as many of the present sequences as the batch weight of the engine allows."""
    step_cost: StepCost = StepCost()
    adapters: dict[str, NonNegative] = {}
    """Every adapter served now → measured seconds that a request would wait for loading: 0 for an adapter on the
    device."""
    step_age_seconds: NonNegative = 0.0
    """How long the running step has been running; 0 when idle. Told by the engine's HTTP process."""
    draining: bool = False
    """Told by the engine's HTTP process."""

    @property
    def figures(self) -> dict[str, Any]:
        """All figures by name, for use in another message."""
        return {name: getattr(self, name) for name in LoadFigures.__struct_fields__}


class LoadLine(LoadFigures, kw_only=True, frozen=True):
    """How loaded an engine is: every 100 ms while busy, every second while idle, and at once when it becomes full,
    stops being full, or begins to drain. Stale after 3 s."""

    adapters: Annotated[dict[ShortText, NonNegative], msgspec.Meta(max_length=MAX_ADAPTERS)] = {}
    seq: Count = 0
    """The last change of the blocks that had happened."""
    seen: Annotated[dict[Annotated[str, msgspec.Meta(max_length=128)], Count], msgspec.Meta(max_length=1024)] = {}
    """Gateway → highest request number (`HEADER_DISPATCH`) that this load includes, counting refused and finished
    requests. The figures above exclude requests with a higher number."""


LOAD_STALE_SECONDS = 3.0
"""Age from which a load is ignored."""
