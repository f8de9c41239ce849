"""An engine's inputs and outputs: requests with their parameters, outputs, loads.

Imported everywhere, and imports nearly nothing: no tensors, no HTTP, no I/O. `sampling_params.py` has a request's
parameters, declared by means of `parameters.py`; `sequences.py`, `batch.py` and `adapters.py` are shared by core and
runner.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from fairlead_common.models.image_settings import ImageSettings
from fairlead_common.models.model_task import GENERATES as GENERATES
from fairlead_common.models.model_task import Kind as Kind
from fairlead_common.models.model_task import ModelTask as ModelTask
from fairlead_common.models.model_task import Pooling as Pooling
from fairlead_common.models.model_task import Reading as Reading
from fairlead_common.wire.blocks import ImageSpan
from fairlead_common.wire.messages import LoadFigures
from fairlead_engine.types.sampling_params import LOGPROBS as LOGPROBS
from fairlead_engine.types.sampling_params import MAX_ANSWER_LOGPROBS as MAX_ANSWER_LOGPROBS
from fairlead_engine.types.sampling_params import MAX_LOGPROBS as MAX_LOGPROBS
from fairlead_engine.types.sampling_params import MAX_SEED as MAX_SEED
from fairlead_engine.types.sampling_params import MOST_LOOKED_BACK as MOST_LOOKED_BACK
from fairlead_engine.types.sampling_params import Grammar as Grammar
from fairlead_engine.types.sampling_params import SamplingParams as SamplingParams
from fairlead_engine.types.sampling_params import ThinkingBudget as ThinkingBudget
from fairlead_engine.types.sampling_params import dry_breakers as dry_breakers


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
    """The engine could not go on with the request; the output carries a message."""
    TOOL_CALLS = "tool_calls"
    """As `STOP`; set by the server for an answer that calls tools."""
    INVALID = "invalid"
    """The request asks for the impossible, discovered late; the output carries a message."""


class Injectable(msgspec.Struct, frozen=True, array_like=True):
    """An answer that allows injections, and its places where no token may be put in."""

    blocks: list[tuple[int, int]]
    """Pairs of tokens that open and close an unbreakable block."""
    begins_inside: bool = False
    """Whether a turn of the model begins inside a block, opened by the prompt's last tokens."""


class Injected(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that were put into an answer."""

    mark: str
    """The sender's name for the injection."""
    num_tokens: int


class PromptImage(msgspec.Struct, frozen=True):
    """An image in a prompt; each patch of the image has one token."""

    start: int
    """Position of its first token in the prompt."""
    rows: int
    """Height in patches."""
    columns: int
    """Width in patches."""
    digest: bytes
    """Of size and pixels; identifies the image in block hashes."""
    pixels: bytes
    """The image at the size of its patches: rows of red, green and blue, a byte each."""

    @property
    def num_tokens(self) -> int:
        return self.rows * self.columns

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.start + self.num_tokens

    @property
    def span(self) -> ImageSpan:
        return ImageSpan(self.start, self.end, self.digest)


def fit_prompt(images: Sequence[PromptImage], settings: ImageSettings | None, num_tokens: int) -> bool:
    """Whether a model with these settings takes the images in a prompt of `num_tokens`: in order, without overlap, each
    with the pixels of its patches."""
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
    """A prompt as ids and its parameters, from the HTTP process to the core."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    """With `pooling`, `max_tokens` is 0."""
    arrival_time: float
    """Wall-clock seconds since the epoch."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    adapter: str | None = None
    """One of `EngineLoad.adapters`; None = the plain model. Prefixes are shared only under the same adapter."""
    hold: str | None = None
    """Id of the held prompt before this prompt (`EngineClient.hold`); its images and its adapter are used too."""
    priority: int = 0
    pooling: Pooling | None = None
    """How a vector is made of the prompt's hidden states; None = text is generated."""
    reading: Reading = Reading.UNIT
    """With `pooling`: what is computed from the vector."""
    second_start: int | None = None
    """Start of the second text, for models that distinguish two; None = one text."""
    images: tuple[PromptImage, ...] = ()
    """Images of the prompt's image tokens, in order."""
    part_of: str | None = None
    """Id of the API request with several prompts or answers; None = no further parts."""
    num_parts_before: int = 0
    """Parts of the same API request that were sent before, ended ones too."""
    max_queue_seconds: float | None = None
    """Refuse the request when its predicted wait is longer; None = when too many prompt tokens wait."""
    injectable: Injectable | None = None
    """Where tokens may be put into its answer; None = nowhere."""
    keep_seconds: float | None = None
    """Retention hint: seconds after the answer for which its blocks are evicted after blocks without a hint; None = no
    hint."""
    keep_prefixes: tuple[tuple[float, int], ...] = ()
    """The same for so many tokens at the beginning: seconds and number."""


class HeldPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The common beginning of several requests (`EngineRequest.hold`)."""

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
    """Tokens likelier than the chosen one."""


class SequenceOutput(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """What one step did for one sequence."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    """Prompt tokens from the prefix cache at the first admission."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry per new token, when asked for."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """The prompt's tokens from the second on, when asked for; complete with the first new token or before."""
    embedding: bytes | None = None
    """The prompt's vector, or the result of `reading`, as little-endian float32, with the last output."""
    stop_token_id: int | None = None
    """The stop token at the end of `new_token_ids`; None = the sequence did not end with a stop token."""
    first_scheduled_time: float | None = None
    """Start of the sequence's first step in wall-clock seconds; on its first output only."""
    message: str | None = None
    """For `FinishReason.ERROR`, `INVALID` and `REJECTED`: what happened, fit to show the client."""
    field: str | None = None
    """For `INVALID`: the request's field at fault."""
    injected: Injected | None = None
    """An injection behind all tokens sent so far; such an output has nothing else."""


class EngineLoad(LoadFigures, kw_only=True, frozen=True, omit_defaults=True):
    """The core's present load and its counters since the start; sent with every step, without unused fields."""

    held_back: int = 0
    """Requests that wait, beside `waiting`, because their client request is at its limit of slots."""
    num_steps: int = 0
    num_preemptions: int = 0
    num_masks: int = 0
    """Tokens chosen under a grammar."""
    mask_seconds: float = 0.0
    """Time spent on allowed tokens of grammars."""
    num_drafts: int = 0
    """Sequences with drafts, summed over steps."""
    num_draft_tokens: int = 0
    """Draft tokens of all those."""
    num_accepted_per_position: tuple[int, ...] = ()
    """Accepted drafts by position in the draft; empty without drafts."""
    virtual_tokens: dict[str, int] = msgspec.field(default_factory=dict)
    """Context tokens of each soft prompt among `adapters`, by name."""
    num_adapters_on_device: int = 0
    num_adapters_placed: int = 0
    """Copies of an adapter to the device."""
    num_adapters_read: int = 0
    """Readings of an adapter's folder."""
    adapter_read_seconds: float = 0.0
    """Time of these readings, until the adapter could be placed."""
    num_blocks_saved: int = 0
    """KV blocks copied to the host's memory for lack of room on the device."""
    num_blocks_loaded: int = 0
    """KV blocks copied back for a prompt that begins with them."""
    num_failed_checks: int = 0
    """Failed checks of the idle engine's blocks, each of which empties the prefix cache."""
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
        """Requests that wait or run."""
        return self.running + self.waiting + self.held_back


NO_LOAD = EngineLoad(
    waiting=0, running=0, queued_prefill_tokens=0, kv_blocks_free=0, kv_blocks_total=0, kv_tokens=0, token_budget=0,
    max_num_seqs=0,
)  # fmt: skip
"""Load of a core that has not started."""


class EngineInfo(msgspec.Struct, kw_only=True, frozen=True):
    """Facts about the engine after loading and a real forward pass."""

    architecture: str
    dtype: str
    device: str
    attention_backend: str
    """`EngineConfig.attention_backend`, with `auto` resolved."""
    kv_cache_dtype: str
    vocab_size: int
    hidden_size: int
    """Numbers of a vector of `/v1/embeddings`."""
    max_model_len: int
    max_position_embeddings: int
    """Longest context of the model's training; above `max_model_len` where the latter was set or lowered."""
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
    """Adapters loaded at the start; `EngineLoad.adapters` has the current ones."""
    task: ModelTask = GENERATES
    """Kinds of requests that the model serves."""
    shares_prefixes: bool = True
    """Whether prompts with a common beginning share its computation."""
    keeps_states: bool = False
    """Whether the model is recurrent; see `ModelBrief.keeps_states`."""
    start_seconds: dict[str, float]
    """Seconds by phase of the start: import (from the process's beginning on), load, cache, compile, warm_up."""
