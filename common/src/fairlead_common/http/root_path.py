"""A path before all paths of a server: where a proxy passes on what is below `/llm`, `/llm/v1/models` is served."""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fairlead_common.http.cross_origin import App, Message, Send
from fairlead_common.settings import SettingError

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")


def check_root_path(root_path: str) -> None:
    """Raises SettingError unless `root_path` is empty or a path such as /llm or /team/llm."""
    if root_path and not _ROOT_PATH.fullmatch(root_path):
        raise SettingError("root_path", f"must be a path such as /llm, without a slash at its end, not {root_path!r}")


def below(root_path: str, path: str) -> str:
    """`path` without the root path. Paths that are not below the root path stay as they are: some proxies remove it."""
    return path.removeprefix(root_path) if path.startswith(f"{root_path}/") else path


class RootPath:
    """ASGI middleware: the application sees paths without the root path."""

    def __init__(self, app: App, root_path: str) -> None:
        """`root_path`: as of `check_root_path`, not empty."""
        self._app = app
        self._root_path = root_path

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Send
    ) -> None:
        if scope["path"] == self._root_path:  # a page's links are relative to its folder
            headers = [(b"location", f"{self._root_path}/".encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 308, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        scope["path"] = below(self._root_path, scope["path"])
        await self._app(scope, receive, send)
