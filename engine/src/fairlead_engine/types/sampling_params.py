"""The choice of tokens and the end of an answer: a request's parameters, each declared once with its bounds. Schemas,
checks and the reference are made from the declarations."""

from typing import Annotated

import msgspec

from fairlead_engine.types.parameters import By, Encode, Parameter, bounded

MAX_LOGPROBS = 20
MAX_ANSWER_LOGPROBS = 500_000
"""Log-probabilities of an answer that is not streamed: each token's own and its alternatives', of all choices. At about
90 bytes each, gateways take the answer too."""
MAX_SEED = 2**63 - 1
_INT32 = 2**31 - 1
MOST_LOOKED_BACK = 4096
"""Tokens that are looked at for repetitions."""
_MAX_DIGITS = 10
"""Of a token id; no vocabulary is so large."""


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _token_biases(value: dict[str, float]) -> dict[int, float]:
    """Raises ValueError for a key that is not an id in its shortest form: of "9" and "09" one would be lost."""
    for name in value:
        if not (name.isascii() and name.isdigit()) or len(name) > _MAX_DIGITS or str(int(name)) != name:
            raise ValueError(f"logit_bias must map token ids to numbers; {name[:80]!r} is no token id")
    return {int(name): bias for name, bias in value.items()}


def _allowed(value: list[int]) -> tuple[int, ...]:
    if not value:
        raise ValueError("allowed_token_ids is empty; name the tokens that may be chosen, or leave it out")
    return tuple(value)


def _bad_words(encode: Encode, value: list[str]) -> tuple[tuple[int, ...], ...]:
    """Each text as tokenised at the beginning of an answer, and behind a space."""
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
    """The token with which each text ends a word."""
    if not all(value):
        raise ValueError("dry_sequence_breakers must not hold an empty text")
    return tuple(dict.fromkeys(encode("a" + text)[-1] for text in value))


class Grammar(msgspec.Struct, frozen=True):
    """What an answer is to keep to."""

    text: str
    """As llguidance takes it: its JSON, or Lark."""
    field: str = "grammar"
    """The request's field behind the grammar, for errors."""
    is_slow: bool = False
    """Whether compilation takes long; quick grammars go first."""


class ThinkingBudget(msgspec.Struct, frozen=True):
    """Bound of an answer's reasoning, whose end is then forced."""

    num_tokens: int
    begin: tuple[int, ...]
    """The marker before reasoning,"""
    end: tuple[int, ...]
    """and the one behind it."""
    has_begun: bool = False
    """The prompt ends with the first one."""


LOGPROBS = Parameter("The same, and so many alternatives of each.", low=0, high=MAX_LOGPROBS)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of tokens, and the end of an answer. Raises ValueError, naming the field, for a value out of range.
    Clients may send the fields with a `Parameter`: the source of schemas, checks and the reference."""

    temperature: Annotated[
        float, Parameter("0 = always the likeliest token.", low=0.0, high=100.0, from_model=True)
    ] = 1.0
    top_p: Annotated[
        float,
        Parameter(
            "Only the likeliest tokens whose shares come to this; 0 = the likeliest.",
            low=0.0,
            high=1.0,
            from_model=True,
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
            "only, to score or to warm it; -1 = what the context has room for, as in llama.cpp.",
            By.GATEWAY,
            low=-1,
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
    """As `logprobs`, for the prompt's tokens but the first; the prompt then takes nothing from the prefix cache."""
    grammar: Grammar | None = None
    """What the answer keeps to; None = nothing."""
    thinking: ThinkingBudget | None = None
    """None = reasoning has no bound."""

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
        """Clients' names of the parameters that forbid tokens."""
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
