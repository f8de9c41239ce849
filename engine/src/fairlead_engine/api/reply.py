"""A generation → the body or the event stream of an OpenAI reply.

`Reply` holds what both APIs share; `ChatReply` and `CompletionReply` know their API's shapes.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from fairlead_common.http.server import StreamWriter
from fairlead_common.openai.tool_forms import CallForms
from fairlead_common.wire.messages import HEADER_CACHED_TOKENS
from fairlead_engine.api.detokenizer import CallDelta, TextDelta
from fairlead_engine.api.generation import ChoiceDelta, Generation, TakeAtOnce
from fairlead_engine.api.logprobs import (
    TextOffsets,
    as_token_id,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from fairlead_engine.api.schemas import ChatRequest, CompletionRequest, GenerationRequest
from fairlead_engine.api.token_text import Vocabulary
from fairlead_engine.errors import RequestError
from fairlead_engine.host.exchange import Events
from fairlead_engine.types import MAX_ANSWER_LOGPROBS, FinishReason, TokenLogprobs

_DONE = b"data: [DONE]\n\n"
_PIECE = 256
"""Tokens written in one go: each takes up to 50 µs with alternatives, and a step may score 8,192 tokens."""


_TEXT = "\0"
"""Placeholder text in a chunk's frame: escaped and in quotes it is unique."""
_encode = msgspec.json.Encoder().encode

Request = TypeVar("Request", bound=GenerationRequest)


class Reply(ABC, Generic[Request]):
    kind: str
    """`object` of a whole reply."""
    chunk_kind: str
    """`object` of a chunk."""

    def __init__(self, generation: Generation, vocabulary: Vocabulary, request: Request, *, reply_id: str) -> None:
        self._generation = generation
        self._vocabulary = vocabulary
        self._request = request
        self._naming = as_token_id if request.return_tokens_as_token_ids else vocabulary.token_text
        self._head = {"id": reply_id, "created": int(time.time()), "model": request.model}
        self._has_begun = False
        self._num_sent = 0
        self._num_reasoning_tokens = 0
        self._frames: dict[int, tuple[bytes, bytes]] = {}
        """By choice: bytes before and behind the text in a chunk with text alone."""
        self._varies_in_text_alone = not (request.return_token_ids or request.continuous_usage)

    async def whole(self) -> bytes:
        """The complete answer as one JSON body. Raises `RequestError` for too large an answer, which ends the rest of
        the generation."""
        texts = [Collected() for _ in self._generation.choices]
        num_top = self._request.prompt_logprobs
        for index, collected in enumerate(texts):
            collected.add_logprobs(self.first_logprobs(index))
        num_logprobs = 0
        async for piece in self._pieces():
            for event in piece:
                texts[event.index].add(event.delta, self.logprobs(event.index, event.delta))
                self._num_reasoning_tokens += event.delta.num_reasoning_tokens
                if num_top is not None:
                    told = prompt_logprobs(event.delta.prompt_logprobs, num_top, self._naming)
                    texts[event.index].add_prompt_logprobs(told)
                num_logprobs += event.delta.num_logprobs
            if num_logprobs > MAX_ANSWER_LOGPROBS:
                raise RequestError(
                    "max_tokens",
                    f"the answer has got more than {MAX_ANSWER_LOGPROBS:,} log-probabilities; set or lower max_tokens, "
                    "lower n or top_logprobs, or stream the answer",
                    "answer_too_large",
                )
        choices = [
            {**self.choice(index, texts[index]), **self._ids(texts[index]), "index": place}
            for place, index in enumerate(self.given(texts))
        ]
        usage = self.usage(self._generation.num_output_tokens)
        return self._encoded(self.kind, choices, **self.prompt_fields(), **self.scores(texts), usage=usage)

    async def events(self, writer: StreamWriter | None = None) -> AsyncIterator[Events]:
        """The answer as server-sent events; chunks that came together are sent together. Chunks that `writer` could
        write at once are left out."""

        def write(batch: list[ChoiceDelta]) -> bool:
            if writer is None or not writer.is_ready or sum(map(_size, batch)) > _PIECE:
                return False
            if chunks := self._chunks(batch):
                writer.write(chunks)
            return True

        num_running = len(self._generation.choices)
        async for piece in self._pieces(write):
            num_running -= sum(event.delta.finish_reason is not None for event in piece)
            chunks = self._chunks(piece)
            if not num_running:
                usage = {"usage": self.usage(self._num_sent)}
                chunks += (self._chunk([], self._num_sent, **usage) if self._request.include_usage else b"") + _DONE
            if chunks:
                yield Events(chunks, are_last=not num_running)

    def _chunks(self, piece: list[ChoiceDelta]) -> bytes:
        """Bytes that a piece adds to the stream of events."""
        chunks = []
        if not self._has_begun:  # all choices before the text of any: clients count them by what has come when one ends
            self._has_begun = True
            for index in range(len(self._generation.choices)):
                chunks += [self._chunk([each], 0, **self.prompt_fields()) for each in self.first_choices(index)]
        for event in piece:
            index, delta = event.index, event.delta
            self._num_sent += len(delta.token_ids)
            self._num_reasoning_tokens += delta.num_reasoning_tokens
            if delta.text and self._varies_in_text_alone and not _has_more_than_text(delta):
                if index not in self._frames:
                    chunk = self._chunk([self.chunk_choice(index, TextDelta(_TEXT, []))], 0)
                    before, _, behind = chunk.partition(_encode(_TEXT))
                    self._frames[index] = before, behind
                before, behind = self._frames[index]
                chunks.append(before + _encode(delta.text) + behind)
            elif delta.text or _has_more_than_text(delta) or (self._request.return_token_ids and delta.token_ids):
                chunks.append(self._chunk([{**self.chunk_choice(index, delta), **self._ids(delta)}], self._num_sent))
            if delta.injected is not None:
                told = {"tool_call_id": delta.injected.mark, "num_tokens": delta.injected.num_tokens}
                chunks.append(self._chunk([], self._num_sent, injected=told))
        return b"".join(chunks)

    async def _pieces(self, take_at_once: TakeAtOnce | None = None) -> AsyncIterator[list[ChoiceDelta]]:
        """All deltas in order, in batches of arrival; between the pieces of a large batch other requests run."""
        async for batch in self._generation.batches(take_at_once):
            for index, piece in enumerate(_pieces(batch)):
                if index:
                    await asyncio.sleep(0)
                yield piece

    def headers(self) -> dict[str, str]:
        """Headers known at the first text."""
        return {HEADER_CACHED_TOKENS: str(self._generation.num_cached_tokens)}

    def usage(self, num_output_tokens: int) -> dict[str, Any]:
        num_prompt_tokens = self._generation.num_prompt_tokens
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_output_tokens,
            "total_tokens": num_prompt_tokens + num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self._generation.num_cached_tokens},
        }

    def given(self, texts: "Sequence[Collected]") -> Sequence[int]:
        """Indices of the choices for the client, in order."""
        return range(len(texts))

    def scores(self, texts: "Sequence[Collected]") -> dict[str, Any]:
        """Top-level fields about the prompt's log-probabilities."""
        return {}

    def prompt_fields(self) -> dict[str, Any]:
        """Top-level fields about the prompt."""
        return {}

    def first_logprobs(self, index: int) -> dict[str, Any] | None:
        """Log-probabilities before those of any output."""
        return None

    @abstractmethod
    def choice(self, index: int, collected: "Collected") -> dict[str, Any]:
        """One whole choice."""

    @abstractmethod
    def logprobs(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        """The delta's log-probabilities in the API's shape; None = none."""

    @abstractmethod
    def first_choices(self, index: int) -> list[dict[str, Any]]:
        """Entries of a stream for a choice before its first token."""

    @abstractmethod
    def chunk_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        """The choice's entry in a chunk."""

    def _ids(self, text: "Collected | TextDelta") -> dict[str, Any]:
        return {"token_ids": text.token_ids} if self._request.return_token_ids else {}

    def _chunk(self, choices: list[dict[str, Any]], num_sent: int, **more: Any) -> bytes:
        """`num_sent`: output tokens up to this chunk."""
        if self._request.continuous_usage:
            more.setdefault("usage", self.usage(num_sent))
        elif self._request.include_usage:
            more.setdefault("usage", None)
        return b"data: " + self._encoded(self.chunk_kind, choices, **more) + b"\n\n"

    def _encoded(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return msgspec.json.encode({**self._head, "object": kind, "choices": choices, **more})


class Collected:
    """A choice's joined deltas. Log-probabilities are encoded on arrival: all at once would take ten times the memory,
    and delay other requests."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        """In the API's shape."""
        self.total_logprob = 0.0
        """Sum over all tokens, where log-probabilities are known."""
        self._texts: list[str] = []
        self._logprobs: dict[str, list[bytes]] = {}
        self._prompt_logprobs: list[bytes] = []

    def add(self, delta: TextDelta, logprobs: dict[str, Any] | None) -> None:
        self._texts.append(delta.text)
        self.reasoning += delta.reasoning
        for call in delta.calls:
            if call.id is not None:
                self.calls.append(_call(call))
            else:
                self.calls[call.index]["function"]["arguments"] += call.arguments
        self.token_ids += delta.token_ids
        self.total_logprob += sum(token.logprob for token in delta.logprobs)
        self.add_logprobs(logprobs)
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason

    def add_logprobs(self, logprobs: dict[str, Any] | None) -> None:
        for name, values in (logprobs or {}).items():
            parts = self._logprobs.setdefault(name, [])
            if values is not None:
                parts.append(msgspec.json.encode(values)[1:-1])

    def add_prompt_logprobs(self, entries: list[dict[str, Any]]) -> None:
        self._prompt_logprobs += [msgspec.json.encode(entries)[1:-1]] if entries else []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def prompt_logprobs(self) -> msgspec.Raw:
        """Of each token of the prompt; null for the first."""
        return msgspec.Raw(b"[" + b",".join([b"null", *self._prompt_logprobs]) + b"]")

    @property
    def logprobs(self) -> dict[str, msgspec.Raw | None] | None:
        """The joined lists in the API's shape; None where nothing has come."""
        joined = {
            name: msgspec.Raw(b"[" + b",".join(parts) + b"]") if parts else None
            for name, parts in self._logprobs.items()
        }
        return joined or None

    @property
    def ending(self) -> dict[str, Any]:
        return {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}


class ChatReply(Reply[ChatRequest]):
    """`/v1/chat/completions`."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def prompt_fields(self) -> dict[str, Any]:
        if not self._request.return_token_ids:
            return {}
        return {"prompt_token_ids": self._generation.choices[0].request.prompt_token_ids}

    def usage(self, num_output_tokens: int) -> dict[str, Any]:
        details = {"reasoning_tokens": self._num_reasoning_tokens}
        return {**super().usage(num_output_tokens), "completion_tokens_details": details}

    def scores(self, texts: Sequence[Collected]) -> dict[str, Any]:
        return {} if self._request.prompt_logprobs is None else {"prompt_logprobs": texts[0].prompt_logprobs}

    def __init__(self, generation: Generation, vocabulary: Vocabulary, request: ChatRequest, *, reply_id: str) -> None:
        super().__init__(generation, vocabulary, request, reply_id=reply_id)
        self._forms = CallForms(request.tools, request.functions)

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": collected.text, "refusal": None}
        if collected.reasoning:
            message["reasoning_content"] = collected.reasoning
        if collected.calls:
            message["content"] = collected.text or None
            message |= self._forms.whole(collected.calls)
        return self._ended({"index": index, "message": message, "logprobs": collected.logprobs, **collected.ending})

    def _ended(self, choice: dict[str, Any]) -> dict[str, Any]:
        return choice | {"finish_reason": self._forms.reason(choice["finish_reason"])}

    def first_choices(self, index: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def chunk_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        content: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if delta.reasoning:
            content["reasoning_content"] = delta.reasoning
        if delta.calls:
            content |= self._forms.added(index, [{"index": call.index, **_call(call)} for call in delta.calls])
        choice = {"index": index, "delta": content, "logprobs": self.logprobs(index, delta)}
        return self._ended({**choice, **_ending(delta)})

    def logprobs(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        return chat_logprobs(delta.logprobs, self._vocabulary, self._naming) if delta.logprobs else None


class CompletionReply(Reply[CompletionRequest]):
    """`/v1/completions`; with `echo` each choice begins with its prompt."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self, generation: Generation, vocabulary: Vocabulary, request: CompletionRequest, *, reply_id: str
    ) -> None:
        super().__init__(generation, vocabulary, request, reply_id=reply_id)
        self._skip_special = request.skip_special_tokens is not False
        self._prompts: dict[int, str] = {}
        """Prompts' texts, by place in the request, each made when first asked for."""
        self._offsets = []
        for index in range(len(generation.choices)):
            before = [] if request.echo else self._prompt_token_ids(index)
            stream = self._vocabulary.stream(
                after=before, skip_special_tokens=self._skip_special, tells_begun=bool(request.echo)
            )
            self._offsets.append(TextOffsets(stream))

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        text = self._prompt(index) + collected.text
        ids = self._prompt_ids(index)
        if self._request.prompt_logprobs is not None:
            ids["prompt_logprobs"] = collected.prompt_logprobs
        return {"index": index, "text": text, "logprobs": collected.logprobs, **collected.ending, **ids}

    def given(self, texts: Sequence[Collected]) -> Sequence[int]:
        request = self._request
        if not request.chooses:
            return super().given(texts)
        indices: list[int] = []
        for first in range(0, len(texts), request.num_each):
            if request.use_beam_search:  # which has them in order
                indices += range(first, first + request.num_given)
                continue
            made = sorted(range(first, first + request.num_each), key=lambda each: -texts[each].total_logprob)
            indices += made[: request.num_given]
        return indices

    def first_choices(self, index: int) -> list[dict[str, Any]]:
        if not (self._request.echo or self._request.return_token_ids):
            return []
        logprobs = self.first_logprobs(index)
        first = {"index": index, "text": self._prompt(index), "logprobs": logprobs, "finish_reason": None}
        return [{**first, **self._prompt_ids(index)}]

    def chunk_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return {"index": index, "text": delta.text, "logprobs": self.logprobs(index, delta), **_ending(delta)}

    def _prompt_token_ids(self, index: int) -> list[int]:
        return self._generation.choices[index].request.prompt_token_ids

    def _prompt(self, index: int) -> str:
        if not self._request.echo:
            return ""
        number = index // self._request.num_each  # the choices of one prompt stand together
        if number not in self._prompts:
            ids = self._prompt_token_ids(index)
            self._prompts[number] = self._vocabulary.text_before(ids, skip_special_tokens=self._skip_special)
        return self._prompts[number]

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        return {"prompt_token_ids": self._prompt_token_ids(index)} if self._request.return_token_ids else {}

    def first_logprobs(self, index: int) -> dict[str, Any] | None:
        """The entry of the prompt's first token, which has no log-probability, if the prompt's are wanted."""
        is_told = self._request.echo and self._request.logprobs is not None
        return self._shape(index, self._prompt_token_ids(index)[:1]) if is_told else None

    def logprobs(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        if self._request.logprobs is None:  # the delta's may serve `prompt_logprobs` or `best_of`
            return None
        return self._shape(index, [*(delta.prompt_logprobs if self._request.echo else ()), *delta.logprobs])

    def _shape(self, index: int, entries: Sequence[TokenLogprobs | int]) -> dict[str, Any] | None:
        num_top = self._request.logprobs or 0
        return completion_logprobs(entries, self._offsets[index], self._naming, num_top) if entries else None


def _ending(delta: TextDelta) -> dict[str, Any]:
    if delta.finish_reason is None:
        return {"finish_reason": None}
    return {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}


def _call(call: CallDelta) -> dict[str, Any]:
    """A new call, or more of its arguments."""
    if call.id is None:
        return {"function": {"arguments": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _has_more_than_text(delta: TextDelta) -> bool:
    return bool(delta.logprobs or delta.prompt_logprobs or delta.finish_reason or delta.reasoning or delta.calls)


def _size(event: ChoiceDelta) -> int:
    """Approximate number of tokens."""
    return 1 + len(event.delta.prompt_logprobs) + len(event.delta.logprobs)


def _pieces(batch: Sequence[ChoiceDelta]) -> Iterator[list[ChoiceDelta]]:
    """A batch in pieces of about `_PIECE` tokens."""
    piece: list[ChoiceDelta] = []
    size = 0
    for event in batch:
        for delta in event.delta.parts(_PIECE):
            piece.append(ChoiceDelta(event.index, delta))
            size += _size(piece[-1])
            if size >= _PIECE:
                yield piece
                piece, size = [], 0
    if piece:
        yield piece
