"""Parts of client requests: who of them may run."""

import pytest

from fairlead_engine.core.waiting_queue import ClientParts
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.sequences import Sequence


def part(name: str, of: str | None) -> Sequence:
    return Sequence(request_id=name, token_ids=[1], num_prompt_tokens=1, sampling=SamplingParams(), part_of=of)


def test_no_more_parts_of_a_request_run_than_may() -> None:
    parts, first, second, third, alone = ClientParts(2), part("a", "r"), part("b", "r"), part("c", "r"), part("d", None)
    for each in (first, second, third, alone):
        parts.come(each)
    assert (parts.number_of(first), parts.number_of(alone), parts.num_held_back) == (3, 0, 1)
    parts.begin(first)
    assert parts.may_run(second, 0) and not parts.may_run(second, 1), "one waits for its prefix, and will take the slot"
    parts.begin(second)
    assert not parts.may_run(third, 0)
    assert parts.may_run(alone, 5), "who stands alone is bounded by slots only"
    parts.check([first, second, third, alone], [first, second])
    parts.leave(first)
    parts.ended(first)
    assert parts.may_run(third, 0)
    assert parts.num_held_back == 0
    parts.check([second, third, alone], [second])
    with pytest.raises(AssertionError):
        parts.check([second, third, alone], [second, third])
