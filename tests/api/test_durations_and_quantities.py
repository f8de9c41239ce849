"""Durations and quantities: what users write and what it means."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.quantities import format_duration, parse_bytes, parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30.0), ("10m", 600.0), ("1h30m", 5400.0), ("2d", 172800.0), ("1.5s", 1.5), ("0s", 0.0)],
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "-5s", "5 s", "5s\n", "5S", "1e3s", "five", 5, None])
def test_anything_else_is_refused_with_an_example_of_what_to_write(text: object) -> None:
    with pytest.raises(ValueError, match="such as 500ms, 30s"):
        parse_duration(text)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=50)
@given(st.integers(min_value=0, max_value=10**12))
def test_a_formatted_duration_is_read_back_to_the_millisecond(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000, abs=5e-4)


def test_a_duration_is_formatted_the_short_way() -> None:
    assert format_duration(90) == "1m30s"
    assert format_duration(900.0) == "15m"
    assert format_duration(0) == "0s"
    assert format_duration(0.25) == "250ms"
    with pytest.raises(ValueError, match="negative"):
        format_duration(-1)


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", "0.5"), ("2", "2"), (2, "2"), ("1.5", "1.5"), ("2Gi", str(2 * 2**30)), ("1k", "1000"), ("1e3", "1000"),
     ("100n", "1e-7"), ("3E", "3e18"), ("1Ei", str(2**60)), ("5.", "5")],
)  # fmt: skip
def test_a_quantity_is_an_exact_number(text: str | int, number: str) -> None:
    assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "Gi", "-1", "1 Gi", "1GiB", "many", "1Gi\n", True, "1e999999", "1e-99999999"])
def test_what_is_not_a_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 2, 500m"):
        parse_quantity(text)


def test_bytes_are_whole_and_rounded_up() -> None:
    assert parse_bytes("1Ki") == 1024
    assert parse_bytes("1500m") == 2


@settings(deadline=None, max_examples=50)
@given(st.integers(min_value=0, max_value=2**60), st.sampled_from(["", "Ki", "Mi", "Gi", "k", "M", "G"]))
def test_a_bigger_number_is_a_bigger_quantity(number: int, suffix: str) -> None:
    assert parse_quantity(f"{number + 1}{suffix}") > parse_quantity(f"{number}{suffix}")
