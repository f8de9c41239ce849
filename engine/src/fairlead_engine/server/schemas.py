"""The requests of the OpenAI API that this server understands, and of vLLM's `/tokenize` and `/detokenize`.

A field that would change the result and is not supported is in the schema, so that it can be refused with advice rather
than as unknown; fields that change nothing are accepted and ignored. Everything optional may be null.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from fairlead_engine.errors import RequestError
from fairlead_protocol.budget import CacheSalt, Messages, Metadata, ModelName, Priority, Tag, Tools
from fairlead_protocol.messages import PromptTokens
from fairlead_protocol.prompts import AnswerLimit, rendered_factor

Text = str | list[str]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    """A last chunk with the token counts of the whole answer."""
    continuous_usage_stats: bool | None = None
    """vLLM's: every chunk with the token counts so far."""


class GenerationRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What chat and text completions have in common. The second group of fields is vLLM's extension."""

    model: ModelName
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: Text | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    """By token id, in decimal digits."""

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    """Who runs first where not all can: the lower; None = 0."""
    return_token_ids: bool | None = None
    """The answer has the ids of its tokens and of the prompt's."""
    return_tokens_as_token_ids: bool | None = None
    """Tokens in log-probabilities are written `token_id:5`, so that none is ambiguous."""

    user: Tag | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    service_tier: Tag | None = None
    safety_identifier: Tag | None = None
    prompt_cache_key: Tag | None = None

    fairlead_prompt_tokens: Annotated[
        PromptTokens | None,
        msgspec.Meta(description="Internal, between Fairlead's gateways and engines: the prompts as token ids"),
    ] = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def num_prompts(self) -> int:
        """How many prompts it has, before any of them is looked at."""
        return 1

    @property
    def answer_limit(self) -> AnswerLimit:
        """What it says of how long its answers may be."""
        return AnswerLimit.of(self.max_tokens)

    @property
    def rendered_factor(self) -> int:
        """How many times its own size its text may be once it is rendered; 1 where no template is."""
        return 1


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Tools | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    response_format: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    prediction: Any = None

    @property
    def answer_limit(self) -> AnswerLimit:
        return AnswerLimit.of(self.max_tokens, self.max_completion_tokens)

    @property
    def rendered_factor(self) -> int:
        return rendered_factor(self.messages, self.tools, self.chat_template_kwargs)


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[Any]
    """A text, several texts, token ids, or several lists of token ids."""
    echo: bool | None = None
    """The answer begins with the prompt, its log-probabilities too where they are asked for."""
    logprobs: int | None = None

    best_of: int | None = None
    suffix: str | None = None

    @property
    def num_prompts(self) -> int:
        is_batch = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return len(self.prompt) if is_batch else 1


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /tokenize`: a text, or a chat to be rendered first."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    """None = true for a text, false for a chat, whose template writes them itself."""
    return_token_strs: bool | None = None

    @property
    def rendered_factor(self) -> int:
        """As in the requests that generate."""
        return rendered_factor(self.messages, self.tools, self.chat_template_kwargs)


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: ModelName | None = None


_Harmless = Callable[[Any], bool]
_UNSUPPORTED: dict[str, tuple[_Harmless, str]] = {
    "response_format": (lambda value: value == {"type": "text"}, "ask for the format in the prompt"),
    "functions": (lambda value: value == [], "describe functions in the prompt"),
    "function_call": (lambda value: value == "none", 'only "none" can be chosen'),
    "tool_choice": (lambda value: value == "none", 'only "none" can be chosen'),
    "modalities": (lambda value: value == ["text"], "this model writes text only"),
    "audio": (lambda value: False, "this model writes text only"),
    "reasoning_effort": (lambda value: False, "use `chat_template_kwargs` if the model's template has such a switch"),
    "verbosity": (lambda value: value == "medium", "ask for it in the prompt"),
    "web_search_options": (lambda value: False, "leave it out"),
    "suffix": (lambda value: value == "", "leave it out"),
}
"""Fields that would change the result: the values that do not, and what to do instead of the others."""


def check(request: ChatRequest | CompletionRequest) -> None:
    """Raises `RequestError` for fields that do not go together or whose effect this server does not have."""
    for name, (harmless, advice) in _UNSUPPORTED.items():
        value = getattr(request, name, None)
        if value is not None and not harmless(value):
            raise RequestError(name, f"{name} = {_shown(value)} is not supported; {advice}", "unsupported_value")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options", "stream_options needs stream = true")
    if isinstance(request, CompletionRequest):
        if request.best_of is not None and request.best_of != (request.n or 1):
            raise RequestError("best_of", "best_of other than n is not supported; leave it out", "unsupported_value")
    elif request.tools and request.tool_choice != "none":
        raise RequestError(
            "tools",
            "tools is not supported, as tool calls in an answer are not told from its text; leave it out, or send "
            'tool_choice = "none" with it: then tools are described to the model, and its answer is text',
            "unsupported_value",
        )


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:79] + "…"
