"""Tokens that are to be put into answers while these are generated: who waits for which, and where is a safe place.

The scheduler asks before each step; it puts them in. Knows ids, not what they stand for. Functions that run while their
caller's answer goes on: AsyncLM (arXiv 2412.07017).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairlead_engine.types.sequences import Sequence


@dataclass(slots=True, eq=False)
class Injection:
    """What is to be put into one answer."""

    mark: str
    token_ids: list[int]
    done: Callable[[str | None], None]
    """Hears when the tokens are there, or why they never will be."""


class Injections:
    """Those that wait for a safe place, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: dict[Sequence, list[Injection]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, sequence: Sequence, injection: Injection) -> None:
        """It waits."""
        self._waiting.setdefault(sequence, []).append(injection)

    def sequences(self) -> list[Sequence]:
        """Those that something waits for."""
        return list(self._waiting)

    def take(self, sequence: Sequence) -> list[Injection]:
        """All that waits for it, which waits no more."""
        return self._waiting.pop(sequence, [])

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """They have ended."""
        for sequence in sequences:
            for injection in self.take(sequence):
                injection.done("the answer ended before there was a place for it; send it with a new request")


def is_whole(sequence: Sequence) -> bool:
    """Whether its last token stands outside of all blocks that must stay whole. What others have written, in the prompt
    or in a result, opens none."""
    assert sequence.injectable is not None
    begins = {begin for begin, _ in sequence.injectable.blocks}
    ends = {end for _, end in sequence.injectable.blocks}
    turn_start = max(sequence.num_prompt_tokens, sequence.turn_start)
    own = (sequence.token_ids[at] for at in range(len(sequence.token_ids) - 1, turn_start - 1, -1))
    last = next((each for each in own if each in begins or each in ends), None)
    return not sequence.injectable.begins_inside if last is None else last in ends


def no_room_for(sequence: Sequence, injection: Injection, max_len: int) -> str | None:
    """What is wrong where its tokens do not fit the context of `max_len` tokens, and one more behind them."""
    number, most = len(injection.token_ids), max(0, max_len - sequence.num_tokens - 1)
    if number <= most:
        return None
    return f"it has {number} tokens, and the context of {max_len} has room for {most} more"
