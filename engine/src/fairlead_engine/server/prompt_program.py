"""A model's tokenizer and chat template as the program of a process (`fairlead_common.workers`), and its jobs.

Jobs come from the HTTP process in Python's marshal format: JSON of any depth, without a copy. Answers are MessagePack,
as their reader trusts nothing of a model's.
"""

import marshal
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from fairlead_common.chat import ChatTemplateError
from fairlead_common.least_tokens import LeastTokenCounter
from fairlead_common.prompts import ChatPrompt, EncodedPrompt, PromptError, PromptFields
from fairlead_common.tokenizing import PromptTokenizer
from fairlead_common.workers.process import Handler
from fairlead_engine.errors import EngineError, RequestError
from fairlead_engine.model.tokenizer_files import read_tokenizer

Refusal = tuple[str | None, str, str | None]
"""The field, a sentence, and a code for programs."""
Ids = bytes
"""Unsigned integers of 32 bits, in the machine's order."""

_encode = msgspec.msgpack.Encoder().encode


class Files(msgspec.Struct, array_like=True, frozen=True):
    """Source of a tokenizer: a model's folder or file, or its content."""

    path: str | None = None
    tokenizer_json: str = ""
    chat_template: str | None = None
    special_tokens: dict[str, str] = {}


class ModelShape(NamedTuple):
    """What a model's core says about its prompts."""

    max_model_len: int
    joins_pairs: bool = False
    image_token: str | None = None

    def seen_by(self, tokenizer: PromptTokenizer) -> PromptTokenizer:
        """The tokenizer as this model uses it."""
        tokenizer = tokenizer.joining_pairs() if self.joins_pairs else tokenizer
        return tokenizer if self.image_token is None else tokenizer.seeing(self.image_token)


class PromptsJob(NamedTuple):
    """Make tokens of a request's prompts. The answer is `list[tuple[str, Ids, int | None]]`: place in the request, ids,
    and start of a second text."""

    fields: PromptFields
    shape: ModelShape


class TextsJob(NamedTuple):
    """Encode texts without special tokens. The answer is `list[tuple[Ids, str]]`; with each, why it has no tokens."""

    texts: Sequence[str]


class ResultJob(NamedTuple):
    """Make tokens of a tool's result behind the calling turn. The answer is `tuple[Ids, int]`; a result beyond the
    context has no ids, but its least number of tokens."""

    chat: ChatPrompt
    tool_call_id: str
    content: str
    mark: str
    """Stands for the model's turn so far; occurs in no client's text."""
    shape: ModelShape


class DecodeJob(NamedTuple):
    """The answer is a text."""

    ids: Ids


class FormatsJob(NamedTuple):
    """Determine the formats of a model's calls and reasoning; the answer is their names (`choose_names`)."""

    tool_call_parser: str
    reasoning_parser: str


Job = PromptsJob | TextsJob | ResultJob | DecodeJob | FormatsJob

_JOBS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Job)}
_FIELDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(PromptFields)}


def written(job: Job) -> bytes:
    """As the program gets it."""
    return marshal.dumps((type(job).__name__, [_plain(each) for each in job]))


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return type(value).__name__, msgspec.structs.asdict(value)
    return tuple(value) if isinstance(value, tuple) else value


def _read(message: bytes) -> Job:
    name, values = marshal.loads(message)
    if name in (PromptsJob.__name__, ResultJob.__name__):
        kind, fields = values[0]
        values = [_FIELDS[kind](**fields), *values[1:-1], ModelShape(*values[-1])]
    job: Job = _JOBS[name](*values)
    return job


def make(payload: bytes) -> tuple[bytes, Handler]:
    """Program for `Files`. Its first answer is their problem, as of `EngineError.to_dict`, or None."""
    return _made(payload, may_quicken=True)


def make_plain(payload: bytes) -> tuple[bytes, Handler]:
    """The same without fastokens."""
    return _made(payload, may_quicken=False)


def _made(payload: bytes, *, may_quicken: bool) -> tuple[bytes, Handler]:
    files = msgspec.msgpack.decode(payload, type=Files)
    try:
        if files.path is not None:
            tokenizer = read_tokenizer(Path(files.path))
        else:
            tokenizer = PromptTokenizer(
                files.tokenizer_json, chat_template=files.chat_template, special_tokens=files.special_tokens
            )
        if may_quicken:
            tokenizer.quicken()
        program = PromptProgram(tokenizer)
        tokenizer.forget_json()
        return _encode(None), program
    except EngineError as error:
        return _encode(error.to_dict()), _nothing


def _nothing(message: bytes, takes_long: bool) -> bytes:
    raise AssertionError("it could not be loaded")


class PromptProgram:
    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._least = LeastTokenCounter(tokenizer)
        self._shaped: dict[ModelShape, PromptTokenizer] = {}

    def __call__(self, message: bytes, takes_long: bool) -> bytes:
        """The pair of a refusal and the answer."""
        try:
            return _encode((None, self._done(_read(message))))
        except (PromptError, RequestError) as error:
            return _encode((_told(error.field, error.message, error.code), None))

    def _done(self, job: Job) -> Any:
        match job:
            case PromptsJob():
                prompts = encoded_prompts(job.fields, self._seen_by(job.shape), self._least, job.shape.max_model_len)
                return [(place, packed(ids), start) for place, (ids, start) in prompts]
            case TextsJob():
                return [self._text(text) for text in job.texts]
            case ResultJob():
                return self._result(job)
            case DecodeJob():
                return self._tokenizer.decode(unpacked(job.ids), skip_special_tokens=False)
            case FormatsJob():
                from fairlead_engine.server.answers.answer_formats import choose_names

                template = self._tokenizer.chat_template
                source = None if template is None else template.source
                return choose_names(source, job.tool_call_parser, job.reasoning_parser, self._tokenizer.special_tokens)

    def _seen_by(self, shape: ModelShape) -> PromptTokenizer:
        if shape not in self._shaped:
            self._shaped[shape] = shape.seen_by(self._tokenizer)
        return self._shaped[shape]

    def _text(self, text: str) -> tuple[Ids, str]:
        try:
            return packed(self._tokenizer.encode(text, add_special_tokens=False)), ""
        except Exception as error:  # tokenizers raises bare ones
            return b"", str(error) or type(error).__name__

    def _result(self, job: ResultJob) -> tuple[Ids, int]:
        behind = _behind_turn(job, self._seen_by(job.shape))
        num_tokens = self._least.of(behind, job.shape.max_model_len)
        if num_tokens >= job.shape.max_model_len:
            return b"", num_tokens
        ids, problem = self._text(behind)
        if problem:
            raise RequestError("content", f"content cannot be tokenised by this model: {problem}")
        return ids, 0


def encoded_prompts(
    fields: PromptFields, tokenizer: PromptTokenizer, least: LeastTokenCounter, max_model_len: int
) -> list[tuple[str, EncodedPrompt]]:
    """Each prompt of a request, with its place there. Raises `PromptError`, before tokenising if a prompt is certainly
    too long."""
    parts = fields.parts(tokenizer)
    for part in parts:
        part.check_length(least, max_model_len)
    return [(part.place, part.encoded(tokenizer, fields.adds_special_tokens)) for part in parts]


def packed(ids: Sequence[int]) -> Ids:
    return array("I", ids).tobytes()


def unpacked(ids: Ids) -> list[int]:
    return array("I", ids).tolist()


def _behind_turn(job: ResultJob, tokenizer: PromptTokenizer) -> str:
    """The template's text for a result, from the end of the current turn to the beginning of the next."""
    chat = job.chat
    turn: list[Mapping[str, Any]] = [
        {"role": "assistant", "content": job.mark},
        {"role": "tool", "tool_call_id": job.tool_call_id, "content": job.content},
    ]
    effort = {} if chat.reasoning_effort is None else {"reasoning_effort": chat.reasoning_effort}
    try:
        text = tokenizer.render_chat(
            [*chat.messages, *turn], tools=chat.tools, add_generation_prompt=True,
            continue_final_message=False, **{**effort, **(chat.chat_template_kwargs or {})},
        )  # fmt: skip
    except ChatTemplateError as error:
        raise RequestError("content", f"the result cannot be rendered: {error}") from error
    _, found, behind = text.partition(job.mark)
    if not found or job.mark in behind:
        problem = "this model's chat template does not show where its answers end; send the result with a new request"
        raise RequestError("content", problem, "unsupported_value")
    return behind


def _told(field: str | None, message: str, code: str | None) -> Refusal:
    """Templates may quote what is no text."""
    return field, message.encode(errors="replace").decode(), code
