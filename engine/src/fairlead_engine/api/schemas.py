"""The server's requests of the OpenAI API, and of vLLM's `/tokenize` and `/detokenize`.

Every field is declared with the effect and the acting component (`types/parameters.py`); fields about sampling are made
from `SamplingParams`. Unsupported fields that would change the result are in the schema, to be refused with advice
rather than as unknown. Everything optional may be null.
"""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from fairlead_common.openai import prompts
from fairlead_common.openai.budget import (
    MAX_TEXTS,
    CacheSalt,
    KeptTokens,
    Messages,
    Metadata,
    ModelName,
    Priority,
    Tag,
    Tools,
    TruncationSide,
)
from fairlead_common.wire.messages import PromptTokens
from fairlead_engine.errors import RequestError
from fairlead_engine.types import LOGPROBS, MAX_LOGPROBS, Pooling, SamplingParams
from fairlead_engine.types.parameters import By, Parameter, bounded, optional_fields

_IGNORED = Parameter("", By.NOBODY)
_OTHER_NAMES = {
    **dict.fromkeys(("enable_thinking", "thinking", "think", "chat_template_args"), "chat_template_kwargs"),
    **dict.fromkeys(("regex", "ebnf", "grammar"), "structured_outputs"),
    **dict.fromkeys(("json_schema", "format"), "response_format"),
    **dict.fromkeys(("stop_sequences", "stopSequences"), "stop"),
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens"), "max_tokens"),
    "repeat_penalty": "repetition_penalty",
    "random_seed": "seed",
}
"""Fields' names in other servers' APIs → our names."""
_LIFETIME = re.compile(r"([1-9]\d{0,4})([smh])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_SECONDS = 24 * 3600.0
_SESSION_SECONDS = 300.0
"""Retention hint of a request that names a session."""
_MOST_PREFIXES = 4
"""Each is rendered and tokenised by itself."""
_TEXT_ONLY = "This model writes text only."


def _older(name: str) -> Parameter:
    return Parameter(f"The older name of `structured_outputs.{name}`.", accepted="see `response_format`")


AddSpecialTokens = Annotated[
    bool | None,
    Parameter(
        "Whether the tokenizer adds its own tokens, such as a beginning of sequence.",
        By.GATEWAY,
        default="true for a text, false for a chat",
    ),
]
ToolList = Annotated[
    Tools | None,
    Parameter(
        'Functions, described to the model by its template: `{"type": "function", "function": {"name": …, '
        '"description": …, "parameters": …}}` with a JSON schema. With `"strict": true` arguments keep to it, else as '
        'far as they can. Custom tools, `{"type": "custom", "custom": {"name": …}}`, are called with a text; a '
        "grammar of it is told to the model. Refused in a chat where how the model writes calls is not known.",
        By.GATEWAY,
    ),
]
TemplateVariables = Annotated[
    dict[str, Any] | None,
    Parameter("Variables for the chat template, such as a switch for thinking.", By.GATEWAY, default="`{}`"),
]
ReasoningEffort = Annotated[
    str | None,
    Parameter(
        "How much the model is to reason, such as `low`, for chat templates that know of it, without effect on others. "
        "`none` also sets the switches `enable_thinking` and `thinking` to false.",
        By.GATEWAY,
        longest=64,
    ),
]
AddGenerationPrompt = Annotated[
    bool | None,
    Parameter(
        "Whether the rendered chat ends with the beginning of an answer.",
        By.GATEWAY,
        default="true, or false with `continue_final_message`",
    ),
]
ContinueFinalMessage = Annotated[
    bool | None,
    Parameter("The answer goes on with the last message instead of beginning a new one.", By.GATEWAY, default="false"),
]
Texts = Annotated[
    str | list[Any],
    Parameter(
        "A text, several texts, token ids, or several lists of token ids: each gets a vector, or is classified.",
        By.GATEWAY,
    ),
]
_Side = str | list[Any] | None
_MODEL = Parameter(
    "Which model: a `servedName`, an alias, or `<namespace>/<servedName>`; behind a colon, which of its adapters. At a "
    "model's own address (`status.url`) a gateway does without.",
    By.GATEWAY,
)
_THE_ONLY_MODEL = Parameter("The same.", By.GATEWAY, default="the only one at a canonical path or an engine")


_TRUNCATE = Parameter(
    "Of a longer prompt so many tokens are kept, the last ones, and the special tokens around a text; -1 = as many as "
    "leave room for `max_tokens`, or for one. Not with images.",
    By.GATEWAY,
    accepted="-1, or at least 1",
    default="longer prompts than the context are refused",
)
_SIDE = Parameter("Where `truncate_prompt_tokens` leaves tokens out.", By.GATEWAY, default="`left`")


class PromptRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Common part of all requests with prompts for a model."""

    model: Annotated[ModelName, _MODEL]
    cache_salt: Annotated[
        CacheSalt | None, Parameter("Cached prefixes are shared only with requests of the same salt.", By.GATEWAY)
    ] = None
    priority: Annotated[
        Priority | None,
        Parameter(
            "Who goes first where not all can, in a gateway's line as in an engine: the lower.", By.GATEWAY, default="0"
        ),
    ] = None
    add_special_tokens: AddSpecialTokens = None
    user: Annotated[Tag | None, Parameter("Names the session where nothing else does.", By.GATEWAY)] = None
    fairlead_prompt_tokens: Annotated[
        PromptTokens | None,
        msgspec.Meta(description="Internal, between Fairlead's gateways and engines: the prompts as token ids"),
    ] = None

    @property
    def num_prompts(self) -> int:
        """Number of prompts, before parsing."""
        return 1

    @property
    def prompts_field(self) -> str:
        """The field with the prompts, or most of the prompts."""
        return "prompt"

    @property
    def num_each(self) -> int:
        """Sequences to generate for each prompt."""
        return 1

    def keep_seconds(self, session: str | None) -> float | None:
        """Seconds of the retention hint; None = no hint."""
        return None

    @property
    def is_streamed(self) -> bool:
        return False

    @property
    def answer_limit(self) -> prompts.AnswerLimit:
        """The request's bound on answers' lengths."""
        return prompts.AnswerLimit.of(None)

    @property
    def rendered_factor(self) -> int:
        """Largest ratio of rendered text to request size; 1 without a template."""
        return 1


if TYPE_CHECKING:

    class SamplingFields(PromptRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
        """Fields declared by `SamplingParams`, as in the request, or None."""

        def __getattr__(self, name: str) -> Any: ...

else:
    SamplingFields = msgspec.defstruct(
        "SamplingFields",
        optional_fields(SamplingParams),
        bases=(PromptRequest,),
        forbid_unknown_fields=True,
        frozen=True,
        kw_only=True,
    )


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    """A last chunk with the token counts of the whole answer."""
    continuous_usage_stats: bool | None = None
    """vLLM's: every chunk with the token counts so far."""
    include_obfuscation: bool | None = None
    """OpenAI's: padding against who counts bytes on the wire. There is none."""


class JsonSchemaFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`response_format.json_schema`."""

    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    """True: all of it is kept to, or the request refused. Else what cannot be kept to is relaxed."""
    description: str | None = None


class Structure(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of a text that keeps to a schema, and what stands before and behind it."""

    begin: str
    schema: dict[str, Any]
    end: str


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """OpenAI's `response_format`, llama.cpp's with a schema beside the type, and vLLM's structural tags."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | None = None
    """As `json_schema.schema` without `strict`; of the types `json_object` and `json_schema`."""
    structures: list[Structure] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """vLLM's `structured_outputs`."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None


class GenerationRequest(SamplingFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Common part of chat and text completions."""

    stream: Annotated[
        bool | None,
        Parameter("The answer as server-sent events while it is made.", By.GATEWAY, default="false"),
    ] = None
    stream_options: Annotated[
        StreamOptions | None,
        Parameter(
            "`include_usage`: a last event with token counts; `continuous_usage_stats`: in every event.",
            By.GATEWAY,
            accepted="with `stream`",
        ),
    ] = None
    n: Annotated[
        int | None,
        Parameter("Answers per prompt; prompts × `n` is at most 128, too.", accepted="1 … 128", default="1"),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Parameter(
            "Log-probabilities of the prompt's tokens, and so many alternatives of each; not in streams. All of the "
            "prompt is computed, whatever is cached.",
            low=0,
            high=MAX_LOGPROBS,
        ),
    ] = None
    use_beam_search: Annotated[
        bool | None,
        Parameter(
            "The answers are the `n` likeliest that a beam search of width `n` (or `best_of`) finds, best first. The "
            f"width and the tokens that end an answer are at most {MAX_LOGPROBS} together. Not in streams, and not "
            "with what changes logits.",
            default="false",
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        Parameter(
            "With `use_beam_search`: an answer's score is the sum of its log-probabilities / (its tokens ^ this).",
            low=-10.0,
            high=10.0,
            default="1.0",
        ),
    ] = None
    early_stopping: Annotated[
        bool | str | None,
        Parameter(
            "With `use_beam_search`: `true` ends it as soon as there are enough answers; `false` when the likeliest "
            'beam, as long as it is, is worse than each; `"never"` when it could not become better.',
            accepted='`true`, `false`, `"never"`',
            default="false",
        ),
    ] = None
    truncate_prompt_tokens: Annotated[KeptTokens | None, _TRUNCATE] = None
    truncation_side: Annotated[TruncationSide | None, _SIDE] = None
    skip_special_tokens: Annotated[bool | None, Parameter("Leave special tokens out of the text.", default="true")] = (
        None
    )
    return_token_ids: Annotated[
        bool | None, Parameter("Ids of the answer's tokens and of the prompt's.", default="false")
    ] = None
    return_tokens_as_token_ids: Annotated[
        bool | None,
        Parameter("In log-probabilities, `token_id:5` instead of a text that may be ambiguous.", default="false"),
    ] = None

    response_format: Annotated[
        ResponseFormat | None,
        Parameter(
            '`{"type": "json_schema", "json_schema": {"schema": …}}`: the answer is JSON that the schema allows; '
            '`{"type": "json_object"}`: any JSON object, or with a `schema` beside the type, as llama.cpp has it, what '
            'that allows; `{"type": "structural_tag", "structures": [{"begin": …, "schema": …, "end": …}], "triggers": '
            '[…]}`: a text in which what follows a trigger keeps to a schema; `{"type": "text"}`: anything.',
            accepted="one of these fields at most",
            default="text",
        ),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        Parameter(
            "vLLM's: one of `json` (a schema), `json_object`, `regex`, `choice` (texts), `grammar` (Lark or GBNF) and "
            "`structural_tag`; JSON without whitespace with `disable_any_whitespace`, or with that of "
            "`whitespace_pattern`.",
            accepted="see `response_format`",
        ),
    ] = None
    guided_json: Annotated[dict[str, Any] | str | None, _older("json")] = None
    guided_regex: Annotated[str | None, _older("regex")] = None
    guided_choice: Annotated[list[str] | None, _older("choice")] = None
    guided_grammar: Annotated[str | None, _older("grammar")] = None

    metadata: Annotated[Metadata | None, _IGNORED] = None
    store: Annotated[bool | None, _IGNORED] = None
    service_tier: Annotated[Tag | None, _IGNORED] = None
    safety_identifier: Annotated[Tag | None, _IGNORED] = None
    prompt_cache_key: Annotated[
        Tag | None,
        Parameter(
            "Names the session where the header `x-session-id` does not: among replicas that are equal otherwise, the "
            "one that served it last is chosen, and prompt and answer are kept in its cache before others for five "
            "minutes. Prefixes are found in caches without it.",
            By.GATEWAY,
        ),
    ] = None
    prompt_cache_retention: Annotated[
        Tag | None,
        Parameter(
            "`24h` keeps prompt and answer in the cache before others for a day. Without it they stay while there is "
            "room for them.",
            one_of=("24h", "in_memory", "in-memory"),
        ),
    ] = None
    prompt_cache_options: Annotated[
        Metadata | None,
        Parameter(
            "`ttl`, such as `30m`, keeps prompt and answer in the cache before others for so long: from `1s` to `24h`; "
            '`prefixes`, such as `{"1h": 2}`, what the first messages of a chat are of the prompt. '
            "Prefixes are found in caches without it.",
        ),
    ] = None
    moderation: Annotated[Metadata | None, Parameter("Nothing here is moderated.", By.NOBODY)] = None

    OTHER_NAMES: ClassVar[Mapping[str, str]] = _OTHER_NAMES

    def keep_seconds(self, session: str | None) -> float | None:
        """Seconds of the retention hint (`EngineRequest.keep_seconds`), the longest that the request names. `session`:
        of the header. Raises `RequestError`."""
        hints = [_SESSION_SECONDS] if session or self.prompt_cache_key or self.user else []
        hints += [_LONGEST_SECONDS] if self.prompt_cache_retention == "24h" else []
        if (lifetime := (self.prompt_cache_options or {}).get("ttl")) is not None:
            hints.append(_seconds_of(lifetime))
        return max(hints, default=None)

    def keep_prefixes(self) -> list[tuple[float, int]]:
        """Further hints, each for the first messages of a chat: seconds and number of messages. Raises
        `RequestError`."""
        prefixes, name = (self.prompt_cache_options or {}).get("prefixes") or {}, "prompt_cache_options.prefixes"
        if not isinstance(prefixes, dict) or not all(type(each) is int and each > 0 for each in prefixes.values()):
            raise RequestError(name, f'{name} must be times and numbers of messages, such as {{"1h": 2}}')
        kept = [*prefixes.items()][:_MOST_PREFIXES]
        return [(_seconds_of(time, f"{name}: each time"), number) for time, number in kept]

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def num_given(self) -> int:
        """Answers to each prompt for the client."""
        return 1 if self.n is None else self.n

    @property
    def num_each(self) -> int:
        return self.num_given

    @property
    def is_streamed(self) -> bool:
        return bool(self.stream)

    @property
    def answer_limit(self) -> prompts.AnswerLimit:
        return prompts.AnswerLimit.of(self.max_tokens)


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[Messages, Parameter("The conversation; the model's chat template renders it.", By.GATEWAY)]
    tools: ToolList = None
    chat_template_kwargs: TemplateVariables = None
    reasoning_effort: ReasoningEffort = None
    thinking_token_budget: Annotated[
        int | None,
        Parameter(
            "Tokens of reasoning after which its end is forced, for models whose reasoning is told apart.",
            low=0,
            high=2**31 - 1,
            accepted="0 or more, where reasoning is told apart",
            default="no limit",
        ),
    ] = None
    best_effort: Annotated[
        bool | None,
        Parameter(
            "Answer all the same where the context has less room than `max_tokens`, and then ends the answer, and "
            "where reasoning cannot be bounded by `thinking_token_budget`.",
            By.GATEWAY,
            default="false",
        ),
    ] = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    max_completion_tokens: Annotated[
        int | None,
        Parameter(
            "The newer name of `max_tokens`, and before it where both are sent.", By.GATEWAY, low=-1, high=2**31 - 1
        ),
    ] = None
    logprobs: Annotated[bool | None, Parameter("Log-probabilities of the tokens of the answer.", default="false")] = (
        None
    )
    top_logprobs: Annotated[
        int | None,
        Parameter(
            "Alternatives of each token.",
            low=0,
            high=MAX_LOGPROBS,
            accepted=f"0 … {MAX_LOGPROBS}, with `logprobs`",
            default="0",
        ),
    ] = None

    tool_choice: Annotated[
        str | dict[str, Any] | None,
        Parameter(
            '`"none"`: the answer is text; `"auto"`: text, calls or both; `"required"`: one call or more; '
            '`{"type": "function", "function": {"name": …}}`: a call of that function; `{"type": "allowed_tools", '
            '"allowed_tools": {"mode": …, "tools": […]}}`: `auto` or `required`, of some of the tools. Custom tools '
            'are named by `{"type": "custom", "custom": {"name": …}}`.',
            default="auto with `tools`",
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Parameter("Whether an answer may have more than one call.", default="true")
    ] = None
    injectable: Annotated[
        bool | None,
        Parameter(
            "Results of tools may be put into the answer while it is streamed "
            "([asynchronous tools](../guides/asynchronous-tools.md)).",
            accepted="`true` with `stream` and `tools`, one choice",
            default="false",
        ),
    ] = None
    prediction: Annotated[Any, _IGNORED] = None

    functions: Annotated[
        Tools | None,
        Parameter(
            "The older form of `tools`, without `tools`: the answer has one call at most, as `function_call`.",
            By.GATEWAY,
        ),
    ] = None
    function_call: Annotated[
        str | dict[str, Any] | None,
        Parameter(
            'The older form of `tool_choice`, for `functions`: `"none"`, `"auto"` or `{"name": …}`.',
            default="auto with `functions`",
        ),
    ] = None
    modalities: Annotated[Any, Parameter(_TEXT_ONLY, By.REFUSED, only='["text"]')] = None
    audio: Annotated[Any, Parameter(_TEXT_ONLY, By.REFUSED)] = None
    verbosity: Annotated[Tag | None, Parameter("How long an answer is to be is said in the prompt.", By.NOBODY)] = None
    web_search_options: Annotated[Any, Parameter("Leave it out.", By.REFUSED)] = None

    @property
    def answer_limit(self) -> prompts.AnswerLimit:
        limit = prompts.AnswerLimit.of(self.max_tokens, self.max_completion_tokens)
        return limit._replace(has_room=not self.best_effort)

    @property
    def rendered_factor(self) -> int:
        tools = (*(self.tools or ()), *(self.functions or ()))
        return prompts.rendered_factor(self.messages, tools, self.chat_template_kwargs)


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Annotated[
        str | list[Any],
        Parameter("A text, several texts, token ids, or several lists of token ids.", By.GATEWAY),
    ]
    echo: Annotated[
        bool | None,
        Parameter(
            "The answer begins with the prompt, its log-probabilities too where they are asked for.", default="false"
        ),
    ] = None
    logprobs: Annotated[int | None, LOGPROBS] = None

    best_of: Annotated[
        int | None,
        Parameter(
            "So many answers of each prompt are made, and the `n` with the largest sums of log-probabilities given, "
            "best first; all are counted. Not in streams.",
            accepted="`n` … 128",
            default="`n`",
        ),
    ] = None
    suffix: Annotated[str | None, Parameter("Leave it out.", By.REFUSED, only='""')] = None

    @property
    def prompt_fields(self) -> prompts.CompletionPrompt:
        """Fields that decide the request's prompts."""
        return prompts.CompletionPrompt(
            prompt=self.prompt,
            add_special_tokens=self.add_special_tokens,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side,
        )

    @property
    def num_prompts(self) -> int:
        return self.prompt_fields.num_prompts

    @property
    def num_each(self) -> int:
        return self.num_given if self.best_of is None else self.best_of

    @property
    def chooses(self) -> bool:
        """Whether fewer answers are given than made."""
        return self.num_each != self.num_given


class ReadRequest(PromptRequest, frozen=True, kw_only=True):
    """Requests for results read off texts: vectors, scores, classes."""

    PROMPT: ClassVar[type[Any]]

    @property
    def prompt_fields(self) -> Any:
        """Fields that decide the request's prompts: a `PROMPT`."""
        return self.PROMPT(**{name: getattr(self, name) for name in self.PROMPT.__struct_fields__})

    @property
    def num_prompts(self) -> int:
        return int(self.prompt_fields.num_prompts)

    @property
    def prompts_field(self) -> str:
        return str(self.PROMPT.FIELD)


class EmbeddingRequest(ReadRequest, frozen=True, kw_only=True):
    """`POST /v1/embeddings`."""

    PROMPT = prompts.EmbeddingPrompt

    input: Texts
    encoding_format: Annotated[
        str | None,
        Parameter(
            "A list of numbers, or base64 of little-endian float32.", one_of=("float", "base64"), default="`float`"
        ),
    ] = None
    pooling: Annotated[
        str | None,
        Parameter(
            "Of the last hidden states: the last token's, their mean, of each element the largest, or, of encoders, "
            "the first token's. Over all tokens every one is computed, whatever is cached.",
            one_of=tuple(Pooling),
            default="as the model's makers say; else `cls` of encoders, `last` of others",
        ),
    ] = None
    dimensions: Annotated[
        int | None,
        Parameter(
            "How many of a vector's first numbers are told, scaled to length 1 again where whole vectors are. Of use "
            "for models that were trained for it (Matryoshka). From 1 to as many as the model's vectors have.",
            default="all of them",
        ),
    ] = None
    prompt_name: Annotated[
        str | None,
        Parameter(
            "Which of the prompts in the model's `config_sentence_transformers.json` stands before each text, such as "
            "`query`. An empty name puts none there. Token ids are taken as they are.",
            By.GATEWAY,
            default="the file's `default_prompt_name`",
        ),
    ] = None
    truncate_prompt_tokens: Annotated[KeptTokens | None, _TRUNCATE] = None
    truncation_side: Annotated[TruncationSide | None, _SIDE] = None


class ClassifyRequest(ReadRequest, frozen=True, kw_only=True):
    """`POST /v1/classify`."""

    PROMPT = prompts.ClassifyPrompt

    input: Texts


class RerankRequest(ReadRequest, frozen=True, kw_only=True):
    """`POST /v1/rerank`."""

    PROMPT = prompts.RerankPrompt

    query: Annotated[str, Parameter("What the documents are ranked by.", By.GATEWAY)]
    documents: Annotated[
        list[Any],
        Parameter('Texts, or objects as `{"text": …}`.', By.GATEWAY),
    ]
    top_n: Annotated[
        int | None, Parameter("How many of the best are told.", low=1, high=MAX_TEXTS, default="all of them")
    ] = None
    return_documents: Annotated[
        bool | None, Parameter("Whether the texts come back with their scores.", default="true")
    ] = None


class ScoreRequest(ReadRequest, frozen=True, kw_only=True):
    """`POST /v1/score`."""

    PROMPT = prompts.ScorePrompt

    text_1: Annotated[
        _Side, Parameter("A text, or several: what is compared. Only one pair of names is taken.", By.GATEWAY)
    ] = None
    text_2: Annotated[
        _Side,
        Parameter(
            "A text, or several: with what. One side has one text, or both have as many; texts may be objects as "
            '`{"text": …}`.',
            By.GATEWAY,
        ),
    ] = None
    queries: Annotated[_Side, Parameter("The same as `text_1`.", By.GATEWAY)] = None
    documents: Annotated[_Side, Parameter("The same as `text_2`, beside `queries`.", By.GATEWAY)] = None
    items: Annotated[_Side, Parameter("The same as `documents`.", By.GATEWAY)] = None
    data_1: Annotated[_Side, Parameter("The same as `text_1`.", By.GATEWAY)] = None
    data_2: Annotated[_Side, Parameter("The same as `text_2`, beside `data_1`.", By.GATEWAY)] = None

    @property
    def prompts_field(self) -> str:
        return next(
            (name for _, name in prompts.ScorePrompt.NAMES if getattr(self, name) is not None),
            prompts.ScorePrompt.FIELD,
        )


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /tokenize`: a text, or a chat to be rendered first."""

    model: Annotated[ModelName | None, _THE_ONLY_MODEL] = None
    prompt: Annotated[str | None, Parameter("A text to count.", By.GATEWAY)] = None
    messages: Annotated[
        Messages | None, Parameter("A chat to render and count; either this or `prompt`.", By.GATEWAY)
    ] = None
    tools: ToolList = None
    chat_template_kwargs: TemplateVariables = None
    reasoning_effort: ReasoningEffort = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    add_special_tokens: AddSpecialTokens = None
    return_token_strs: Annotated[bool | None, Parameter("The text of each token, too.", default="false")] = None

    @property
    def rendered_factor(self) -> int:
        return prompts.rendered_factor(self.messages, self.tools, self.chat_template_kwargs)


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /detokenize`."""

    tokens: Annotated[list[int], Parameter("Token ids to write as text.", accepted="as many as the context has")]
    model: Annotated[ModelName | None, _THE_ONLY_MODEL] = None


ENDPOINTS: dict[str, type[msgspec.Struct]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "embeddings": EmbeddingRequest,
    "rerank": RerankRequest,
    "score": ScoreRequest,
    "classify": ClassifyRequest,
    "tokenize": TokenizeRequest,
    "detokenize": DetokenizeRequest,
}
"""Schema of each endpoint, by the name in the reference."""


def check(request: PromptRequest) -> None:
    """Raises `RequestError` for refused fields, for values out of bounds left unchecked by `SamplingParams`, and for
    contradicting fields."""
    for each in bounded(type(request)):
        if (value := getattr(request, each.name)) is not None:
            _check_declared(each.name, each.parameter, value)
    if isinstance(request, GenerationRequest) and request.stream_options is not None and not request.stream:
        raise RequestError("stream_options", "stream_options needs stream = true")
    if isinstance(request, GenerationRequest) and request.prompt_logprobs is not None and request.stream:
        raise RequestError("prompt_logprobs", "prompt_logprobs cannot be streamed; leave out stream or prompt_logprobs")
    if isinstance(request, CompletionRequest) and request.chooses:
        if request.num_each < request.num_given:
            raise RequestError("best_of", f"best_of ({request.best_of}) must not be below n ({request.num_given})")
        if request.stream:
            raise RequestError(
                "best_of", "best_of above n cannot be streamed: which answers are given is known at the end"
            )


def _seconds_of(lifetime: Any, what: str = "prompt_cache_options.ttl") -> float:
    """`what`: for the error, the field's name first. Raises `RequestError`."""
    found = _LIFETIME.fullmatch(lifetime) if isinstance(lifetime, str) else None
    seconds = int(found[1]) * _UNITS[found[2]] if found else math.inf
    if seconds > _LONGEST_SECONDS:
        raise RequestError(what.partition(":")[0], f"{what} must be a time from 1s to 24h, such as 30m")
    return seconds


def _check_declared(name: str, parameter: Parameter, value: Any) -> None:
    is_refused = parameter.by is By.REFUSED and not parameter.accepted
    if is_refused and (parameter.only is None or value != msgspec.json.decode(parameter.only)):
        advice = parameter.text[:1].lower() + parameter.text[1:].rstrip(".")
        text = msgspec.json.encode(value).decode()
        shown = text if len(text) <= 80 else text[:79] + "…"
        raise RequestError(name, f"{name} = {shown} is not supported; {advice}", "unsupported_value")
    try:
        parameter.check_size(name, value)
        parameter.check_value(name, value)
    except ValueError as error:
        raise RequestError(name, str(error)) from None
