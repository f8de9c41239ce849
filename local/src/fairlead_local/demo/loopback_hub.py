"""A hub for `hf://` without internet: folders, served by the HTTP API of the hub at a given speed.

Needs the standard library alone, and is also a program: `python loopback_hub.py HOST PORT NAME BYTES_PER_SECOND
[NAME=FOLDER …]` serves the dinghy of the engine, and other folders. HUB_TOKEN_SHA256 holds the SHA-256 of the token for
access; the token of HUB_STRANGER_SHA256 gets a refusal until the terms of the model are accepted.
"""

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

REVISION = "main"
_CHUNKS_PER_SECOND = 20


@dataclass(kw_only=True)
class Shelf:
    """A model of a hub, and how it is served."""

    name: str
    """`ORGANISATION/NAME` of its model."""
    folder: Path
    bytes_per_second: float
    """Of one file."""
    token_sha256: str = ""
    """SHA-256, in hex, of the token that requests must bear; empty = no token."""
    stranger_sha256: str = ""
    """SHA-256 of the token of an account that has not accepted the terms; empty = no such account."""
    tells: bool = False
    """Whether each request is a line of stderr."""

    @property
    def commit(self) -> str:
        """Forty hex digits that follow from the files."""
        listed = [(path.name, path.stat().st_size) for path in self.files]
        return hashlib.sha1(json.dumps(listed).encode(), usedforsecurity=False).hexdigest()

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_file())

    def refusal(self, authorization: str) -> tuple[int, str, str] | None:
        """Status, code and message for a request with this header; None = it may read."""
        bears = hashlib.sha256(authorization.removeprefix("Bearer ").encode()).hexdigest()
        if not self.token_sha256 or bears == self.token_sha256:
            return None
        if bears == self.stranger_sha256:
            return 403, "GatedRepo", "Access to this model is restricted"
        return 401, "", "Invalid credentials in Authorization header"

    def described(self) -> bytes:
        """The answer to a question for the model's files."""
        siblings = [
            {
                "rfilename": path.name,
                "size": path.stat().st_size,
                "lfs": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size},
            }
            for path in self.files
        ]
        return json.dumps({"id": self.name, "sha": self.commit, "siblings": siblings}).encode()


def _handler(*shelves: Shelf) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            if shelves[0].tells:
                super().log_message(format, *args)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            shelf = next((each for each in shelves if f"/{each.name}/" in path), shelves[0])
            if (refusal := shelf.refusal(self.headers.get("Authorization", ""))) is not None:
                return self._refuse(*refusal)
            if path == f"/api/models/{shelf.name}/revision/{REVISION}":
                body = shelf.described()
                self._begin(200, {"Content-Type": "application/json", "Content-Length": len(body)})
                self.wfile.write(body)
                return None
            if path.startswith(f"/api/models/{shelf.name}/revision/"):
                return self._refuse(404, "RevisionNotFound", "Invalid rev id")
            before = f"/{shelf.name}/resolve/{shelf.commit}/"
            file = next((each for each in shelf.files if path == before + each.name), None)
            if file is None:
                return self._refuse(404, "RepoNotFound" if shelf.name not in path else "EntryNotFound", "Not found")
            return self._send(file, shelf.bytes_per_second)

        def _send(self, file: Path, bytes_per_second: float) -> None:
            content = file.read_bytes()
            first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0] or 0)
            is_part = "Range" in self.headers
            headers = {"Content-Length": len(content) - first, "Accept-Ranges": "bytes"}
            headers |= {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            headers |= {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if is_part else {}
            self._begin(206 if is_part else 200, headers)
            if self.command == "HEAD":
                return
            size = max(1, int(bytes_per_second / _CHUNKS_PER_SECOND))
            for start in range(first, len(content), size):
                self.wfile.write(content[start : start + size])
                time.sleep(1 / _CHUNKS_PER_SECOND if start + size < len(content) else 0)

        def _refuse(self, status: int, code: str, message: str) -> None:
            self._begin(
                status, ({"X-Error-Code": code} if code else {}) | {"X-Error-Message": message, "Content-Length": 0}
            )

        def _begin(self, status: int, headers: Mapping[str, object]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.end_headers()

    return Handler


@contextmanager
def hub(shelf: Shelf, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serves within the block; yields the base URL, as HF_ENDPOINT wants it."""
    server = ThreadingHTTPServer((host, port), _handler(shelf))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def bundled_dinghy() -> Path:
    """The folder of the model that comes with the engine."""
    engine = find_spec("fairlead_engine")
    assert engine is not None and engine.origin is not None
    return Path(engine.origin).parent / "demo" / "dinghy"


def _main(host: str, port: str, name: str, bytes_per_second: str, *others: str) -> None:
    named = (each.partition("=") for each in others)
    folders = {name: bundled_dinghy()} | {each: Path(folder) for each, _, folder in named}
    shelves = [
        Shelf(
            name=each,
            folder=folder,
            bytes_per_second=float(bytes_per_second),
            token_sha256=os.environ.get("HUB_TOKEN_SHA256", ""),
            stranger_sha256=os.environ.get("HUB_STRANGER_SHA256", ""),
            tells=True,
        )
        for each, folder in folders.items()
    ]
    ThreadingHTTPServer((host, int(port)), _handler(*shelves)).serve_forever()


if __name__ == "__main__":
    _main(*sys.argv[1:])
