"""What was decided, from what was seen; and room for its labels."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairlead_local.demo.recorder import Moment, decisions, rows_apart


def decided(*wanted: int | None) -> list[tuple[float, str]]:
    moments = [Moment(time=float(time), ready=0, wanted=each) for time, each in enumerate(wanted)]
    return [(decision.time, str(decision)) for decision in decisions(moments)]


def test_decisions_are_changes_of_what_is_wanted() -> None:
    assert decided(1, 1, 2, 2, 1, 0, 0, 1) == [(2.0, "1 → 2"), (4.0, "2 → 1"), (5.0, "1 → 0"), (7.0, "0 → 1")]
    assert decided() == decided(3) == decided(None, None) == []


def test_silence_is_no_decision() -> None:
    assert decided(None, 1, None, 1) == [], "the first word, and the same after a silence"
    assert decided(1, None, 2) == [(2.0, "1 → 2")]


@given(st.lists(st.floats(0, 100), max_size=12).map(sorted), st.floats(0.1, 10))
def test_labels_of_one_row_are_apart(times: list[float], gap: float) -> None:
    rows = rows_apart(times, gap)
    assert len(rows) == len(times)
    for row in set(rows):
        mine = [time for time, each in zip(times, rows, strict=True) if each == row]
        assert all(later >= earlier + gap for earlier, later in pairwise(mine))
    assert not rows or set(rows) == set(range(max(rows) + 1)), "no row is empty"
