"""What goes into an engine and what comes out: requests with their parameters, outputs, loads.

Everyone imports this module and it imports nearly nobody: no tensors, no HTTP, no I/O.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec

from fairlead_engine.image_settings import ImageSettings
from fairlead_engine.parameters import By, Encode, Parameter, bounded
from fairlead_protocol.blocks import ImageSpan
from fairlead_protocol.messages import LoadFigures

MAX_LOGPROBS = 20
MAX_ANSWER_LOGPROBS = 500_000
"""Log-probabilities of an answer that is not streamed: of all its choices, each token's own and its alternatives'. One
takes about 90 bytes, so that gateways take the answer as well."""
MAX_SEED = 2**63 - 1
_INT32 = 2**31 - 1
MOST_LOOKED_BACK = 4096
"""Tokens that are looked at for repetitions."""
_MAX_DIGITS = 10
"""Of a token id; no vocabulary is so large."""


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


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _token_biases(value: dict[str, float]) -> dict[int, float]:
    """Raises ValueError for a key that is not an id as it is written: of "9" and "09" one would be lost."""
    for name in value:
        if not (name.isascii() and name.isdigit()) or len(name) > _MAX_DIGITS or str(int(name)) != name:
            raise ValueError(f"logit_bias must map token ids to numbers; {name[:80]!r} is no token id")
    return {int(name): bias for name, bias in value.items()}


def _allowed(value: list[int]) -> tuple[int, ...]:
    if not value:
        raise ValueError("allowed_token_ids is empty; name the tokens that may be chosen, or leave it out")
    return tuple(value)


def _bad_words(encode: Encode, value: list[str]) -> tuple[tuple[int, ...], ...]:
    """Each as it is written at the beginning of a text, and behind a space."""
    words = []
    for text in value:
        word = encode(text.lstrip())
        if not word:
            raise ValueError("bad_words must not hold a text without tokens")
        words.append(tuple(word))
        behind_space = encode(" " + text.lstrip())
        if behind_space not in ([], word):
            words.append(tuple(behind_space))
    return tuple(words)


def dry_breakers(encode: Encode, value: list[str]) -> tuple[int, ...]:
    """The token that each of them ends a word with."""
    if not all(value):
        raise ValueError("dry_sequence_breakers must not hold an empty text")
    return tuple(dict.fromkeys(encode("a" + text)[-1] for text in value))


class Grammar(msgspec.Struct, frozen=True):
    """What an answer is to keep to."""

    text: str
    """As llguidance takes it: its JSON, or Lark."""
    field: str = "grammar"
    """The request's field that it was made of, for errors."""


class ThinkingBudget(msgspec.Struct, frozen=True):
    """How long an answer may reason before the end of its reasoning is forced."""

    num_tokens: int
    begin: tuple[int, ...]
    """The marker before reasoning,"""
    end: tuple[int, ...]
    """and the one behind it."""
    has_begun: bool = False
    """The prompt ends with the first one."""


LOGPROBS = Parameter("The same, and so many alternatives of each.", low=0, high=MAX_LOGPROBS)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens, and when to stop. Raises ValueError, naming the field, for a value out of range.

    A field with a `Parameter` is one that clients may send: schemas, checks and the reference are made from it.
    """

    temperature: Annotated[
        float, Parameter("0 = always the likeliest token.", low=0.0, high=100.0, from_model=True)
    ] = 1.0
    top_p: Annotated[
        float,
        Parameter(
            "Only the likeliest tokens whose shares come to this.", low=0.0, high=1.0, above=True, from_model=True
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Parameter("Only so many of the likeliest tokens; 0 and -1 = all.", low=-1, high=_INT32, from_model=True),
    ] = 0
    min_p: Annotated[
        float,
        Parameter("No token less likely than this share of the likeliest.", low=0.0, high=1.0, from_model=True),
    ] = 0.0
    presence_penalty: Annotated[
        float, Parameter("Taken from the logit of every token that was generated already.", low=-2.0, high=2.0)
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Parameter("Taken from a token's logit once for each time that it was generated already.", low=-2.0, high=2.0),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Parameter(
            "Divides positive and multiplies negative logits of tokens in prompt or answer; above 1 = less of them.",
            low=0.0,
            high=100.0,
            above=True,
            from_model=True,
        ),
    ] = 1.0
    logit_bias: Annotated[
        dict[int, float],
        Parameter(
            "By token id, added to its logit before anything else changes it.",
            low=-100.0,
            high=100.0,
            most=1024,
            unit="tokens",
            takes=dict[str, float],
            read=_token_biases,
        ),
    ] = {}
    allowed_token_ids: Annotated[
        tuple[int, ...],
        Parameter(
            "The only tokens that may be chosen; an end that is none of them does not come.",
            most=4096,
            unit="ids",
            takes=list[int],
            read=_allowed,
            default="all",
        ),
    ] = ()
    bad_words: Annotated[
        tuple[tuple[int, ...], ...],
        Parameter(
            "Texts that the answer does not have, as they are tokenised by themselves and behind a space.",
            most=64,
            unit="texts",
            longest=256,
            takes=list[str],
            encode=_bad_words,
        ),
    ] = ()
    """As tokens."""
    dry_multiplier: Annotated[
        float,
        Parameter(
            "DRY, a penalty on tokens that go on with a repetition: `dry_multiplier` × `dry_base` ^ (its length - "
            "`dry_allowed_length`) is taken from the logit. 0 = none.",
            low=0.0,
            high=100.0,
        ),
    ] = 0.0
    dry_base: Annotated[float, Parameter("See `dry_multiplier`.", low=1.0, high=10.0)] = 1.75
    dry_allowed_length: Annotated[
        int,
        Parameter(
            "Tokens of a repetition, at most 50 of which count, from which on it is penalised.", low=0, high=_INT32
        ),
    ] = 2
    dry_penalty_last_n: Annotated[
        int,
        Parameter(
            f"Last tokens of prompt and answer that are looked at for repetitions; -1 = {MOST_LOOKED_BACK}.",
            low=-1,
            high=MOST_LOOKED_BACK,
        ),
    ] = -1
    dry_sequence_breakers: Annotated[
        tuple[int, ...],
        Parameter(
            "Texts over which no repetition goes: the last token of each behind a letter.",
            most=32,
            unit="texts",
            longest=64,
            takes=list[str],
            encode=dry_breakers,
            default='`["\\n", ":", "\\"", "*"]`',
        ),
    ] = ()
    """As tokens."""
    top_n_sigma: Annotated[
        float,
        Parameter(
            "No token whose logit is more than so many standard deviations of the logits below the largest; 0 = all.",
            low=0.0,
            high=100.0,
        ),
    ] = 0.0
    xtc_probability: Annotated[
        float,
        Parameter(
            "How often a token is drawn without the likeliest (XTC): all with a share of `xtc_threshold` or more but "
            "the least likely of them.",
            low=0.0,
            high=1.0,
        ),
    ] = 0.0
    xtc_threshold: Annotated[
        float, Parameter("See `xtc_probability`; above 0.5 it takes nothing away.", low=0.0, high=1.0)
    ] = 0.1
    seed: Annotated[
        int | None,
        Parameter(
            "The same draws for the same request, whatever runs beside it.",
            low=-MAX_SEED - 1,
            high=MAX_SEED,
            default="random",
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        Parameter(
            "Longest answer; more than the context has room for behind the prompt is refused. 0 computes the prompt "
            "only, to score or to warm it.",
            By.GATEWAY,
            low=0,
            high=_INT32,
            default="16 for completions; a chat goes on to the end of the context",
        ),
    ] = None
    min_tokens: Annotated[
        int,
        Parameter(
            "No end before so many tokens, but where a grammar leaves nothing else.",
            low=0,
            high=_INT32,
            accepted="0 … `max_tokens`",
        ),
    ] = 0
    stop: Annotated[
        tuple[str, ...],
        Parameter(
            "Texts that end the answer; they are not part of it.",
            most=16,
            unit="texts",
            longest=1024,
            takes=str | list[str],
            read=_texts,
        ),
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...],
        Parameter("Token ids that end the answer.", most=256, unit="ids", takes=list[int], read=tuple),
    ] = ()
    include_stop: Annotated[
        bool, Parameter("Leave the `stop` that was found in the answer.", name="include_stop_str_in_output")
    ] = False
    ignore_eos: Annotated[bool, Parameter("Go on after the end-of-sequence token, to `max_tokens`: for measuring.")] = (
        False
    )
    logprobs: int | None = None
    """Report the chosen token's log-probability and this many likeliest alternatives; None = report nothing."""
    prompt_logprobs: int | None = None
    """Report the same for every token of the prompt but the first, which then takes nothing from the prefix cache."""
    grammar: Grammar | None = None
    """What the answer keeps to; None = nothing."""
    thinking: ThinkingBudget | None = None
    """None = it reasons as long as it wants to."""

    def __post_init__(self) -> None:
        for each in bounded(SamplingParams):
            if (value := getattr(self, each.field)) is not None:
                each.parameter.check_value(each.field, value)
        for name in ("logprobs", "prompt_logprobs"):
            if (wanted := getattr(self, name)) is not None:
                LOGPROBS.check_value(name, wanted)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) must not be above max_tokens ({self.max_tokens})")
        if any(not text for text in self.stop):
            raise ValueError("stop must not hold an empty text")
        for name in ("stop_token_ids", "allowed_token_ids"):
            if any(token_id < 0 for token_id in getattr(self, name)):
                raise ValueError(f"{name} must not hold a negative id")
        if self.thinking is not None and not (self.thinking.begin and self.thinking.end):
            raise ValueError("thinking needs both markers")
        if not all(self.bad_words):
            raise ValueError("bad_words must not hold one without tokens")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def ruling_out(self) -> tuple[str, ...]:
        """Names of what rules tokens out whatever the model says, as clients write them."""
        ruling_out = {
            "" if self.grammar is None else self.grammar.field: self.grammar,
            "allowed_token_ids": self.allowed_token_ids,
            "bad_words": self.bad_words,
            "min_tokens": self.min_tokens,
            "thinking_token_budget": self.thinking,
        }
        return tuple(name for name, value in ruling_out.items() if value)

    @property
    def named_token_ids(self) -> dict[str, tuple[int, ...]]:
        """Token ids that they hold, by parameter."""
        return {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": tuple(self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids,
            "bad_words": tuple(token_id for word in self.bad_words for token_id in word),
            "dry_sequence_breakers": self.dry_sequence_breakers,
            "thinking_token_budget": () if self.thinking is None else self.thinking.begin + self.thinking.end,
        }


class Pooling(StrEnum):
    """How the last hidden states of a prompt become one vector."""

    LAST = "last"
    """That of the last token, which has seen all others."""
    MEAN = "mean"
    """The mean over all tokens."""
    MAX = "max"
    """Of each element the largest over all tokens."""
    CLS = "cls"
    """That of the first token, of models in which each token sees all others."""


class Reading(StrEnum):
    """What is made of that vector."""

    UNIT = "unit"
    """It is scaled to length 1."""
    RAW = "raw"
    """It stays as it is."""
    LABELS = "labels"
    """The model's classifier says what it is: a number for each label."""


class Kind(StrEnum):
    """What a request wants of a model."""

    GENERATE = "generate"
    EMBED = "embed"
    SCORE = "score"
    CLASSIFY = "classify"


class ModelTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was made for."""

    generates: bool = True
    """Whether it continues prompts."""
    sees_all: bool = False
    """Whether each token of a prompt sees all others: prompts are computed whole, and nothing is kept of them."""
    pooling: Pooling = Pooling.LAST
    """How its makers make a vector of a prompt,"""
    reading: Reading = Reading.UNIT
    """and what of that, where nobody classifies."""
    labels: tuple[str, ...] = ()
    """Of its classifier; empty where it has none."""
    images: ImageSettings | None = None
    """How it wants the images that prompts may have; None = it sees none."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What requests may ask of it."""
        if self.labels:
            return (Kind.CLASSIFY, Kind.SCORE) if self.joins_pairs else (Kind.CLASSIFY,)
        return (Kind.GENERATE, Kind.EMBED) if self.generates else (Kind.EMBED, Kind.SCORE)

    @property
    def joins_pairs(self) -> bool:
        """Whether it reads two texts as one prompt and says how much they have to do with each other: a cross-encoder,
        which has a single label."""
        return len(self.labels) == 1


GENERATES = ModelTask()
"""That of an ordinary decoder."""


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
