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


def test_the_own_release_is_the_first_that_is_none_of_updates() -> None:
    listed = """\
http://security.test/debian-security/ bookworm-security bookworm-security main
http://mirror.test/debian/ bookworm-updates bookworm-updates main
http://mirror.test/debian/ trixie trixie main
"""
    assert debian.mirror_of(listed) == "http://mirror.test/debian/"
    assert debian.mirror_of(listed, "bookworm") is None


class Apt:
    """Stands in for the programs: keeps what was asked, and answers by the first argument that it knows."""

    def __init__(self, answers: dict[str, str | ClusterError]) -> None:
        self.answers = answers
        self.asked: list[Command] = []

    def __call__(self, *command: str | Path, cwd: Path | None = None, **_: object) -> str:
        words = tuple(map(str, command))
        self.asked.append(words)
        if cwd is not None and "download" in words:
            for name in words[words.index("download") + 1 : words.index("-qq")]:
                (cwd / f"{name.partition('=')[0]}_1_all.deb").touch()
        answer = next((answer for word, answer in self.answers.items() if word in words), "")
        if isinstance(answer, ClusterError):
            raise answer
        return answer


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> Apt:
    apt = Apt({})
    monkeypatch.setattr(debian, "run", apt)
    return apt


def test_a_suite_keeps_apt_away_from_the_machines_own_state(tmp_path: Path, apt: Apt) -> None:
    debian.Suite("sid", "http://mirror.test/debian/", tmp_path).refresh()
    (asked,) = apt.asked
    for setting in ("Dir::State", "Dir::State::status", "Dir::Cache", "Dir::Etc::sourceparts"):
        (value,) = [word.partition("=")[2] for word in asked if word.startswith(f"{setting}=")]
        assert Path(value).is_relative_to(tmp_path)
    assert "Dir::Etc::sourcelist=/dev/null" in asked
    lines = (tmp_path / "sources" / "suite.sources").read_text().splitlines()
    assert lines[:4] == ["Types: deb", "URIs: http://mirror.test/debian/", "Suites: sid", "Components: main"]


def test_what_would_be_installed_is_read_from_apts_words(tmp_path: Path, apt: Apt) -> None:
    apt.answers["install"] = (
        "NOTE: This is only a simulation!\n"
        "Inst golang-1.27-src (1.27.3-1 Debian:unstable [all])\n"
        "Inst golang-go (2:1.27~1 Debian:unstable [amd64]) []\n"
        "Conf golang-go (2:1.27~1 Debian:unstable [amd64])\n"
    )
    found = debian.Suite("sid", "http://mirror.test/", tmp_path).closure(["golang-go"])
    assert [str(package) for package in found] == ["golang-1.27-src=1.27.3-1", "golang-go=2:1.27~1"]


def test_a_download_returns_the_files_of_what_was_asked_for(tmp_path: Path, apt: Apt) -> None:
    into = tmp_path / "packages"
    into.mkdir()
    (into / "runc_1_all.deb").touch()
    suite = debian.Suite("sid", "http://mirror.test/", tmp_path / "apt")
    files = suite.download([debian.Package("golang-go", "2:1.27~1"), "etcd-server"], into)
    assert files == [into / "golang-go_1_all.deb", into / "etcd-server_1_all.deb"]
    assert "golang-go=2:1.27~1" in apt.asked[-1]


def test_a_source_in_another_version_is_said_with_the_versions_that_there_are(tmp_path: Path, apt: Apt) -> None:
    apt.answers = {"source": ClusterError("E: not found"), "showsrc": "Package: k\nVersion: 1.21-1\nVersion: 1.22-1\n"}
    with pytest.raises(ClusterError, match=r"does not give k 1\.20-1 \(it lists: 1\.21-1, 1\.22-1\)\. E: not found"):
        debian.Suite("sid", "http://mirror.test/", tmp_path).source("k", "1.20-1", tmp_path / "source")
