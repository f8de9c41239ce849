"""A msgspec struct as Starlette's answer."""

from typing import Any

import msgspec
from starlette.responses import Response


class StructResponse(Response):
    """JSON of a struct."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)
