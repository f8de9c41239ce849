"""What a fake engine answers, in OpenAI's shapes. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class Answer:
    """One answer in the making."""

    engine: str
    """The engine's name, the beginning of the answer's id."""
    model: str
    chat: bool
    tokens: list[str]
    num_prompt_tokens: int
    num_cached_tokens: int = 0

    @property
    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": len(self.tokens),
            "total_tokens": self.num_prompt_tokens + len(self.tokens),
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        text = "".join(self.tokens)
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": "stop"}
        return {**self._envelope(""), "choices": [choice], "usage": self.usage}

    def embedding(self) -> dict[str, Any]:
        """A vector, which is always the same."""
        usage = {**self.usage, "total_tokens": self.num_prompt_tokens}
        del usage["completion_tokens"]
        vector = {"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}
        return {"object": "list", "data": [vector], "model": self.model, "usage": usage}

    def ranking(self, num_documents: int) -> dict[str, Any]:
        """Documents in their own order, each half as relevant as the one before."""
        results = [{"index": index, "relevance_score": 0.5**index} for index in range(num_documents)]
        usage = {**self.usage, "total_tokens": self.num_prompt_tokens}
        del usage["completion_tokens"]
        return {"results": results, "model": self.model, "usage": usage}

    def events(self, *, include_usage: bool, null_usage: bool) -> Iterator[bytes]:
        """One event per token, then the finish reason, the usage if it was asked for, and the end.

        `null_usage`: the other chunks say `"usage": null` where it was asked for.
        """
        before, after = json.dumps(self._chunk("\0", None, null_usage and include_usage)).encode().split(b'"\\u0000"')
        for token in self.tokens:
            yield b"data: %b%b%b\n\n" % (before, json.dumps(token).encode(), after)
        yield _event(self._chunk("", "stop", null_usage and include_usage))
        if include_usage:
            yield _event({**self._envelope(".chunk"), "choices": [], "usage": self.usage})
        yield b"data: [DONE]\n\n"

    def _chunk(self, text: str, reason: str | None, with_null: bool) -> dict[str, Any]:
        content = {"delta": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": reason}
        return {**self._envelope(".chunk"), "choices": [choice], **({"usage": None} if with_null else {})}

    def _envelope(self, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if self.chat else "text_completion"
        return {"id": f"{self.engine}-1", "object": kind, "created": 1, "model": self.model}


def error(message: str, type: str, code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


def cut(data: bytes, size: int | None) -> Iterator[bytes]:
    """Pieces of `size` bytes; None = one piece."""
    step = size or len(data)
    return (data[start : start + step] for start in range(0, len(data), step))


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"
