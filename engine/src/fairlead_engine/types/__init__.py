"""What goes into an engine and what comes out: requests with their parameters, outputs, loads.

Everyone imports this package and it imports nearly nobody: no tensors, no HTTP, no I/O. `sampling_params.py` has what a
request may ask of its answer, declared as `parameters.py` says; `sequences.py`, `batch.py` and `adapters.py` have what
the core and the runner share.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from fairlead_engine.types.sampling_params import (
    LOGPROBS,
    MAX_ANSWER_LOGPROBS,
    MAX_LOGPROBS,
    MAX_SEED,
    MOST_LOOKED_BACK,
    Grammar,
    SamplingParams,
    ThinkingBudget,
    dry_breakers,
)
from fairlead_protocol.blocks import ImageSpan
from fairlead_protocol.messages import LoadFigures
from fairlead_protocol.models.image_settings import ImageSettings
from fairlead_protocol.models.model_task import GENERATES, Kind, ModelTask, Pooling, Reading

__all__ = [
    "GENERATES",
    "LOGPROBS",
    "MAX_ANSWER_LOGPROBS",
    "MAX_LOGPROBS",
    "MAX_SEED",
    "MOST_LOOKED_BACK",
    "NO_LOAD",
    "EngineInfo",
    "EngineLoad",
    "EngineRequest",
    "FinishReason",
    "Grammar",
    "Held",
    "Injectable",
    "Injected",
    "Kind",
    "ModelTask",
    "Pooling",
    "PromptImage",
    "Reading",
    "SamplingParams",
    "SequenceOutput",
    "ThinkingBudget",
    "TokenLogprobs",
    "dry_breakers",
    "fit_prompt",
]


class FinishReason(StrEnum):
    """Why a sequence ended. Every sequence ends with exactly one of these."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the model's context is used up."""
    ABORT = "abort"
    """The client went away or the drain's time was over."""
    REJECTED = "rejected"
    """The queue was full: nothing was computed, and another replica may be asked."""
    ERROR = "error"
    """The engine could not go on with it; the output carries a message."""
    TOOL_CALLS = "tool_calls"
    """As `STOP`, of an answer that calls tools: the core does not know them."""
    INVALID = "invalid"
    """It asks for what cannot be done, which turned out late; the output carries a message."""


class Injectable(msgspec.Struct, frozen=True, array_like=True):
    """Of an answer that tokens may be put into while it is generated: where they may not."""

    blocks: list[tuple[int, int]]
    """Pairs of tokens that stand before and behind what must stay whole."""
    begins_inside: bool = False
    """Whether a turn of the model begins in such a block, which the prompt's last tokens open."""


class Injected(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that were put into an answer."""

    mark: str
    """Its name, as whoever sent it has it."""
    num_tokens: int


class PromptImage(msgspec.Struct, frozen=True):
    """An image whose place in a prompt its tokens hold, a token for each patch of it."""

    start: int
    """Position of its first token in the prompt."""
    rows: int
    """Its height and"""
    columns: int
    """its width, in patches."""
    digest: bytes
    """Of size and pixels: what tells it from all others in the names of blocks."""
    pixels: bytes
    """Of the image as large as its patches: rows of red, green and blue, a byte each."""

    @property
    def num_tokens(self) -> int:
        return self.rows * self.columns

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.start + self.num_tokens

    @property
    def span(self) -> ImageSpan:
        """As block hashes take it."""
        return ImageSpan(self.start, self.end, self.digest)


def fit_prompt(images: Sequence[PromptImage], settings: ImageSettings | None, num_tokens: int) -> bool:
    """Whether a prompt of so many tokens may have these images, of a model with these settings: in order, none over
    another, and each with the pixels that its patches have."""
    if settings is None:
        return False
    ends = [0, *(image.end for image in images)]
    return ends[-1] <= num_tokens and all(
        image.start >= end
        and min(image.rows, image.columns) > 0
        and len(image.pixels) == 3 * image.num_tokens * settings.factor**2
        for image, end in zip(images, ends, strict=False)
    )


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the HTTP process sends the core: a prompt as ids, and how to continue it."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    """With `pooling`, `max_tokens` is 0."""
    arrival_time: float
    """Wall-clock seconds since the epoch."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    adapter: str | None = None
    """One of `EngineLoad.adapters`; None = the model as it is. Prefixes are shared only under the same one."""
    hold: str | None = None
    """Its prompt stands behind what is held by this id (`EngineClient.hold`), whose images and adapter it has, whatever
    has the adapter's name now."""
    priority: int = 0
    pooling: Pooling | None = None
    """What vector is made of the prompt's hidden states; None = text is generated."""
    reading: Reading = Reading.UNIT
    """With `pooling`: what is made of the vector."""
    second_start: int | None = None
    """Where the second of two texts begins, of a model that tells them apart; None = the prompt is one."""
    images: tuple[PromptImage, ...] = ()
    """What its image tokens stand for, in order, of a model that sees."""
    part_of: str | None = None
    """The API request that it is one of several prompts or answers of; None = it stands alone."""
    max_queue_seconds: float | None = None
    """Refuse it when it would wait longer than this by prediction; None = when too many prompt tokens wait."""
    injectable: Injectable | None = None
    """Where tokens may be put into its answer; None = nowhere."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What several requests begin with (`EngineRequest.hold`)."""

    prompt_token_ids: list[int]
    images: tuple[PromptImage, ...] = ()
    adapter: str | None = None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of one chosen token, from the raw logits."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]
    """The likeliest (token id, log-probability) pairs, best first."""
    rank: int = 0
    """How many tokens were likelier than the chosen one."""


class SequenceOutput(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """What one step did for one sequence."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache when it was first scheduled."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry per new token, when asked for."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """The next tokens of the prompt, from the second one on, when asked for; all come before the first new token or
    with it."""
    embedding: bytes | None = None
    """The prompt's vector, or what is made of it, as little-endian float32, with its end, when asked for."""
    stop_token_id: int | None = None
    """The token that ended it, when one did; it is the last of `new_token_ids`."""
    first_scheduled_time: float | None = None
    """Wall-clock seconds when the first step with this sequence began; on its first output only."""
    message: str | None = None
    """For `FinishReason.ERROR`, `INVALID` and `REJECTED`: what happened, fit to show the client."""
    field: str | None = None
    """For `INVALID`: the request's field whose fault that is."""
    injected: Injected | None = None
    """What was put in behind all tokens that were told; such an output tells nothing else."""


class EngineLoad(LoadFigures, kw_only=True, frozen=True, omit_defaults=True):
    """How loaded the core is now, and its counters since start; sent with every step's outputs, without what is not
    used."""

    held_back: int = 0
    """Requests that wait beside `waiting` for others of the same client request, which hold all the slots that one may:
    they stand in nobody's way."""
    num_steps: int = 0
    num_preemptions: int = 0
    num_masks: int = 0
    """Tokens that were chosen under a grammar,"""
    mask_seconds: float = 0.0
    """and how long it took to find which ones those might be."""
    num_drafts: int = 0
    """Times that a sequence had drafts in a step,"""
    num_draft_tokens: int = 0
    """how many tokens those were,"""
    num_accepted_per_position: tuple[int, ...] = ()
    """and how many stood, of the first ones, of the second ones …; empty where there never are any."""
    virtual_tokens: dict[str, int] = msgspec.field(default_factory=dict)
    """Of those of `adapters` that are soft prompts: by name, how much of the context each takes."""
    num_adapters_on_device: int = 0
    num_adapters_placed: int = 0
    """Times an adapter was brought to the device,"""
    num_adapters_read: int = 0
    """and one was read from its folder,"""
    adapter_read_seconds: float = 0.0
    """and how long that took, until it could be placed."""
    num_blocks_saved: int = 0
    """KV blocks that were copied to the host's memory when the device had no room for them."""
    num_blocks_loaded: int = 0
    """KV blocks that were copied back for a prompt that begins with them."""
    num_failed_checks: int = 0
    """Times the idle engine found its books of blocks wrong and emptied its prefix cache."""
    prefix_query_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hit_tokens: int = 0
    """Prompt tokens found there."""
    prompt_tokens: int = 0
    """Prompt tokens of finished prefills."""
    generation_tokens: int = 0
    last_step_tokens: int = 0
    last_step_seconds: float = 0.0

    @property
    def num_sequences(self) -> int:
        """All that are there."""
        return self.running + self.waiting + self.held_back


NO_LOAD = EngineLoad(
    waiting=0, running=0, queued_prefill_tokens=0, kv_blocks_free=0, kv_blocks_total=0, kv_tokens=0, token_budget=0,
    max_num_seqs=0,
)  # fmt: skip
"""Of a core that has not started."""


class EngineInfo(msgspec.Struct, kw_only=True, frozen=True):
    """What the core knows once the model is loaded and a real forward pass has run."""

    architecture: str
    dtype: str
    device: str
    attention_backend: str
    """Name of what computes attention (`EngineConfig.attention_backend`, `auto` resolved)."""
    kv_cache_dtype: str
    """`EngineConfig.kv_cache_dtype`."""
    vocab_size: int
    max_model_len: int
    max_position_embeddings: int
    """Longest context the model was made for; more than `max_model_len` where that was set or lowered."""
    block_size: int
    num_kv_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_tokens: int
    eos_token_ids: tuple[int, ...]
    num_parameters: int
    weight_bytes: int
    kv_cache_bytes: int
    adapters: tuple[str, ...] = ()
    """Names of the adapters that it began with; `EngineLoad.adapters` has those that requests may ask for now."""
    task: ModelTask = GENERATES
    """What requests may ask of the model, and how."""
    shares_prefixes: bool = True
    """Whether what was computed for one prompt spares another that begins alike."""
    start_seconds: dict[str, float]
    """How long each phase of the start took: import (from the process's beginning on), load, cache,
    compile, warm_up."""
