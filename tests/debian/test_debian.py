"""What is asked of apt, and what is read from its words. Nothing is fetched."""

from pathlib import Path

import debian
import pytest
from cluster.commands import ClusterError

Command = tuple[str, ...]


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        ("http://a.example/debian/ bookworm bookworm main", "http://a.example/debian/"),
        ("http://a.example/debian/ oldstable bookworm main", "http://a.example/debian/"),
        ("http://a.example/debian/ bookworm main", "http://a.example/debian/"),
        ("http://a.example/debian-security/ bookworm-security bookworm-security main", None),
        ("http://a.example/debian-security/ bookworm/updates bookworm main", None),
        ("http://a.example/debian/ bookworm-updates bookworm-updates main", None),
        ("http://a.example/debian/ bookworm bookworm contrib", None),
        ("http://a.example/debian/ trixie trixie main", None),
        ("", None),
    ],
)
def test_the_mirror_is_where_apt_takes_the_release_itself_from(targets: str, found: str | None) -> None:
    assert debian.mirror_of(targets, "bookworm") == found


def test_the_first_fitting_mirror_wins() -> None:
    targets = "http://s.example/debian-security bookworm-security x main\nhttp://a.example/d bookworm bookworm main\n"
    assert debian.mirror_of(targets + "http://b.example/d bookworm bookworm main", "bookworm") == "http://a.example/d"


class Apt:
    """Stands in for the programs: keeps what was asked, and fails a download before the lists were fetched."""

    def __init__(self, *, has_lists: bool) -> None:
        self.has_lists = has_lists
        self.asked: list[Command] = []

    def __call__(self, *command: str | Path, cwd: Path | None = None, **_: object) -> str:
        words = tuple(map(str, command))
        self.asked.append(words)
        if "update" in words:
            self.has_lists = True
        elif not self.has_lists:
            raise ClusterError("E: Unable to locate package runc")
        elif cwd is not None:
            for name in words[words.index("download") + 1 :]:
                (cwd / f"{name}_1_amd64.deb").touch()
        return ""


@pytest.mark.parametrize("has_lists", [True, False])
def test_packages_are_downloaded_after_the_lists_where_these_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_lists: bool
) -> None:
    apt = Apt(has_lists=has_lists)
    monkeypatch.setattr(debian, "run", apt)
    into = tmp_path / "packages"
    files = debian.download(["runc", "catatonit"], into)
    assert files == [into / "runc_1_amd64.deb", into / "catatonit_1_amd64.deb"]
    assert ["update" in words for words in apt.asked] == ([False] if has_lists else [False, True, False])
