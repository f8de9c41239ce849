"""Models as `/v1/models` lists them → Anthropic's form, for clients that send its version header. Pure."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import msgspec

from fairlead_common.openai.translate.messages import MessagesDialect
from fairlead_common.openai.unknown_fields import UnknownFields

MODELS_PATH = "/v1/models"
VERSION_HEADER = b"anthropic-version"
"""Anthropic's clients send it with every request, and others never."""
MAX_PAGE = 1000
"""Models of a page, also where no limit is asked for: clients that do not page see all."""


class ListedModel(msgspec.Struct, frozen=True):
    """A model as `/v1/models` lists it."""

    id: str
    created: float = 0.0
    state: str = "ready"
    parent: str | None = None
    max_model_len: int | None = None
    capabilities: tuple[str, ...] = ("completion",)


class ListedModels(msgspec.Struct, frozen=True):
    data: list[ListedModel]


class _BadQuery(Exception):
    """The query asks for no page that there is."""


class MessageModels(MessagesDialect):
    """`GET /v1/models`, or below."""

    def __init__(self, query: str) -> None:
        super().__init__()
        self._asked = {name: values[-1] for name, values in parse_qs(query).items()}

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        """There is none."""
        return MODELS_PATH, body

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Status and body of a model, of a page of models, or of a refusal."""
        if status >= 400:
            return self.refusal(status, body, request_id)
        told = _read(body)
        if isinstance(told, ListedModel):
            return status, msgspec.json.encode(_shown(told))
        try:
            return status, msgspec.json.encode(self._page(told.data))
        except _BadQuery as error:
            return self.refusal(400, msgspec.json.encode({"message": str(error)}), request_id)

    def _page(self, models: list[ListedModel]) -> dict[str, Any]:
        text = self._asked.get("limit", str(MAX_PAGE))
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_PAGE:
            raise _BadQuery(f"limit: must be a number from 1 to {MAX_PAGE}, not {text!r}")
        after, before = (self._asked.get(name) for name in ("after_id", "before_id"))
        if after is not None and before is not None:
            raise _BadQuery("before_id: leave it out, or leave out after_id")
        places = {model.id: place for place, model in enumerate(models)}
        for name, wanted in (("after_id", after), ("before_id", before)):
            if wanted is not None and wanted not in places:
                raise _BadQuery(f"{name}: there is no model {wanted!r}")
        left = models[places[after] + 1 :] if after is not None else models[: places.get(before or "")]
        page = left[-int(text) :] if before is not None else left[: int(text)]
        data = [_shown(model) for model in page]
        ends = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return {"data": data, "first_id": ends[0], "last_id": ends[1], "has_more": len(page) < len(left)}


def _shown(model: ListedModel) -> dict[str, Any]:
    return {
        "type": "model", "id": model.id, "display_name": model.id, "lifecycle": "active", "capabilities": None,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z"),
        "max_input_tokens": model.max_model_len, "max_tokens": model.max_model_len,
    }  # fmt: skip


def _read(body: bytes) -> ListedModel | ListedModels:
    try:
        return msgspec.json.decode(body, type=ListedModels)
    except msgspec.ValidationError:
        return msgspec.json.decode(body, type=ListedModel)
