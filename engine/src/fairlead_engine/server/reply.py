"""A generation → the body or the event stream of an OpenAI reply.

`Reply` holds what both APIs share; `ChatReply` and `CompletionReply` know their API's shapes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from fairlead_engine.errors import RequestError
from fairlead_engine.server.detokenizer import TextDelta
from fairlead_engine.server.generation import Generation
from fairlead_engine.server.logprobs import chat_logprobs, completion_logprobs
from fairlead_engine.server.token_text import Vocabulary
from fairlead_engine.types import MAX_ANSWER_LOGPROBS, FinishReason
from fairlead_protocol.messages import HEADER_CACHED_TOKENS

_DONE = b"data: [DONE]\n\n"


class Reply(ABC):
    """One request's answer."""

    def __init__(
        self, generation: Generation, vocabulary: Vocabulary, *, reply_id: str, model: str, include_usage: bool = False
    ) -> None:
        self._generation = generation
        self._vocabulary = vocabulary
        self._include_usage = include_usage
        self._head = {"id": reply_id, "created": int(time.time()), "model": model}

    async def whole(self) -> bytes:
        """The answer as one JSON body, once everything has been generated.

        Raises `RequestError` for one that gets too large, which ends all that still runs of it.
        """
        texts = [Collected() for _ in self._generation.choices]
        num_logprobs = 0
        async for batch in self._generation.batches():
            for event in batch:
                texts[event.index].add(event.delta, self.logprobs(event.index, event.delta))
                num_logprobs += sum(1 + len(token.top) for token in event.delta.logprobs)
            if num_logprobs > MAX_ANSWER_LOGPROBS:
                raise RequestError(
                    "max_tokens",
                    f"the answer has got more than {MAX_ANSWER_LOGPROBS:,} log-probabilities; set or lower max_tokens, "
                    "lower n or top_logprobs, or stream the answer",
                    "answer_too_large",
                )
        choices = [self.choice(index, collected) for index, collected in enumerate(texts)]
        return msgspec.json.encode({**self._head, "object": self.kind, "choices": choices, "usage": self.usage()})

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events; chunks that came together are sent together."""
        has_begun: set[int] = set()
        async for batch in self._generation.batches():
            chunks = []
            for event in batch:
                if event.index not in has_begun:
                    has_begun.add(event.index)
                    chunks += [self._chunk([choice]) for choice in self.first_choices(event.index)]
                delta = event.delta
                if delta.text or delta.logprobs or delta.finish_reason:
                    chunks.append(self._chunk([self.chunk_choice(event.index, delta)]))
            if chunks:
                yield b"".join(chunks)
        yield (self._chunk([], usage=self.usage()) if self._include_usage else b"") + _DONE

    def headers(self) -> dict[str, str]:
        """Headers that say what is known when the first text is there."""
        return {HEADER_CACHED_TOKENS: str(self._generation.num_cached_tokens)}

    def usage(self) -> dict[str, Any]:
        """OpenAI's token counts."""
        prompt, output = self._generation.num_prompt_tokens, self._generation.num_output_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": self._generation.num_cached_tokens},
        }

    @property
    @abstractmethod
    def kind(self) -> str:
        """`object` of a whole reply."""

    @property
    @abstractmethod
    def chunk_kind(self) -> str:
        """`object` of a chunk."""

    @abstractmethod
    def choice(self, index: int, collected: "Collected") -> dict[str, Any]:
        """One whole choice."""

    @abstractmethod
    def logprobs(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        """A choice's log-probabilities in what was added to it, in the API's shape; None where there are none."""

    @abstractmethod
    def first_choices(self, index: int) -> list[dict[str, Any]]:
        """What a stream says about a choice before its first token."""

    @abstractmethod
    def chunk_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        """What a chunk says about its choice."""

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        if self._include_usage:
            more.setdefault("usage", None)
        return (
            b"data: "
            + msgspec.json.encode({**self._head, "object": self.chunk_kind, "choices": choices, **more})
            + b"\n\n"
        )


class Collected:
    """A choice's deltas put together.

    Log-probabilities are encoded as they come: all at once they would take ten times the memory, and hold everybody up.
    """

    def __init__(self) -> None:
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self._texts: list[str] = []
        self._logprobs: dict[str, list[bytes]] = {}

    def add(self, delta: TextDelta, logprobs: dict[str, Any] | None) -> None:
        self._texts.append(delta.text)
        for name, values in (logprobs or {}).items():
            parts = self._logprobs.setdefault(name, [])
            if values is not None:
                parts.append(msgspec.json.encode(values)[1:-1])
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def logprobs(self) -> dict[str, msgspec.Raw | None] | None:
        """The lists of the API's shape, put together; None where nothing has come."""
        joined = {
            name: msgspec.Raw(b"[" + b",".join(parts) + b"]") if parts else None
            for name, parts in self._logprobs.items()
        }
        return joined or None

    @property
    def ending(self) -> dict[str, Any]:
        return {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}


class ChatReply(Reply):
    """`/v1/chat/completions`."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        message = {"role": "assistant", "content": collected.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": collected.logprobs, **collected.ending}

    def first_choices(self, index: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def chunk_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        content = {"content": delta.text} if delta.text else {}
        choice = {"index": index, "delta": content, "logprobs": self.logprobs(index, delta)}
        return {**choice, **_ending(delta)}

    def logprobs(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        return chat_logprobs(delta.logprobs, self._vocabulary) if delta.logprobs else None


class CompletionReply(Reply):
    """`/v1/completions`; with `echo` each choice begins with its prompt."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self,
        generation: Generation,
        vocabulary: Vocabulary,
        *,
        reply_id: str,
        model: str,
        include_usage: bool = False,
        echo: bool = False,
    ) -> None:
        super().__init__(generation, vocabulary, reply_id=reply_id, model=model, include_usage=include_usage)
        self._echo = echo
        self._offsets = [0] * len(generation.choices)

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        text = self._prompt(index) + collected.text
        return {"index": index, "text": text, "logprobs": collected.logprobs, **collected.ending}

    def first_choices(self, index: int) -> list[dict[str, Any]]:
        if not self._echo:
            return []
        return [{"index": index, "text": self._prompt(index), "logprobs": None, "finish_reason": None}]

    def chunk_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return {"index": index, "text": delta.text, "logprobs": self.logprobs(index, delta), **_ending(delta)}

    def _prompt(self, index: int) -> str:
        token_ids = self._generation.choices[index].request.prompt_token_ids
        return self._vocabulary.tokenizer.decode(token_ids) if self._echo else ""

    def logprobs(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        if not delta.logprobs:
            return None
        shape = completion_logprobs(delta.logprobs, self._vocabulary, self._offsets[index])
        self._offsets[index] += sum(map(len, shape["tokens"]))
        return shape


def _ending(delta: TextDelta) -> dict[str, Any]:
    if delta.finish_reason is None:
        return {"finish_reason": None}
    return {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
