"""Settings as flags and as files, of a class that no program has."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from fairlead_common.settings import BYTES, SECONDS, SettingError, add_flags, given, read_file, values_of


@dataclass(frozen=True, kw_only=True)
class Rigging:
    """Of a ship."""

    num_masts: int = 2
    """Masts, 100 % of them upright."""
    hold: Annotated[int | None, BYTES] = None
    """Size of the hold."""
    watch: Annotated[float, SECONDS] = 4.0
    """Length of a watch."""
    is_square: bool = False
    """Whether the sails are."""
    name: str = "Dinghy"
    """What it is called."""


def parsed(*arguments: str) -> Rigging:
    parser = argparse.ArgumentParser()
    add_flags(parser, Rigging)
    return Rigging(**values_of(Rigging, given(parser.parse_args(arguments), [Rigging])))


def test_flags_are_the_fields_and_units_are_read() -> None:
    assert parsed() == Rigging()
    made = parsed("--num-masts", "3", "--hold", "2Mi", "--watch", "90m", "--is-square", "--name", "Clipper")
    assert made == Rigging(num_masts=3, hold=2 * 2**20, watch=5400.0, is_square=True, name="Clipper")
    assert parsed("--hold", "null", "--watch", "500ms") == Rigging(watch=0.5)
    assert parsed("--watch", "1d2h3m4s500ms") == Rigging(watch=93784.5)
    assert parsed("--watch", "1.5h0.5m") == Rigging(watch=5430.0)


def test_help_has_the_texts_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "--num-masts N Masts, 100 % of them upright. (default: 2)" in shown
    assert "--hold N Size of the hold. --watch" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--num-masts", "two"), "--num-masts must be a whole number, not 'two'"),
        (("--watch", "4 bells"), "--watch must be a number, not '4 bells'; a number may be followed by one of ms"),
        (("--hold", "1e999"), "--hold must be a whole number, not '1e999'"),
        (("--num-masts", "null"), "--num-masts must have a value"),
        (("--watch", "1h30"), "--watch must be a number, not '1h30'"),
        (("--watch", "1h1h1"), "--watch must be a number"), (("--watch", "1.2.3h4m"), "--watch must be a number"),
        (("--num-masts", "1s2s"), "--num-masts must be a whole number, not '1s2s'"),
        (("--num-masts", "9" * 19), "--num-masts must be a whole number from -2^63 to 2^63 - 1"),
        (("--watch", "inf"), "--watch must be a number from"), (("--watch", "nan"), "--watch must be a number from"),
        (("--name", "\udcff"), "--name must be text, not '\\udcff'"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingError) as refused:
        parsed(*arguments)
    assert str(refused.value).startswith(message)


def test_a_file_says_the_same_and_a_typo_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rigging.yaml"
    file.write_text("num-masts: 3\nhold: 2Mi\nis-square: true\n")
    assert Rigging(**values_of(Rigging, read_file(file, [Rigging]))) == Rigging(num_masts=3, hold=2**21, is_square=True)
    file.write_text("num-mast: 3\n")
    with pytest.raises(SettingError, match="did you mean num-masts"):
        read_file(file, [Rigging])
    file.write_text("num-masts: 3\nhold: 2Mi\nnum-masts: 4\n")
    with pytest.raises(SettingError, match="--num-masts is written more than once in"):
        read_file(file, [Rigging])
    for text in ("[1]", "a: [", "\0", "a: 2024-99-99", "a: !!int x", "a: !!bool x", f"a: {'9' * 5000}", "[" * 5000):
        file.write_text(text)
        with pytest.raises(SettingError, match="--config"):
            read_file(file, [Rigging])


def test_a_text_may_be_the_word_null_and_numbers_must_fit(tmp_path: Path) -> None:
    assert parsed("--name", "null") == Rigging(name="null")
    file = tmp_path / "rigging.yaml"
    file.write_text("name: 'null'\nhold: null\n")
    assert Rigging(**values_of(Rigging, read_file(file, [Rigging]))) == Rigging(name="null")
    for name in ("num-masts", "watch"):
        file.write_text(f"{name}: {'9' * 400}\n")
        with pytest.raises(SettingError, match=r"2\^63"):
            values_of(Rigging, read_file(file, [Rigging]))
    with pytest.raises(SettingError, match=r"--config .* cannot be read"):
        read_file(Path("a\0b"), [Rigging])


@for_all(st.text(max_size=8) | st.integers() | st.floats() | st.booleans() | st.none() | st.lists(st.integers()))
def test_any_value_is_read_or_refused(value: object) -> None:
    for name in ("num_masts", "hold", "watch", "is_square", "name"):
        try:
            made = values_of(Rigging, {name: value})
        except SettingError as error:
            assert error.field == name
        else:
            assert made.keys() == {name}
