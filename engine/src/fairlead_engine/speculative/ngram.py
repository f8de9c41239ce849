"""Guesses from the text itself: what followed the last few tokens when they stood there before (prompt lookup).

Code that is edited, documents that are quoted and answers that repeat the question are full of it, and it costs no
weights. Source: Saxena, Prompt Lookup Decoding (2023).
"""

from collections.abc import Iterable

from fairlead_engine.types.sequences import Sequence

_MOST_INDEXED = 4096
"""Tokens of a prompt that are looked through in one step: a long one must not hold the others up."""


class _Index:
    """Where each run of tokens of a few lengths was seen last."""

    __slots__ = ("by_length", "first", "num_seen")

    def __init__(self, num_lengths: int, first: int) -> None:
        self.first = first
        """Where the text begins."""
        self.num_seen = first
        """Tokens up to which runs are known."""
        self.by_length: list[dict[tuple[int, ...], int]] = [{} for _ in range(num_lengths)]
        """Run → the position behind it; the shortest length first."""


class NGramProposer:
    """Takes the longest run of tokens, of `shortest` to `longest`, that ends the sequence and stood in it before, and
    proposes what followed it last. Where that reaches the end it goes round: what repeats is expected to go on."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(shortest, longest + 1)
        self._indices: dict[Sequence, _Index] = {}

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """Up to `most` tokens that may follow its known ones; none where nothing is found."""
        token_ids = sequence.token_ids
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = _Index(len(self._lengths), sequence.num_virtual_tokens)
        if not self._catch_up(index, token_ids):
            return []
        for length, seen in zip(reversed(self._lengths), reversed(index.by_length), strict=True):
            behind = seen.get(tuple(token_ids[-length:]))
            if behind is not None:
                followed = token_ids[behind : behind + most]
                return (followed * -(-most // len(followed)))[:most]
        return []

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """They have ended; others are ignored."""
        for sequence in sequences:
            self._indices.pop(sequence, None)

    def _catch_up(self, index: _Index, token_ids: list[int]) -> bool:
        """Whether all runs are known but those that the last token ends: nothing has followed them yet."""
        first, end = index.num_seen + 1, min(len(token_ids), index.num_seen + 1 + _MOST_INDEXED)
        for length, seen in zip(self._lengths, index.by_length, strict=True):
            for behind in range(max(first, index.first + length), end):
                seen[tuple(token_ids[behind - length : behind])] = behind
        index.num_seen = end - 1
        return end == len(token_ids)
