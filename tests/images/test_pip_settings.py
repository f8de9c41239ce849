"""This machine's pip configuration, made fit for the inside of a build."""

import configparser
from pathlib import Path

from images.pip_settings import CERTIFICATES_INSIDE, parse_listing, portable

LISTING = """\
:env:.default-timeout='180'
:env:.index-url='https://mirror.test/simple'
download.no-index='true'
global.index-url='https://other.test/simple'
global.trusted-host='mirror.test'
install.timeout='9'
install.user='true'
"""


def read(text: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    return dict(parser["global"])


def test_the_environment_wins_over_files_and_other_commands_do_not_count() -> None:
    options = parse_listing(LISTING)
    assert options["index-url"] == "https://mirror.test/simple"
    assert options["timeout"] == "9"
    assert "no-index" not in options


def test_a_lower_section_does_not_win_by_coming_later() -> None:
    listing = "install.index-url='https://a.test'\nglobal.index-url='https://b.test'\n"
    assert parse_listing(listing)["index-url"] == "https://a.test"


def test_only_where_packages_come_from_is_taken_over() -> None:
    settings = portable(parse_listing(LISTING), None)
    assert read(settings.text) == {
        "index-url": "https://mirror.test/simple",
        "trusted-host": "mirror.test",
        "timeout": "9",
    }
    assert settings.mounts == {} and settings.certificates is None


def test_folders_are_mounted_and_an_index_comes_with_the_files_beside_it(tmp_path: Path) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "mirror" / "simple"
    wheels.mkdir()
    index.mkdir(parents=True)
    options = {"find-links": f"{wheels} https://wheels.test/", "extra-index-url": f"{index.as_uri()} {index.as_uri()}"}
    settings = portable(options, None)
    assert settings.mounts == {index.parent: "/mnt/pip/0", wheels: "/mnt/pip/1"}
    found = read(settings.text)
    assert found["find-links"] == "/mnt/pip/1 https://wheels.test/"
    assert found["extra-index-url"] == "file:///mnt/pip/0/simple file:///mnt/pip/0/simple"


def test_an_index_at_the_root_does_not_mount_the_whole_machine() -> None:
    settings = portable({"index-url": "file:///usr"}, None)
    assert settings.mounts == {Path("/usr"): "/mnt/pip/0"}
    assert read(settings.text)["index-url"] == "file:///mnt/pip/0"


def test_what_is_no_folder_stays_as_it_is(tmp_path: Path) -> None:
    settings = portable({"find-links": f"{tmp_path}/none relative"}, None)
    assert settings.mounts == {}
    assert read(settings.text)["find-links"] == f"{tmp_path}/none relative"


def test_pips_own_certificates_win_over_the_machines(tmp_path: Path) -> None:
    own, machine = tmp_path / "own.crt", tmp_path / "machine.crt"
    own.touch()
    machine.touch()
    assert portable({"cert": str(own)}, machine).certificates == own
    settings = portable({}, machine)
    assert settings.certificates == machine
    assert read(settings.text) == {"cert": CERTIFICATES_INSIDE}
