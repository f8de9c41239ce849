"""Tokens to put into answers during generation: the waiting injections, and the safe places.

The scheduler inserts the tokens before each step. Token ids only. Source: functions that run while their caller's
answer goes on, AsyncLM (arXiv 2412.07017).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairlead_engine.core.running_slots import RunningSlots
from fairlead_engine.types.sequences import NO_SLOT, Sequence


@dataclass(slots=True, eq=False)
class Injection:
    """Tokens for one answer."""

    mark: str
    token_ids: list[int]
    done: Callable[[str | None], None]
    """Called with None after the insertion, or with the reason of a failure."""


class Injections:
    """Injections that wait for a safe place, in order of arrival."""

    def __init__(self, max_len: int) -> None:
        """`max_len`: tokens of the context."""
        self._max_len = max_len
        self._waiting: dict[Sequence, list[Injection]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, sequence: Sequence, injection: Injection) -> None:
        """Queues an injection, or refuses tokens that do not fit the context."""
        if (problem := self._no_room_for(sequence, injection)) is not None:
            injection.done(problem)
        else:
            self._waiting.setdefault(sequence, []).append(injection)

    def put_in(self, slots: RunningSlots) -> list[tuple[Sequence, Injection]]:
        """Inserts injections at safe places and returns them. The next step leaves out answers with a place coming."""
        found: list[tuple[Sequence, Injection]] = []
        for sequence in list(self._waiting):
            if sequence.slot == NO_SLOT or sequence in slots.prefilling:
                continue
            if not is_whole(sequence):
                slots.decoding.resume(sequence)
            elif not slots.decoding.is_settled(sequence):
                slots.decoding.pause(sequence)
            else:
                slots.decoding.resume(sequence)
                waiting = self._waiting.pop(sequence)
                found += [(sequence, each) for each in waiting if self._put_into(sequence, each, slots)]
        return found

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Refuses the injections of ended sequences."""
        for sequence in sequences:
            for injection in self._waiting.pop(sequence, []):
                injection.done("the answer ended before there was a place for it; send it with a new request")

    def _put_into(self, sequence: Sequence, injection: Injection, slots: RunningSlots) -> bool:
        """Whether there was room: then the sequence has these tokens to compute."""
        if (problem := self._no_room_for(sequence, injection)) is not None:
            injection.done(problem)
            return False
        number = len(injection.token_ids)
        slots.prefill_again(sequence)
        sequence.token_ids += injection.token_ids
        sequence.num_injected_tokens += number
        sequence.turn_start = len(sequence.token_ids)
        sequence.max_num_tokens = min(self._max_len, sequence.max_num_tokens + number)
        return True

    def _no_room_for(self, sequence: Sequence, injection: Injection) -> str | None:
        """Why the tokens and a further token do not fit the context."""
        number, most = len(injection.token_ids), max(0, self._max_len - sequence.num_tokens - 1)
        if number <= most:
            return None
        return f"it has {number} tokens, and the context of {self._max_len} has room for {most} more"


def is_whole(sequence: Sequence) -> bool:
    """Whether the last token is outside of unbreakable blocks; only the answer's own tokens open a block."""
    assert sequence.injectable is not None
    begins = {begin for begin, _ in sequence.injectable.blocks}
    ends = {end for _, end in sequence.injectable.blocks}
    turn_start = max(sequence.num_prompt_tokens, sequence.turn_start)
    own = (sequence.token_ids[at] for at in range(len(sequence.token_ids) - 1, turn_start - 1, -1))
    last = next((each for each in own if each in begins or each in ends), None)
    return not sequence.injectable.begins_inside if last is None else last in ends
