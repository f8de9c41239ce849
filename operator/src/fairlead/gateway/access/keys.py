"""API keys: which there are, read from a folder, and whose a presented one is. Knows neither HTTP nor reloading.

The folder is a mounted Secret, or looks like one: a file per client, whose name is the client's and whose lines are the
client's keys. Keys exist here as digests only, so that no log line, traceback or memory dump of a `KeySet` has one.
"""

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIN_KEY_LENGTH = 16
"""Characters; shorter keys can be guessed."""
MAX_KEY_LENGTH = 512
MAX_KEYS = 1000
"""Every request is compared with every key."""
MAX_FILE_BYTES = 64 * 1024
ADVICE = "`openssl rand -hex 32` makes a good key"

_KUBERNETES_LINK = "..data"
"""What a mounted Secret's files are links into. Kubernetes changes all of them at once by pointing it elsewhere."""
_READ_ATTEMPTS = 3
_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,253}")
"""What a Secret's keys may be called; it can stand in logs and metrics."""
_KEY = re.compile(rb"[\x21-\x7e]+")
"""What can stand in an Authorization header after `Bearer `."""


class KeysError(Exception):
    """There are no keys to go by. The text names the file and says what would work; it quotes no key."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys and the clients they belong to, at one moment. Equal when both are."""

    _clients: Mapping[bytes, str] = field(default_factory=dict, repr=False)
    """SHA-256 of a key → its client's name."""

    @property
    def clients(self) -> frozenset[str]:
        """The clients that have a key."""
        return frozenset(self._clients.values())

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._clients)

    def client(self, presented: bytes) -> str | None:
        """Whose key `presented` is; None = nobody's.

        Takes the same time whether, where and how closely it matches: digests are compared, each in constant time, and
        every one of them.
        """
        digest = _digest(presented)
        found = None
        for known, client in self._clients.items():
            if hmac.compare_digest(known, digest):
                found = client
        return found

    def changed_clients(self, before: "KeySet") -> list[str]:
        """Clients that have come, gone, or got other keys."""
        pairs = set(self._clients.items()) ^ set(before._clients.items())
        return sorted({client for _, client in pairs})


def make_key_set(keys: Mapping[str, list[bytes]]) -> KeySet:
    """From client → its keys. Raises KeysError for keys that would be no protection, or two clients' at once."""
    clients: dict[bytes, str] = {}
    for client, candidates in keys.items():
        for key in candidates:
            if not _KEY.fullmatch(key):
                raise KeysError(f"a key of {client!r} has characters other than visible ASCII; {ADVICE}")
            if not MIN_KEY_LENGTH <= len(key) <= MAX_KEY_LENGTH:
                limits = f"{MIN_KEY_LENGTH} to {MAX_KEY_LENGTH} characters"
                raise KeysError(f"a key of {client!r} has {len(key)} characters and should have {limits}; {ADVICE}")
            digest = _digest(key)
            other = clients.setdefault(digest, client)
            if other != client:
                raise KeysError(f"{other!r} and {client!r} have the same key; give each client a key of its own")
    if len(clients) > MAX_KEYS:
        raise KeysError(f"there are {len(clients)} keys, and more than {MAX_KEYS} are not checked fast enough")
    return KeySet(clients)


def read_keys(folder: Path) -> KeySet:
    """The keys in `folder`, hidden files left out. Raises KeysError, also where there is no such folder."""
    missing = ""
    for _ in range(_READ_ATTEMPTS):
        try:
            return make_key_set(_read_files(folder))
        except FileNotFoundError as error:  # perhaps only because it was changed while we read it
            missing = error.filename
        except OSError as error:
            raise KeysError(f"{error.filename} cannot be read: {error.strerror}") from error
    raise KeysError(f"{missing} does not exist; it must be a folder with a file per client that holds its keys")


def _read_files(folder: Path) -> dict[str, list[bytes]]:
    """Client → its keys, of every file. They are read where they really are: so a Secret that changes meanwhile is read
    as it was, or not at all."""
    link = folder / _KUBERNETES_LINK
    keys = {}
    for path in sorted((link.resolve() if link.is_symlink() else folder).iterdir()):
        if path.name.startswith("."):
            continue
        if not _CLIENT.fullmatch(path.name):
            raise KeysError(f"the file name {path.name!r} cannot be a client's; use letters, digits, '.', '_' and '-'")
        keys[path.name] = [key for line in _read_file(path).splitlines() if (key := line.strip())]
    return keys


def _read_file(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not hold us up
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise KeysError(f"{path} is not a file; every entry must hold one client's keys")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise KeysError(f"{path} is larger than {MAX_FILE_BYTES} bytes; it should hold one key per line")
    return content


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
