"""Access to the gateway: API keys in a folder, and the check of requests.

The gateway makes an `Access` from its command line; the application asks it before reading a body. The folder is a
mounted Secret, or looks the same: a file per client, with the client's name and a key per line. Only digests of keys
are kept, so log lines, tracebacks and memory dumps of a `KeySet` show no key.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fairlead.gateway.openai.errors import Header, invalid_api_key

logger = logging.getLogger(__name__)

MIN_KEY_LENGTH = 16
"""Characters; shorter keys can be guessed."""
MAX_KEY_LENGTH = 512
MAX_KEYS = 1000
"""Every request is compared with every key."""
MAX_FILE_BYTES = 64 * 1024
ADVICE = "`openssl rand -hex 32` makes a good key"

_KUBERNETES_LINK = "..data"
"""The link behind a mounted Secret's files; Kubernetes changes all files at once by moving the link."""
_READ_ATTEMPTS = 3
_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,253}")
"""What a Secret's keys may be called; it can stand in logs and metrics."""
_KEY = re.compile(rb"[\x21-\x7e]+")
"""Characters allowed after `Bearer ` in an Authorization header."""


class KeysError(Exception):
    """Unusable keys. The text names the file and the remedy, and quotes no key."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys and their clients at one moment. Equal when both are."""

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
        """The client of the key `presented`; None = unknown. Takes constant time: every known digest is compared."""
        digest = _digest(presented)
        found = None
        for known, client in self._clients.items():
            if hmac.compare_digest(known, digest):
                found = client
        return found

    def changed_clients(self, before: "KeySet") -> list[str]:
        """Clients with added, removed or changed keys."""
        pairs = set(self._clients.items()) ^ set(before._clients.items())
        return sorted({client for _, client in pairs})


def make_key_set(keys: Mapping[str, list[bytes]]) -> KeySet:
    """From client → keys. Raises KeysError for keys that are too weak, or shared by two clients."""
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
    """The keys in `folder` without hidden files. Raises KeysError, also for a missing folder."""
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
    """Client → keys, of every file. Read at the link's target: a Secret changed meanwhile is read in its old state, or
    not at all."""
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


POLL_SECONDS = 5.0
"""How often the folder is read. Kubernetes takes up to a minute or two to bring a changed Secret to it anyway."""
_REPEAT_POLLS = 60
"""Polls between log lines while the folder is unreadable."""


class Access(Protocol):
    """Decides who is served."""

    def client(self, headers: Iterable[Header]) -> str | None:
        """The client that sends these headers (names in lower case); None = no keys are used. Raises OpenAIError
        (401)."""
        ...

    async def run(self) -> None:
        """Follows what the decision rests on, until cancelled."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether the decision rests on the present configuration."""
        ...


class OpenAccess:
    """Serves everybody: `--no-api-keys`."""

    is_current = True

    def client(self, headers: Iterable[Header]) -> str | None:
        """Nobody has a name."""
        return None

    async def run(self) -> None:
        """There is nothing to follow."""
        await asyncio.Event().wait()


class KeyedAccess:
    """Serves whoever presents a key of the folder: `--api-keys-dir`.

    Fails closed: an unreadable folder is an error at start, and without keys nobody is served. When the folder becomes
    unreadable later, the known keys stay valid, and errors are logged.
    """

    def __init__(self, folder: Path, *, poll_seconds: float = POLL_SECONDS) -> None:
        """Raises KeysError."""
        self._folder = folder
        self._poll_seconds = poll_seconds
        self._keys = read_keys(folder)
        self._complaint = ""
        self._num_bad_polls = 0
        num_keys, num_clients = len(self._keys), len(self._keys.clients)
        logger.info("serving whoever presents one of %d API keys of %d clients", num_keys, num_clients)
        self._warn_of_none()

    @property
    def is_current(self) -> bool:
        """Whether the folder could be read the last time."""
        return not self._complaint

    def client(self, headers: Iterable[Header]) -> str | None:
        """The client whose key is in the Authorization header, or else in `x-api-key`, or else in `api-key`. Raises
        OpenAIError (401)."""
        headers = tuple(headers)
        given = [value for name, value in headers if name == b"authorization"]
        for other in (b"x-api-key", b"api-key"):  # as clients of Anthropic, and of OpenAI at Azure, send them
            given = given or [b"Bearer " + value for name, value in headers if name == other]
        if not given:
            raise invalid_api_key("This gateway wants an API key: send it as `Authorization: Bearer KEY`.")
        scheme, _, key = given[0].strip().partition(b" ")
        if len(given) > 1 or scheme.lower() != b"bearer" or not key.strip():
            raise invalid_api_key("The Authorization header is not understood: send `Authorization: Bearer KEY`, once.")
        client = self._keys.client(key.strip())
        if client is None:
            raise invalid_api_key("The API key is not one that this gateway knows.")
        return client

    async def run(self) -> None:
        """Takes over the keys in the folder whenever they have changed, all at once, until cancelled."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            await self.reload()

    async def reload(self) -> None:
        """Takes over the keys in the folder; on an error keeps the known ones and logs why."""
        try:
            keys = await asyncio.to_thread(read_keys, self._folder)
        except KeysError as error:
            problem = str(error)
            if problem != self._complaint:
                self._num_bad_polls = 0
            if self._num_bad_polls % _REPEAT_POLLS == 0:
                logger.error("the API keys cannot be read, those known before stay valid: %s", problem)
            self._complaint, self._num_bad_polls = problem, self._num_bad_polls + 1
            return
        if self._complaint:
            logger.info("the API keys can be read again")
            self._complaint, self._num_bad_polls = "", 0
        if keys == self._keys:
            return
        changed = ", ".join(keys.changed_clients(self._keys))
        self._keys = keys
        num_keys, num_clients = len(keys), len(keys.clients)
        logger.info("API keys changed for %s; %d keys of %d clients from here on", changed, num_keys, num_clients)
        self._warn_of_none()

    def _warn_of_none(self) -> None:
        if not len(self._keys):
            logger.warning("%s has no API keys: every request is refused until it has", self._folder)
