"""The learnt overhead: a median that neither stragglers nor the past dominate."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.routing.books import FADE_SECONDS, MAX_SECONDS, NUM_ZEROS, WINDOW, OverheadBook


def observe(book: OverheadBook, seconds: float, now: float, modelled: float = 0.1) -> None:
    book.observe("a", modelled + seconds, modelled, now)


def test_it_is_zero_at_the_start_and_needs_a_few_requests_to_move() -> None:
    book = OverheadBook()
    assert book.seconds("a", 0.0) == 0.0
    for number in range(NUM_ZEROS):
        observe(book, 0.02, float(number))
        assert book.seconds("a", float(number)) == 0.0
    observe(book, 0.02, 3.0)
    assert book.seconds("a", 3.0) == pytest.approx(0.02)
    assert book.seconds("b", 3.0) == 0.0


@pytest.mark.parametrize("modelled", [0.001, 0.1, 5.0])
def test_a_slow_first_request_does_not_keep_others_away(modelled: float) -> None:
    book = OverheadBook()
    observe(book, 3.0, 0.0, modelled)
    assert book.seconds("a", 0.0) == 0.0


def test_stragglers_do_not_move_it() -> None:
    book = OverheadBook()
    for number in range(30):
        observe(book, 10.0 if number % 5 == 0 else 0.02, number * 0.1)
    assert book.seconds("a", 3.0) == pytest.approx(0.02)


def test_the_longer_a_request_was_to_take_the_less_it_says() -> None:
    book = OverheadBook()
    for number in range(20):
        observe(book, 0.4, number * 0.1, modelled=2.0)  # the model is a fifth off
    assert book.seconds("a", 2.0) == pytest.approx(0.4)
    for number in range(2):
        observe(book, 0.002, 2.0 + number * 0.1, modelled=0.02)
    assert book.seconds("a", 3.0) == pytest.approx(0.002)


def test_it_follows_a_change_within_a_window() -> None:
    book = OverheadBook()
    for number in range(WINDOW):
        observe(book, 0.2, number * 0.1)
    for number in range(WINDOW):
        observe(book, 0.01, 10.0 + number * 0.1)
    assert book.seconds("a", 14.0) == pytest.approx(0.01)


def test_what_was_long_ago_fades_without_anything_new() -> None:
    book = OverheadBook()
    for number in range(10):
        observe(book, 0.5, float(number))
    assert book.seconds("a", FADE_SECONDS - 1) == pytest.approx(0.5)
    assert book.seconds("a", FADE_SECONDS + 9) == 0.0
    assert not book._records


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(0, 30)), max_size=60))
def test_it_is_never_negative_nor_beyond_its_bound(samples: list[tuple[float, float]]) -> None:
    book, now = OverheadBook(), 0.0
    for seconds, pause in samples:
        now += pause
        observe(book, seconds, now)
        assert 0.0 <= book.seconds("a", now) <= MAX_SECONDS


def test_replicas_that_left_are_forgotten() -> None:
    book = OverheadBook()
    for _ in range(9):
        observe(book, 0.5, 0.0)
    book.keep_only(frozenset("b"))
    assert book.seconds("a", 0.0) == 0.0
