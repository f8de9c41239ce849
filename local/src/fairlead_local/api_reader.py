"""Reading a running fleet's API from a command: plain GETs, nothing more."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from fairlead.kube.kubeconfig import KubeConfigError, load
from fairlead_local.apiserver.status import Json
from fairlead_local.fleet_state import FleetError

_TIMEOUT_SECONDS = 5.0
_CHUNK_BYTES = 65_536


class ApiReader:
    """Reads with the credentials of a kubeconfig. Raises FleetError with the server's own sentence."""

    def __init__(self, kubeconfig: Path) -> None:
        try:
            config = load(kubeconfig)
        except KubeConfigError as error:
            raise FleetError(str(error)) from error
        self._server = config.server
        self._headers = {"Authorization": f"Bearer {config.token}"}
        self._opener = build_opener(ProxyHandler({}))  # the API is on this machine, whatever proxies there are

    def objects(self, path: str, **query: str) -> list[Json]:
        """The items of a list."""
        with self._open(path, query, _TIMEOUT_SECONDS) as response:
            found: list[Json] = json.load(response)["items"]
            return found

    def text(self, path: str, **query: str) -> Iterator[bytes]:
        """A text as it comes, for as long as it does."""
        with self._open(path, query, None) as response:
            while chunk := response.read1(_CHUNK_BYTES):
                yield chunk

    @contextmanager
    def _open(self, path: str, query: dict[str, str], timeout: float | None) -> Iterator[HTTPResponse]:
        url = f"{self._server}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            with self._opener.open(Request(url, headers=self._headers), timeout=timeout) as response:
                yield response
        except HTTPError as error:
            raise FleetError(_sentence(error)) from error
        except HTTPException as error:
            raise FleetError("the fleet ended meanwhile: its API server left in the middle of an answer") from error
        except OSError as error:
            raise FleetError(f"the API server does not answer: {error}") from error


def _sentence(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)
