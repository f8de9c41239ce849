"""A model's tokenizer and chat template as the program of a process (`fairlead_common.workers`), and its jobs.

Jobs come from the HTTP process in Python's marshal format: JSON of any depth, without a copy. Answers are MessagePack,
as the HTTP process does not trust a model's files.
"""

import marshal
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from fairlead_common.openai.chat import ChatTemplateError
from fairlead_common.openai.prompts import AnswerLimit, ChatPrompt, EncodedPrompt, PromptError, PromptFields
from fairlead_common.openai.truncation import FIELD, MAX_CHARACTERS, frame_of, truncation_of
from fairlead_common.tokens.embedding_prompts import EmbeddingPrompts
from fairlead_common.tokens.least_tokens import LeastTokenCounter
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.workers.process import Handler
from fairlead_engine.errors import EngineError, RequestError
from fairlead_engine.model.tokenizer_files import read_tokenizer

Refusal = tuple[str | None, str, str | None]
"""The field, a sentence, and a code for programs."""
Ids = bytes
"""Unsigned integers of 32 bits, in the machine's order."""

_encode = msgspec.msgpack.Encoder().encode


class Files(msgspec.Struct, array_like=True, frozen=True):
    """Source of a tokenizer: a model's folder or file, or its content. `chat_template`: beside a folder or file, the
    template in place of the model's; None = the model's."""

    path: str | None = None
    tokenizer_json: str = ""
    chat_template: str | None = None
    special_tokens: dict[str, str] = {}
    embedding_prompts: EmbeddingPrompts = EmbeddingPrompts()


class ModelShape(NamedTuple):
    """How a model's prompts are made, and how long they may be."""

    max_model_len: int
    joins_pairs: bool = False
    image_token: str | None = None
    instructs_tools: bool = False
    image_frame: tuple[str, str] | None = None

    def seen_by(self, tokenizer: PromptTokenizer) -> PromptTokenizer:
        """The tokenizer as this model uses it."""
        tokenizer = tokenizer.joining_pairs() if self.joins_pairs else tokenizer
        tokenizer = tokenizer.instructing() if self.instructs_tools else tokenizer
        return tokenizer if self.image_token is None else tokenizer.seeing(self.image_token, self.image_frame)


def written(job: str, *arguments: Any) -> bytes:
    """A job as the program gets it: the name of a method of `PromptProgram`, and its arguments."""
    return marshal.dumps((job, [_plain(each) for each in arguments]))


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return type(value).__name__, msgspec.structs.asdict(value)
    return tuple(value) if isinstance(value, tuple) else value


_FIELDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(PromptFields)}


def make(payload: bytes, *, may_quicken: bool = True) -> tuple[bytes, Handler]:
    """Program for `Files`. Its first answer is their problem, as of `EngineError.to_dict`, or None. `may_quicken`:
    whether fastokens may be used."""
    files = msgspec.msgpack.decode(payload, type=Files)
    try:
        if files.path is not None:
            tokenizer = read_tokenizer(Path(files.path), files.chat_template)
        else:
            tokenizer = PromptTokenizer(
                files.tokenizer_json,
                chat_template=files.chat_template,
                special_tokens=files.special_tokens,
                embedding_prompts=files.embedding_prompts,
            )
        if may_quicken:
            tokenizer.quicken()
        program = PromptProgram(tokenizer)
        tokenizer.forget_json()
        return _encode(None), program
    except EngineError as error:
        return _encode(error.to_dict()), _nothing


def make_plain(payload: bytes) -> tuple[bytes, Handler]:
    return make(payload, may_quicken=False)


def _nothing(message: bytes, takes_long: bool) -> bytes:
    raise AssertionError("it could not be loaded")


class PromptProgram:
    """Each public method is a job. Structs among the arguments are plain (`_plain`)."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._least = LeastTokenCounter(tokenizer)
        self._shaped: dict[ModelShape, PromptTokenizer] = {}

    def __call__(self, message: bytes, takes_long: bool) -> bytes:
        """The pair of a refusal and the answer."""
        job, arguments = marshal.loads(message)
        try:
            return _encode((None, getattr(self, job)(*arguments)))
        except (PromptError, RequestError) as error:  # templates may quote bytes outside of Unicode
            refusal: Refusal = (error.field, error.message.encode(errors="replace").decode(), error.code)
            return _encode((refusal, None))

    def prompts(self, request: tuple[str, Any], shape: tuple[Any, ...]) -> list[tuple[str, Ids, int | None]]:
        """Tokens of a request's prompts: place in the request, ids, and start of a second text."""
        fields, seen = _FIELDS[request[0]](**request[1]), ModelShape(*shape)
        prompts = encoded_prompts(fields, self._seen_by(seen), self._least, seen.max_model_len)
        return [(place, packed(ids), start) for place, (ids, start) in prompts]

    def texts(self, texts: Sequence[str]) -> list[tuple[Ids, str]]:
        """Each text's ids without special tokens, and why a text has none."""
        return [self._encoded(text) for text in texts]

    def result(
        self, request: tuple[str, Any], tool_call_id: str, content: str, mark: str, shape: tuple[Any, ...]
    ) -> tuple[Ids, int]:
        """Tokens of a tool's result behind the calling turn; for a result beyond the context its least number of
        tokens instead. `mark`: stands for the model's turn so far, and occurs in no client's text."""
        seen = ModelShape(*shape)
        turn: list[Mapping[str, Any]] = [
            {"role": "assistant", "content": mark},
            {"role": "tool", "tool_call_id": tool_call_id, "content": content},
        ]
        behind = _behind(mark, ChatPrompt(**request[1]), turn, self._seen_by(seen))
        num_tokens = self._least.of(behind, seen.max_model_len)
        if num_tokens >= seen.max_model_len:
            return b"", num_tokens
        ids, problem = self._encoded(behind)
        if problem:
            raise RequestError("content", f"content cannot be tokenised by this model: {problem}")
        return ids, 0

    def text(self, ids: Ids) -> str:
        """The text of the ids, special tokens included."""
        return self._tokenizer.decode(unpacked(ids), skip_special_tokens=False)

    def formats(self, tool_call_parser: str, reasoning_parser: str) -> tuple[str, str]:
        """Names of the formats of the model's calls and reasoning."""
        from fairlead_engine.api.answers.answer_formats import choose_names

        template = self._tokenizer.chat_template
        source = None if template is None else template.source
        return choose_names(source, tool_call_parser, reasoning_parser, self._tokenizer.special_tokens)

    def _seen_by(self, shape: ModelShape) -> PromptTokenizer:
        if shape not in self._shaped:
            self._shaped[shape] = shape.seen_by(self._tokenizer)
        return self._shaped[shape]

    def _encoded(self, text: str) -> tuple[Ids, str]:
        try:
            return packed(self._tokenizer.encode(text, add_special_tokens=False)), ""
        except Exception as error:  # tokenizers raises bare ones
            return b"", str(error) or type(error).__name__


def encoded_prompts(
    fields: PromptFields, tokenizer: PromptTokenizer, least: LeastTokenCounter, max_model_len: int
) -> list[tuple[str, EncodedPrompt]]:
    """Each prompt of a request, with its place there. Raises `PromptError`, before tokenising if a prompt is certainly
    too long."""
    parts = fields.parts(tokenizer)
    truncation = truncation_of(fields, max_model_len, AnswerLimit.of(None))
    for part in parts:
        if truncation is None:
            part.check_length(least, max_model_len)
        elif (length := sum(map(len, part.texts))) > MAX_CHARACTERS:
            problem = f"has {length} characters; {FIELD} takes at most {MAX_CHARACTERS}, so shorten it"
            raise PromptError(part.place, f"{part.place} {problem}")
    encoded = [(part, part.encoded(tokenizer, fields.adds_special_tokens)) for part in parts]
    if truncation is None:
        return [(part.place, prompt) for part, prompt in encoded]
    frames = (frame_of(fields, bool(part.texts), tokenizer) for part in parts)
    return [
        (part.place, EncodedPrompt(truncation.cut(prompt.token_ids, frame)))
        for (part, prompt), frame in zip(encoded, frames, strict=True)
    ]


def packed(ids: Sequence[int]) -> Ids:
    return array("I", ids).tobytes()


def unpacked(ids: Ids) -> list[int]:
    return array("I", ids).tolist()


def _behind(mark: str, chat: ChatPrompt, turn: Sequence[Mapping[str, Any]], tokenizer: PromptTokenizer) -> str:
    """The template's text for a result, from the end of the current turn to the beginning of the next."""
    try:
        text = tokenizer.render_chat(
            [*chat.shown_messages, *turn], tools=chat.shown_tools, add_generation_prompt=True,
            continue_final_message=False, **chat.variables,
        )  # fmt: skip
    except ChatTemplateError as error:
        raise RequestError("content", f"the result cannot be rendered: {error}") from error
    _, found, behind = text.partition(mark)
    if not found or mark in behind:
        problem = "this model's chat template does not show where its answers end; send the result with a new request"
        raise RequestError("content", problem, "unsupported_value")
    return behind
