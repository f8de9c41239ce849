"""Log-probabilities in the two shapes of the OpenAI API. Pure."""

from collections.abc import Iterable
from typing import Any

from fairlead_engine.server.token_text import Vocabulary
from fairlead_engine.types import TokenLogprobs

_LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


def chat_logprobs(tokens: Iterable[TokenLogprobs], vocabulary: Vocabulary) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""
    content = [
        {
            **_entry(token.token_id, token.logprob, vocabulary),
            "top_logprobs": [_entry(token_id, logprob, vocabulary) for token_id, logprob in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Iterable[TokenLogprobs], vocabulary: Vocabulary, offset: int) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion; `offset` is where the first token's text begins, in characters."""
    texts: list[str] = []
    offsets: list[int] = []
    logprobs: list[float] = []
    top: list[dict[str, float]] = []
    for token in tokens:
        texts.append(vocabulary.token_text(token.token_id))
        offsets.append(offset)
        offset += len(texts[-1])
        logprobs.append(max(token.logprob, _LOWEST))
        ranked = {vocabulary.token_text(token_id): max(logprob, _LOWEST) for token_id, logprob in token.top}
        top.append({**ranked, texts[-1]: logprobs[-1]} if ranked else {})
    return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets}


def _entry(token_id: int, logprob: float, vocabulary: Vocabulary) -> dict[str, Any]:
    raw = vocabulary.token_bytes(token_id)
    return {"token": raw.decode(errors="replace"), "logprob": max(logprob, _LOWEST), "bytes": list(raw)}
