"""Log-probabilities in the two shapes of the OpenAI API. Knows tokens and their text, not answers."""

from collections.abc import Callable, Iterable
from typing import Any

from fairlead_engine.api.token_text import TokenStream, Vocabulary
from fairlead_engine.types import TokenLogprobs

_LOWEST = -9999.0
"""In place of minus infinity, which JSON cannot write."""

Naming = Callable[[int], str]
"""How a token is written, such as `Vocabulary.token_text`."""


def as_token_id(token_id: int) -> str:
    """vLLM's unambiguous way to write a token."""
    return f"token_id:{token_id}"


class TextOffsets:
    """Where each token's text begins in the whole text, in characters: several tokens may form one character, and
    hidden tokens have no length."""

    def __init__(self, stream: TokenStream) -> None:
        self._stream = stream
        self._num_characters = 0

    def take(self, token_id: int) -> int:
        offset = self._num_characters
        self._num_characters += len(self._stream.push(token_id))
        return offset


def chat_logprobs(tokens: Iterable[TokenLogprobs], vocabulary: Vocabulary, naming: Naming) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = list(vocabulary.token_bytes(token_id))
        return {"token": naming(token_id), "logprob": max(logprob, _LOWEST), "bytes": raw}

    content = [
        {**entry(token.token_id, token.logprob), "top_logprobs": [entry(*each) for each in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(tokens: Iterable[TokenLogprobs], num_top: int, naming: Naming) -> list[dict[str, Any]]:
    """vLLM's `prompt_logprobs`: each token of a prompt from the second on, with alternatives, by id."""
    shaped = []
    for token in tokens:
        ranked = [(token.token_id, token.logprob, token.rank)]
        ranked += [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(token.top[:num_top])]
        shaped.append(
            {
                str(token_id): {"logprob": max(logprob, _LOWEST), "rank": rank + 1, "decoded_token": naming(token_id)}
                for token_id, logprob, rank in ranked
            }
        )
    return shaped


def completion_logprobs(
    tokens: Iterable[TokenLogprobs | int], offsets: TextOffsets, naming: Naming, num_top: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion; an id alone is a token without a prediction."""
    texts: list[str] = []
    text_offsets: list[int] = []
    logprobs: list[float | None] = []
    top: list[dict[str, float] | None] = []
    for token in tokens:
        token_id = token if isinstance(token, int) else token.token_id
        texts.append(naming(token_id))
        text_offsets.append(offsets.take(token_id))
        if isinstance(token, int):
            logprobs.append(None)
            top.append(None)
            continue
        logprob = max(token.logprob, _LOWEST)
        logprobs.append(logprob)
        ranked: dict[str, float] = {}
        for each, value in [*token.top[:num_top], (token_id, logprob)] if num_top else []:
            ranked.setdefault(naming(each), max(value, _LOWEST))  # of tokens written alike the likeliest
        top.append(ranked)
    return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": text_offsets}
