"""What was timed once is not timed again, whatever has become of the file and whoever shares it."""

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairlead_engine.kernels.kept_choices import KeptChoices, sources_digest


def timed() -> int:
    raise AssertionError("it is known")


def test_a_choice_is_made_once_for_its_circumstances(tmp_path: Path) -> None:
    path = tmp_path / "below" / "choices.json"
    assert KeptChoices(path, "one device").choose("a", lambda: 4) == 4
    assert KeptChoices(path, "one device").choose("a", timed) == 4
    assert KeptChoices(path, "one device").choose("b", lambda: 0) == 0
    assert KeptChoices(path, "one device").choose("b", timed) == 0
    assert KeptChoices(path, "another").choose("a", lambda: 16) == 16
    assert json.loads(path.read_text()) == {"another, a": 16, "one device, a": 4, "one device, b": 0}


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"here, a": "4"}', b'{"here, a": true}', b"\xff\xfe", b""])
def test_a_file_that_says_nothing_is_told_of_and_written_anew(content: bytes, tmp_path: Path, caplog) -> None:
    path = tmp_path / "choices.json"
    path.write_bytes(content)
    assert KeptChoices(path, "here").choose("a", lambda: 4) == 4
    assert "its choices are made again" in caplog.text
    assert KeptChoices(path, "here").choose("a", timed) == 4


def test_many_may_write_at_the_same_time(tmp_path: Path, caplog) -> None:
    path = tmp_path / "choices.json"
    caplog.set_level(logging.WARNING)
    with ThreadPoolExecutor(8) as pool:
        chosen = list(pool.map(lambda i: KeptChoices(path, "here").choose(str(i % 20), lambda: i % 20), range(200)))
    assert chosen == [i % 20 for i in range(200)]
    assert not caplog.text, "nobody saw half a file"
    assert list(tmp_path.iterdir()) == [path], "nothing is left behind"


def test_who_may_enter_the_folder_may_read_what_is_kept(tmp_path: Path) -> None:
    """Engines that share it may be of several users."""
    before = os.umask(0o022)
    try:
        KeptChoices(tmp_path / "choices.json", "here").choose("a", lambda: 4)
    finally:
        os.umask(before)
    assert (tmp_path / "choices.json").stat().st_mode & 0o777 == 0o644


def test_a_choice_that_cannot_be_kept_leaves_nothing_behind(tmp_path: Path, caplog) -> None:
    path = tmp_path / "choices.json"
    path.mkdir()
    assert KeptChoices(path, "here").choose("a", lambda: 4) == 4
    assert "are not kept" in caplog.text
    assert list(tmp_path.iterdir()) == [path]


def test_where_nothing_can_be_written_it_is_chosen_all_the_same(tmp_path: Path, caplog) -> None:
    (tmp_path / "file").write_text("")
    assert KeptChoices(tmp_path / "file" / "choices.json", "here").choose("a", lambda: 4) == 4
    assert "are not kept" in caplog.text


def test_sources_have_one_digest() -> None:
    assert sources_digest() == sources_digest() and len(sources_digest()) == 16
