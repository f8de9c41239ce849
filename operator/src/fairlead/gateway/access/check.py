"""Who may use the gateway: the check of a request's API key, and the keys followed as they change.

The gateway makes one of these from its command line, and the application asks it before it reads a request's body.
"""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from fairlead.gateway.access.keys import KeysError, read_keys
from fairlead.gateway.openai.errors import Header, invalid_api_key

logger = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""How often the folder is read. Kubernetes takes up to a minute or two to bring a changed Secret to it anyway."""
_REPEAT_POLLS = 60
"""While the folder stays unreadable, that is said again every so many polls."""


class Access(Protocol):
    """Decides who is served."""

    def client(self, headers: Iterable[Header]) -> str | None:
        """The name of the client that sends a request with these headers (names in lower case); None = clients have no
        names here. Raises OpenAIError (401) for a request that is not to be served."""
        ...

    async def run(self) -> None:
        """Follows what the decision rests on, until cancelled."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether the decision rests on what is configured now."""
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
    """Serves whoever presents one of the keys in a folder: `--api-keys-dir`.

    Fails closed: a folder that cannot be read is an error at start; no keys mean that nobody is served. A folder that
    becomes unreadable later leaves the keys as they were, and is complained about until it is mended.
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
        """The client whose key is in the Authorization header, or else in `x-api-key`. Raises OpenAIError (401)."""
        headers = tuple(headers)
        given = [value for name, value in headers if name == b"authorization"]
        given = given or [b"Bearer " + value for name, value in headers if name == b"x-api-key"]
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
        """Takes over the keys in the folder, or keeps those it has and says why."""
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
