"""Conversations to batches: encodes them, marks the answers, and packs rows so that little of a step is padding."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from fairlead_common.tokens.tokenizing import PromptTokenizer
from lessons.conversation import Conversation
from training.vocabulary import ASSISTANT, END

IGNORED = -100
"""Target of a place that is not trained on."""
ROW_LENGTHS = (256, 1024, 2048)
"""An example that is scored goes into a row of the smallest of these lengths that holds it."""
ENCODED_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Example:
    """One encoded conversation: `targets[i]` is the token after `token_ids[i]` inside an answer, else `IGNORED`."""

    kind: str
    token_ids: list[int]
    targets: list[int]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """`[rows, tokens]` tensors; several examples share a row, each its own segment with positions from 0."""

    token_ids: Tensor
    positions: Tensor
    segments: Tensor
    """Number of the example in its row, from 1; 0 is padding."""
    targets: Tensor


def encode(tokenizer: PromptTokenizer, conversations: Sequence[Conversation]) -> list[Example]:
    """Examples for `conversations`, in order."""
    texts = [tokenizer.render_chat(c.messages, tools=c.tools, add_generation_prompt=False) for c in conversations]
    encodings = tokenizer.backend.encode_batch(texts, add_special_tokens=False)
    begin, end = tokenizer.token_id(ASSISTANT), tokenizer.token_id(END)
    return [
        Example(conversation.kind, encoding.ids, _targets(encoding.ids, begin, end))
        for conversation, encoding in zip(conversations, encodings, strict=True)
    ]


def _targets(token_ids: list[int], begin: int | None, end: int | None) -> list[int]:
    """From the token that opens an answer, the next token is a target, up to the one that ends the answer."""
    targets = [IGNORED] * len(token_ids)
    answering = False
    for place, token in enumerate(token_ids[:-1]):
        answering = token == begin or (answering and token != end)
        if answering:
            targets[place] = token_ids[place + 1]
    return targets


def examples(tokenizer: PromptTokenizer, conversations: Iterator[Conversation]) -> Iterator[Example]:
    """Encodes a stream, many conversations at a time."""
    while chunk := list(islice(conversations, ENCODED_AT_ONCE)):
        yield from encode(tokenizer, chunk)


def batches(stream: Iterable[Example], tokens_per_batch: int, row_length: int) -> Iterator[PackedBatch]:
    """Packs a stream into batches of `tokens_per_batch` places in rows of `row_length`.

    All rows are alike, so that every batch holds every kind of example: batches of one kind each undo one another's
    learning. An example that is longer than a row is left out.
    """
    rows: list[list[Example]] = []
    for example in stream:
        if len(example.token_ids) > row_length:
            continue
        fitting = next((row for row in rows if _length(row) + len(example.token_ids) <= row_length), None)
        if fitting is not None:
            fitting.append(example)
            continue
        if len(rows) == tokens_per_batch // row_length:
            yield pack(rows, row_length)
            rows = []
        rows.append([example])


def _length(row: Sequence[Example]) -> int:
    return sum(len(example.token_ids) for example in row)


def pack(rows: Sequence[Sequence[Example]], row_length: int) -> PackedBatch:
    """Lays examples out side by side, row by row."""
    token_ids, positions, segments = (torch.zeros(len(rows), row_length, dtype=torch.int64) for _ in range(3))
    targets = torch.full((len(rows), row_length), IGNORED)
    for index, row in enumerate(rows):
        start = 0
        for number, example in enumerate(row, start=1):
            places = slice(start, start + len(example.token_ids))
            token_ids[index, places] = torch.tensor(example.token_ids)
            targets[index, places] = torch.tensor(example.targets)
            positions[index, places] = torch.arange(len(example.token_ids))
            segments[index, places] = number
            start = places.stop
    return PackedBatch(token_ids, positions, segments, targets)
