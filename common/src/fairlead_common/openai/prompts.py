"""The prompt of a request → token ids: the only way from the fields of a request to the input of a model.

Gateway and engine decode the same fields into the same structs. The module knows the shapes of
the OpenAI API, and of HTTP no more than paths. Callers pass the longest context; both programs refuse longer prompts in
the same words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import msgspec

from fairlead_common.openai.budget import KeptTokens, Messages, OverBudget, Tools, TruncationSide, check_json, nesting
from fairlead_common.openai.chat import ChatTemplateError, Message
from fairlead_common.openai.tool_forms import as_functions, is_custom, with_function_calls
from fairlead_common.tokens.embedding_prompts import EmbeddingPrompts
from fairlead_common.tokens.least_tokens import LeastTokenCounter, most_units
from fairlead_common.tokens.tokenizing import PromptTokenizer

EMBEDDINGS_PATH = "/v1/embeddings"
RERANK_PATH = "/v1/rerank"
SCORE_PATH = "/v1/score"
CLASSIFY_PATH = "/v1/classify"
READING_PATHS = frozenset({EMBEDDINGS_PATH, RERANK_PATH, SCORE_PATH, CLASSIFY_PATH})
"""Answered with what is read off prompts: nothing is generated, and the answer comes at the first token's time."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
RESERVED_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "self"})
"""Variables of a chat template that `chat_template_kwargs` must not set."""


class PromptError(ValueError):
    """The prompt of a request cannot be turned into tokens; `field` names the part of the request that is wrong."""

    code: str | None = None
    """For programs, as in OpenAI's errors."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        self.message = message
        super().__init__(message)


class TooLong(PromptError):
    """No engine with this context takes it."""

    code = "context_length_exceeded"


class PromptTooLong(TooLong):
    """A prompt has more tokens than the model takes."""

    def __init__(self, field: str, num_tokens: int, max_model_len: int, *, or_more: bool = False) -> None:
        """`or_more`: the prompt was not tokenised, and `num_tokens` is a lower bound."""
        super().__init__(
            field,
            f"This model's maximum context length is {max_model_len} tokens, but the prompt has "
            f"{'at least ' if or_more else ''}{num_tokens}; shorten it to at most {max_model_len - 1} tokens, "
            "so that there is room for an answer",
        )


class AnswerTooLong(TooLong):
    """Prompt and requested answer together have more tokens than the context of the model."""

    def __init__(
        self, field: str, max_tokens: int, num_tokens: int, max_model_len: int, *, or_more: bool = False
    ) -> None:
        """`field`: the field that limits the answer. `or_more`: the prompt was not tokenised; `num_tokens` is a lower
        bound."""
        super().__init__(
            field,
            f"This model's maximum context length is {max_model_len} tokens, but the prompt has "
            f"{'at least ' if or_more else ''}{num_tokens} and {field} asks for "
            f"{max_tokens} more; lower {field} to at most {max_model_len - num_tokens}, or shorten "
            "the prompt",
        )


def cannot_be_tokenised(place: str, error: Exception) -> PromptError:
    """The error for a text that the tokenizer has no tokens for, such as a word outside of the vocabulary."""
    return PromptError(place, f"{place} cannot be tokenised by this model: {error}")


class Pair(NamedTuple):
    """Two texts that are one prompt."""

    first: str
    second: str


class EncodedPrompt(NamedTuple):
    """A prompt as a model reads it."""

    token_ids: list[int]
    second_start: int | None = None
    """Index of the first token of the second text of a pair; None = no pair, or the tokenizer marks no second text."""


@dataclass(frozen=True, slots=True)
class Part:
    """One prompt of a request, before it is tokenised."""

    place: str
    """Where it stands in the request."""
    content: str | list[int] | Pair
    """A text, the ids that the client sent, or two texts."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the content; empty for token ids."""
        if isinstance(self.content, str):
            return (self.content,)
        return tuple(self.content) if isinstance(self.content, Pair) else ()

    def check_length(self, least: LeastTokenCounter, max_model_len: int) -> None:
        """Raises `PromptTooLong` where a lower bound of tokens leaves no room for an answer. Tokenises nothing."""
        if sum(map(most_units, self.texts)) < max_model_len > len(self.content):
            return
        is_text = isinstance(self.content, str | Pair)
        num_tokens = sum(least.of(text, max_model_len) for text in self.texts) if is_text else len(self.content)
        if num_tokens >= max_model_len:
            raise PromptTooLong(self.place, num_tokens, max_model_len, or_more=is_text)

    def encoded(self, tokenizer: PromptTokenizer, add_special_tokens: bool) -> EncodedPrompt:
        """Raises `PromptError` for a text that this tokenizer has no tokens for."""
        try:
            if isinstance(self.content, Pair):
                pair = tokenizer.encode_pair(*self.content, add_special_tokens=add_special_tokens)
                return EncodedPrompt(*pair)
            if isinstance(self.content, str):
                return EncodedPrompt(tokenizer.encode(self.content, add_special_tokens=add_special_tokens))
        except Exception as error:  # tokenizers raises bare Exception
            raise cannot_be_tokenised(self.place, error) from error
        return EncodedPrompt(self.content)


class ChatPrompt(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a chat request that decide its prompt. Everything optional may be null."""

    messages: Messages
    tools: Tools | None = None
    functions: Tools | None = None
    """The form before `tools`."""
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    """A variable of the template; a value in `chat_template_kwargs` overrides this field."""
    add_generation_prompt: bool | None = None
    """None = true, or false with `continue_final_message`."""
    continue_final_message: bool | None = None
    """The prompt ends with the last message's text, which the answer continues; None = false."""
    add_special_tokens: bool | None = None
    """None = false: the template writes special tokens itself."""
    truncate_prompt_tokens: KeptTokens | None = None
    """See `openai/truncation.py`."""
    truncation_side: TruncationSide | None = None
    """None = left."""

    FIELD: ClassVar[str] = "messages"

    def places(self, tokenizer: PromptTokenizer | None = None) -> list[str]:
        """Where the prompt stands. Raises `PromptError` for messages or variables that no template may see."""
        check_messages(self.messages)
        _check_calls(self.messages)
        if reserved := RESERVED_VARIABLES.intersection(self.chat_template_kwargs or ()):
            raise PromptError("chat_template_kwargs", f"chat_template_kwargs must not set {min(reserved)!r}")
        if self.continue_final_message and self.add_generation_prompt:
            raise PromptError(
                "add_generation_prompt", "add_generation_prompt must be false or left out with continue_final_message"
            )
        return ["messages"]

    def parts(self, tokenizer: PromptTokenizer) -> list[Part]:
        """The chat as a single text, rendered by the template of the model. Raises `PromptError`."""
        [place] = self.places()
        try:
            return [Part(place, self._rendered(tokenizer, self.shown_tools))]
        except ChatTemplateError as error:
            if error.place is None and self.shown_tools and self._is_rendered_without_tools(tokenizer):
                problem = f"{error}; without tools it does, so look at their parameters"
                raise PromptError("tools", problem) from error
            raise PromptError(error.place or place, str(error)) from error

    @property
    def shown_messages(self) -> list[Message]:
        """The messages as templates know them."""
        return with_function_calls(self.messages)

    @property
    def shown_tools(self) -> Tools | None:
        """The tools as templates know them."""
        return as_functions(self.tools, self.functions)

    @property
    def variables(self) -> dict[str, Any]:
        """The template's. No effort at all is a switch, by Qwen's name and DeepSeek's."""
        effort: dict[str, Any] = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        if self.reasoning_effort == "none":
            effort |= {"enable_thinking": False, "thinking": False}
        return {**effort, **(self.chat_template_kwargs or {})}

    def _rendered(self, tokenizer: PromptTokenizer, tools: Tools | None) -> str:
        return tokenizer.render_chat(
            self.shown_messages,
            tools=tools,
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            **self.variables,
        )

    def _is_rendered_without_tools(self, tokenizer: PromptTokenizer) -> bool:
        try:
            self._rendered(tokenizer, None)
        except ChatTemplateError:
            return False
        return True

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the rendered text is tokenised with the special tokens of a plain text."""
        return bool(self.add_special_tokens)


class _Texts(msgspec.Struct, kw_only=True, frozen=True):
    add_special_tokens: bool | None = None
    """None = true."""

    @property
    def adds_special_tokens(self) -> bool:
        """Whether texts are tokenised with the special tokens of a plain text."""
        return self.add_special_tokens is not False


class TextPrompts(_Texts, kw_only=True, frozen=True):
    """The fields that decide the prompts of a request with texts or token ids in the field `FIELD`."""

    FIELD: ClassVar[str]

    @property
    def content(self) -> str | list[Any]:
        """A text, several texts, token ids, or several lists of token ids."""
        content: str | list[Any] = getattr(self, self.FIELD)
        return content

    @property
    def contents(self) -> list[Any]:
        """One for each of `places()`."""
        return [self.content] if self.places() == [self.FIELD] else list(self.content)

    @property
    def num_prompts(self) -> int:
        """Number of prompts by the shape alone, before any prompt is checked."""
        return num_prompts(self.content)

    @property
    def is_of_ids(self) -> bool:
        """Whether there is no text in it."""
        content = self.content
        return isinstance(content, list) and not any(isinstance(part, str) for part in content)

    def places(self, tokenizer: PromptTokenizer | None = None) -> list[str]:
        """Where each prompt stands. Raises `PromptError` for any other shape."""
        content, name = self.content, self.FIELD
        if isinstance(content, str):
            return [name]
        if not content:
            raise PromptError(name, f"{name} is empty; send a text or token ids")
        if _is_ids(content):
            return [name]
        if all(isinstance(part, str) for part in content) or all(_is_ids(part) for part in content):
            return [f"{name}[{position}]" for position in range(len(content))]
        raise PromptError(name, f"{name} must be a text, a list of texts, token ids, or a list of lists of token ids")

    def parts(self, tokenizer: PromptTokenizer) -> list[Part]:
        """Its prompts, in the request's order. Raises `PromptError`."""
        places, contents = self.places(), self.contents
        return [Part(place, content) for place, content in zip(places, contents, strict=True)]


class CompletionPrompt(TextPrompts, kw_only=True, frozen=True):
    """Those of a text completion."""

    FIELD = "prompt"

    prompt: str | list[Any]
    truncate_prompt_tokens: KeptTokens | None = None
    """See `openai/truncation.py`."""
    truncation_side: TruncationSide | None = None
    """None = left."""


class EmbeddingPrompt(TextPrompts, kw_only=True, frozen=True):
    """Those of a request for embeddings."""

    FIELD = "input"

    input: str | list[Any]
    prompt_name: str | None = None
    """Which of the model's prompts stands before each text; None = the default one, if any; empty = none."""
    truncate_prompt_tokens: KeptTokens | None = None
    """See `openai/truncation.py`."""
    truncation_side: TruncationSide | None = None
    """None = left."""

    def places(self, tokenizer: PromptTokenizer | None = None) -> list[str]:
        """Where each prompt stands. Raises `PromptError` for any other shape and, with a tokenizer, for a prompt's name
        that the model does not have, or that comes with token ids."""
        places = super().places()
        if tokenizer is not None and self._prompt(tokenizer) and self.prompt_name and self.is_of_ids:
            raise PromptError("prompt_name", "prompt_name is for texts; put the prompt's token ids before the others")
        return places

    def parts(self, tokenizer: PromptTokenizer) -> list[Part]:
        """Its prompts, in the request's order, with the model's prompt before each text. Raises `PromptError`."""
        self.places(tokenizer)
        return with_prompt(self._prompt(tokenizer), super().parts(tokenizer))

    def _prompt(self, tokenizer: PromptTokenizer) -> str:
        try:
            return tokenizer.embedding_prompts.text(self.prompt_name)
        except ValueError as error:
            raise PromptError("prompt_name", f"prompt_name: {error}") from error


class ClassifyPrompt(TextPrompts, kw_only=True, frozen=True):
    """Those of a request for classes."""

    FIELD = "input"

    input: str | list[Any]


class _Side(NamedTuple):
    """One side of a comparison."""

    name: str
    """Of its field."""
    texts: list[str]
    is_list: bool

    def place(self, index: int) -> str:
        """Where a text of it stands; a single one is every pair's."""
        return f"{self.name}[{index}]" if self.is_list else self.name

    def at(self, index: int) -> int:
        """The text that is of pair `index`."""
        return index if len(self.texts) > 1 else 0


class PairPrompts(_Texts, kw_only=True, frozen=True):
    """The fields of a request that compares texts.

    A prompt is a pair for models that read pairs, and a text for models that make vectors.
    """

    def sides(self) -> tuple[_Side, _Side]:
        """The two sides of the comparison. Raises `PromptError` for wrong fields."""
        raise NotImplementedError

    @property
    def given(self) -> list[Any]:
        """The two sides as sent, unchecked."""
        raise NotImplementedError

    @property
    def num_prompts(self) -> int:
        """Number of pairs by the shape alone, before any text is checked."""
        return max((len(each) if isinstance(each, list) else 1 for each in self.given), default=0)

    @property
    def beginning(self) -> str:
        """First text of the first prompt; empty where no text stands at that place."""
        first = next(iter(self.given), "")
        first = first[0] if isinstance(first, list) and first else first
        return first if isinstance(first, str) else ""

    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of indices into the first and the second side. Raises `PromptError` where the first side has several
        texts and the second side a different number."""
        first, second = self.sides()
        num_first, num_second = len(first.texts), len(second.texts)
        if num_first not in (1, num_second):
            raise PromptError(
                second.name,
                f"{first.name} has {num_first} texts and {second.name} {num_second}; send one text with one or several "
                "others, or as many as there are others",
            )
        return [(first.at(index), second.at(index)) for index in range(num_second)]

    def places(self, tokenizer: PromptTokenizer | None = None) -> list[str]:
        """Where each prompt stands; without a tokenizer, the pairs. Raises `PromptError`."""
        first, second = self.sides()
        pairs = self.pairs()
        places = [second.place(index) for index in range(len(pairs))]
        if tokenizer is None or tokenizer.joins_pairs:
            return places
        return [*(first.place(index) for index in range(len(first.texts))), *places]

    def parts(self, tokenizer: PromptTokenizer) -> list[Part]:
        """The prompts, in the order of the request: pairs, or the texts of the first side, then of the second side,
        with the model's prompt for each side before them. Raises `PromptError`."""
        first, second = self.sides()
        places = self.places(tokenizer)
        if tokenizer.joins_pairs:
            pairs = [Pair(first.texts[one], second.texts[other]) for one, other in self.pairs()]
            return [Part(place, pair) for place, pair in zip(places, pairs, strict=True)]
        parts = [Part(place, text) for place, text in zip(places, [*first.texts, *second.texts], strict=True)]
        (of_first, of_second), num_first = self.before(tokenizer.embedding_prompts), len(first.texts)
        return [*with_prompt(of_first, parts[:num_first]), *with_prompt(of_second, parts[num_first:])]

    def before(self, prompts: EmbeddingPrompts) -> tuple[str, str]:
        """The prompt before the texts of each side: the default, as for vectors of a request for embeddings."""
        return prompts.text(None), prompts.text(None)


class RerankPrompt(PairPrompts, kw_only=True, frozen=True):
    """Those of a request that ranks documents."""

    FIELD: ClassVar[str] = "documents"

    query: str
    documents: list[Any]

    @property
    def given(self) -> list[Any]:
        return [self.query, self.documents]

    def sides(self) -> tuple[_Side, _Side]:
        """The query, and each document, which may be an object with a text."""
        return _side("query", self.query), _side("documents", self.documents)

    def before(self, prompts: EmbeddingPrompts) -> tuple[str, str]:
        """The sides are a query and documents."""
        return prompts.of_query, prompts.of_documents


class ScorePrompt(PairPrompts, kw_only=True, frozen=True):
    """Prompts of a request that scores pairs; the two sides have one of several pairs of names."""

    FIELD: ClassVar[str] = "text_2"
    NAMES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"),
    )  # fmt: skip

    text_1: str | list[Any] | None = None
    text_2: str | list[Any] | None = None
    queries: str | list[Any] | None = None
    documents: str | list[Any] | None = None
    items: str | list[Any] | None = None
    data_1: str | list[Any] | None = None
    data_2: str | list[Any] | None = None

    @property
    def _given_names(self) -> tuple[str, ...]:
        names = dict.fromkeys(name for pair in self.NAMES for name in pair)
        return tuple(name for name in names if getattr(self, name) is not None)

    @property
    def given(self) -> list[Any]:
        return [getattr(self, name) for name in self._given_names]

    def sides(self) -> tuple[_Side, _Side]:
        given = self._given_names
        if given not in self.NAMES:
            missing = next((pair for pair in self.NAMES if set(given) < set(pair)), self.NAMES[0])
            wrong = next((name for name in missing if name not in given), given[-1] if given else missing[0])
            told = " and ".join(given) or "none"
            raise PromptError(
                wrong, f"send {', or '.join(' and '.join(pair) for pair in self.NAMES)}, and no more; {told} came"
            )
        first, second = (_side(name, getattr(self, name)) for name in given)
        return first, second


PromptFields = ChatPrompt | CompletionPrompt | EmbeddingPrompt | ClassifyPrompt | RerankPrompt | ScorePrompt


def with_prompt(prompt: str, parts: list[Part]) -> list[Part]:
    """Parts with a model's prompt before each text. Pairs and token ids stay as they are."""
    if not prompt:
        return parts
    return [Part(part.place, prompt + part.content) if isinstance(part.content, str) else part for part in parts]


def _side(name: str, given: str | list[Any]) -> _Side:
    """Raises `PromptError` for values other than texts, by name."""
    if isinstance(given, str):
        texts = [given]
    elif not given:
        raise PromptError(name, f"{name} is empty; send at least one text")
    else:
        texts = [_text_of(each, f"{name}[{index}]") for index, each in enumerate(given)]
    return _Side(name, texts, isinstance(given, list))


def _text_of(given: Any, place: str) -> str:
    """As Jina and Cohere have it, a text may stand in an object."""
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise PromptError(place, f'{place} must be a text, or an object as {{"text": …}}')
    return text


def num_prompts(content: str | list[Any]) -> int:
    """Number of prompts in a field of texts or token ids, by the shape alone, before any prompt is checked."""
    is_batch = isinstance(content, list) and content and not isinstance(content[0], int)
    return len(content) if is_batch else 1


class AnswerLimit(NamedTuple):
    """The limit of an answer in tokens, as the client wrote it; None = an answer may fill the context."""

    field: str
    max_tokens: int | None
    has_room: bool = True
    """Whether the context must have room for all of it; False = its end may end the answer."""

    @classmethod
    def of(cls, max_tokens: int | None, max_completion_tokens: int | None = None) -> "AnswerLimit":
        """The newer field goes first; chats alone have it. -1 = None."""
        field, limit = ("max_completion_tokens", max_completion_tokens)
        if limit is None:
            field, limit = ("max_tokens", max_tokens)
        return cls(field, None if limit == -1 else limit)

    def check(self, num_tokens: int, max_model_len: int, *, or_more: bool = False) -> None:
        """Raises `AnswerTooLong` where a prompt of `num_tokens` leaves less room, as OpenAI and vLLM do."""
        if self.has_room and self.max_tokens is not None and num_tokens + self.max_tokens > max_model_len:
            raise AnswerTooLong(self.field, self.max_tokens, num_tokens, max_model_len, or_more=or_more)


def rendered_factor(messages: Sequence[Message] | None, tools: Any = None, variables: Any = None) -> int:
    """Upper bound of the size of a rendered chat, as a multiple of the size of the request: a template may write the
    whole chat once per message, or indent two characters by four spaces for each enclosing list or object."""
    return max(1, len(messages or ()), 2 * max(nesting(tools), nesting(variables)))


def check_messages(messages: Sequence[Message]) -> None:
    """Raises `PromptError` for messages without a known role or with content that is neither text nor parts."""
    if not messages:
        raise PromptError("messages", "messages is empty; send at least one message")
    for position, message in enumerate(messages):
        place = f"messages[{position}]"
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            problem = "is missing" if role is None else f"must be one of {', '.join(ROLES)}, not {role!r}"
            raise PromptError(f"{place}.role", f"{place}.role {problem}")
        if content is None and role not in ("assistant", "function", "tool"):
            raise PromptError(f"{place}.content", f"{place}.content is missing")
        if not isinstance(content, str | list | None):
            kind = type(content).__name__
            raise PromptError(f"{place}.content", f"{place}.content must be text or a list of parts, not {kind}")
    written = [text for _, call in _calls(messages) if isinstance(text := _function(call).get("arguments"), str)]
    try:
        check_json("".join(written).encode(errors="replace"))  # they are decoded for the template
    except OverBudget as error:
        raise PromptError("messages", f"the arguments of tool calls in messages: {error}") from error


def _check_calls(messages: Sequence[Message]) -> None:
    """Raises `PromptError` for earlier calls that name no function."""
    for position, message in enumerate(messages):
        if not isinstance(message.get("tool_calls"), list | None):
            field = f"messages[{position}].tool_calls"
            raise PromptError(field, f"{field} must be a list")
        legacy = message.get("function_call")
        if legacy is not None and not (isinstance(legacy, Mapping) and isinstance(legacy.get("name"), str)):
            field = f"messages[{position}].function_call"
            raise PromptError(field, f'{field} must be {{"name": …, "arguments": …}}')
    for place, call in _calls(messages):
        if is_custom(call):
            custom = call.get("custom")
            given = custom if isinstance(custom, Mapping) else {}
            if not all(isinstance(given.get(name), str) for name in ("name", "input")):
                shape = '{"id": …, "type": "custom", "custom": {"name": …, "input": …}}'
                raise PromptError(place, f"{place} must be {shape}")
        elif not isinstance(_function(call).get("name"), str):
            shape = '{"id": …, "type": "function", "function": {"name": …, "arguments": …}}'
            raise PromptError(place, f"{place} must be {shape}")


def _calls(messages: Sequence[Message]) -> Iterator[tuple[str, Any]]:
    """Each call of a tool in a history, with its place."""
    for position, message in enumerate(messages):
        calls = message.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            yield f"messages[{position}].tool_calls[{place}]", call


def _function(call: Any) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _is_ids(part: Any) -> bool:
    return isinstance(part, list) and set(map(type, part)) <= {int}  # a million are looked at in ten milliseconds
