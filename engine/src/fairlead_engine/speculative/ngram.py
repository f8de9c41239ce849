"""Prompt lookup: the last few tokens are looked up earlier in the text, and the tokens behind them proposed.

Pays off for edited code, quoted documents and answers that repeat the question, without weights. Source: Saxena, Prompt
Lookup Decoding (2023).
"""

from collections.abc import Iterable

from fairlead_engine.types.sequences import Sequence

_MOST_INDEXED = 4096
"""Tokens of a prompt indexed in one step: a long prompt must not delay the others."""


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
    """Finds the longest run of tokens, of `shortest` to `longest`, at the sequence's end and earlier in the sequence,
    and proposes the tokens behind its last occurrence. Where these reach the end they are repeated."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(shortest, longest + 1)
        self._indices: dict[Sequence, _Index] = {}

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """Up to `most` tokens that may follow; empty without an earlier occurrence."""
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
        for sequence in sequences:
            self._indices.pop(sequence, None)

    def _catch_up(self, index: _Index, token_ids: list[int]) -> bool:
        """Whether all runs are known except those at the very end, which nothing has followed yet."""
        first, end = index.num_seen + 1, min(len(token_ids), index.num_seen + 1 + _MOST_INDEXED)
        for length, seen in zip(self._lengths, index.by_length, strict=True):
            for behind in range(max(first, index.first + length), end):
                seen[tuple(token_ids[behind - length : behind])] = behind
        index.num_seen = end - 1
        return end == len(token_ids)
