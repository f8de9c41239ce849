"""API keys: how a folder is read, whose a presented key is, and what changes while a gateway runs."""

import logging
import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway.access import MAX_KEYS, KeyedAccess, KeysError, OpenAccess, make_key_set, read_keys
from fairlead.gateway.openai.errors import OpenAIError

ALICE, BOB, OTHER = b"alice-0123456789abcdef", b"bob-0123456789abcdefgh", b"other-0123456789abcdef"

keys = st.text(string.ascii_letters + string.digits + "-._~+/=!", min_size=16, max_size=80).map(str.encode)
key_sets = st.dictionaries(st.sampled_from(["alice", "bob", "carol"]), st.lists(keys, max_size=4, unique=True))


class Secret:
    """A folder as the kubelet mounts a Secret: links to a hidden folder through `..data`, which is swapped whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._version = 0

    def write(self, **files: bytes) -> None:
        self._version += 1
        version = self.folder / f"..{self._version}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_bytes(content)
        (self.folder / "..data_tmp").symlink_to(version.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")
        for name in files:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        for link in self.folder.iterdir():
            if not link.name.startswith("..") and link.name not in files:
                link.unlink()


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    made = Secret(tmp_path)
    made.write(alice=ALICE + b"\n", bob=BOB)
    return made


def bearer(key: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"gateway"), (b"authorization", b"Bearer " + key)]


# Reading.


def test_a_mounted_secret_is_a_client_per_file_without_its_hidden_files_and_newlines(secret: Secret) -> None:
    found = read_keys(secret.folder)
    assert (len(found), found.clients) == (2, {"alice", "bob"})
    assert [found.client(key) for key in (ALICE, BOB, OTHER)] == ["alice", "bob", None]


def test_a_client_may_have_several_keys_one_per_line_so_that_they_can_be_rotated(tmp_path: Path) -> None:
    (tmp_path / "alice").write_bytes(b"\n" + ALICE + b"\r\n\n  " + OTHER + b"  \n")
    found = read_keys(tmp_path)
    assert [found.client(ALICE), found.client(OTHER), len(found)] == ["alice", "alice", 2]


def test_a_plain_folder_does_as_well_and_no_files_are_no_keys(tmp_path: Path) -> None:
    assert len(read_keys(tmp_path)) == 0
    (tmp_path / "alice").write_bytes(b"")
    assert read_keys(tmp_path).clients == set()


def test_a_secret_is_read_as_it_was_or_as_it_is_and_never_half_and_half(secret: Secret, monkeypatch) -> None:
    """The kubelet swaps `..data` after the first file was read."""
    read, swapped = os.open, []

    def open_and_swap(path, flags, *rest, **named):
        descriptor = read(path, flags, *rest, **named)
        if not swapped:
            swapped.append(True)
            secret.write(alice=OTHER, bob=ALICE)
        return descriptor

    monkeypatch.setattr("fairlead.gateway.access.os.open", open_and_swap)
    found = read_keys(secret.folder)
    assert swapped
    assert [found.client(key) for key in (ALICE, BOB, OTHER)] == ["alice", "bob", None]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("alice", b"short", "a key of 'alice' has 5 characters and should have 16 to 512"),
        ("alice", b"x" * 600, "has 600 characters"),
        ("alice", b"with a space in the middle", "other than visible ASCII"),
        ("alice", "schlüssel-0123456789".encode(), "other than visible ASCII"),
        ("alice", b"x" * 70_000, "larger than 65536 bytes"),
        ("al ice", ALICE, "'al ice' cannot be a client's"),
        ("zoe", BOB, "'bob' and 'zoe' have the same key"),
    ],
)
def test_what_cannot_be_a_key_is_refused_by_name_and_never_quoted(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / "bob").write_bytes(BOB)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(KeysError) as caught:
        read_keys(tmp_path)
    assert message in str(caught.value)
    assert content.decode() not in str(caught.value)


def test_a_folder_that_is_none_and_entries_that_are_no_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"none does not exist; it must be a folder"):
        read_keys(tmp_path / "none")
    (tmp_path / "file").write_bytes(ALICE)
    with pytest.raises(KeysError, match="cannot be read: Not a directory"):
        read_keys(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KeysError, match="pipe is not a file"):
        read_keys(tmp_path)


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(KeysError, match="more than 1000"):
        make_key_set({"alice": [b"key-%016d" % number for number in range(MAX_KEYS + 1)]})


# Comparing.


@given(key_sets, keys)
def test_exactly_the_keys_of_a_client_are_its(chosen: dict[str, list[bytes]], other: bytes) -> None:
    owners: dict[bytes, set[str]] = {}
    for client, candidates in chosen.items():
        for key in candidates:
            owners.setdefault(key, set()).add(client)
    if any(len(clients) > 1 for clients in owners.values()):
        with pytest.raises(KeysError, match="the same key"):
            make_key_set(chosen)
        return
    found = make_key_set(chosen)
    for key, (client,) in owners.items():
        assert found.client(key) == client
        assert found.client(key[:-1]) is None or key[:-1] in owners
        assert found.client(key + b"x") is None or key + b"x" in owners
    assert (found.client(other) is not None) == (other in owners)


def test_every_key_is_compared_whichever_matches(monkeypatch) -> None:
    """An early exit would tell by its time where a key stands."""
    compared = []
    found = make_key_set({"alice": [ALICE], "bob": [BOB], "other": [OTHER]})
    monkeypatch.setattr("fairlead.gateway.access.hmac.compare_digest", lambda a, b: compared.append(1) or a == b)
    for key in (ALICE, BOB, OTHER, b"nobody's"):
        compared.clear()
        found.client(key)
        assert len(compared) == 3


def test_a_key_set_shows_no_key_and_no_digest() -> None:
    assert repr(make_key_set({"alice": [ALICE]})) == "KeySet()"


# The header.


@pytest.mark.parametrize(
    "value", [b"Bearer " + ALICE, b"bearer " + ALICE, b"BEARER   " + ALICE, b" Bearer " + ALICE + b" "]
)
def test_the_scheme_is_read_without_regard_to_case_and_spaces(secret: Secret, value: bytes) -> None:
    assert KeyedAccess(secret.folder).client([(b"authorization", value)]) == "alice"


@pytest.fixture(scope="module")
def alices(tmp_path_factory) -> KeyedAccess:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "alice").write_bytes(ALICE)
    return KeyedAccess(folder)


@given(headers=st.lists(st.tuples(st.just(b"authorization"), st.binary(max_size=60)), max_size=3))
def test_no_header_but_the_right_one_is_let_in(alices: KeyedAccess, headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(OpenAIError) as caught:
        alices.client(headers)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert (b"www-authenticate", b"Bearer") in caught.value.headers


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", ALICE)],
        [(b"authorization", b"Basic " + ALICE)],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer  ")],
        [(b"authorization", b"Bearer " + ALICE), (b"authorization", b"Bearer " + ALICE)],
        [(b"x-api-key", OTHER)],
        [(b"x-api-key", ALICE), (b"x-api-key", ALICE)],
        bearer(OTHER),
        bearer(ALICE + b", " + BOB),
    ],
)
def test_refusals_never_quote_what_was_sent(secret: Secret, headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(OpenAIError) as caught:
        KeyedAccess(secret.folder).client(headers)
    assert ALICE not in caught.value.body()
    assert OTHER not in caught.value.body()


async def test_open_access_asks_for_nothing() -> None:
    assert OpenAccess().client([]) is None
    assert OpenAccess().is_current


# Reloading.


async def test_a_changed_secret_takes_effect_whole_and_says_for_whom(secret: Secret, caplog) -> None:
    access = KeyedAccess(secret.folder)
    caplog.set_level(logging.INFO)
    secret.write(alice=ALICE + b"\n" + OTHER, carol=BOB)
    await access.reload()
    assert [access.client(bearer(key)) for key in (ALICE, OTHER, BOB)] == ["alice", "alice", "carol"]
    assert "API keys changed for alice, bob, carol; 3 keys of 2 clients from here on" in caplog.text
    caplog.clear()
    await access.reload()
    assert caplog.text == ""


async def test_a_bad_change_leaves_the_keys_as_they_were_and_is_said_once(secret: Secret, caplog) -> None:
    access = KeyedAccess(secret.folder)
    secret.write(alice=b"short", bob=BOB)
    for _ in range(3):
        await access.reload()
    assert access.client(bearer(ALICE)) == "alice"
    assert not access.is_current
    assert caplog.text.count("cannot be read, those known before stay valid: a key of 'alice' has 5 characters") == 1
    secret.write(bob=BOB)
    await access.reload()
    assert access.is_current
    with pytest.raises(OpenAIError):
        access.client(bearer(ALICE))


async def test_a_problem_that_stays_is_said_again_now_and_then(secret: Secret, caplog) -> None:
    access = KeyedAccess(secret.folder)
    secret.write(alice=b"short")
    for _ in range(61):
        await access.reload()
    assert caplog.text.count("stay valid") == 2


async def test_taking_the_last_key_away_locks_everybody_out(secret: Secret, caplog) -> None:
    access = KeyedAccess(secret.folder)
    secret.write(alice=b"")
    await access.reload()
    with pytest.raises(OpenAIError):
        access.client(bearer(ALICE))
    assert "every request is refused until it has" in caplog.text


async def test_no_key_is_ever_logged(secret: Secret, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    access = KeyedAccess(secret.folder)
    secret.write(alice=OTHER, bob=b"bad key with spaces")
    await access.reload()
    secret.write(alice=OTHER)
    await access.reload()
    for secret_text in (ALICE, BOB, OTHER, b"bad key with spaces"):
        assert secret_text.decode() not in caplog.text
