"""How answers of lines are written into a batch's files, for clients of either API. Pure."""

import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import msgspec

from fairlead.gateway.batches.batch import BatchApi, BatchRow, BatchStatus
from fairlead.gateway.openai.parse import UNREADABLE


class AnswerForm(Protocol):
    """Lines are without their ends."""

    FILES: ClassVar[Mapping[str, tuple[bool, ...]]]
    """Files of a batch → kinds of answers in a file, in order: errors (True), answers (False). Requests without an
    answer follow errors."""
    TELLS_UNANSWERED: ClassVar[frozenset[BatchStatus]]
    """Ends of a batch after which requests without an answer are told."""

    def answered(self, custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
        """The line of an answer. `body`: of any kind; usually JSON."""
        ...

    def unanswered(self, custom_id: str, ending: BatchStatus) -> bytes:
        """The line of a request without an answer."""
        ...


class OpenAIAnswers:
    """Answers in one file, errors in another."""

    FILES: ClassVar[Mapping[str, tuple[bool, ...]]] = {"output": (False,), "error": (True,)}
    TELLS_UNANSWERED: ClassVar[frozenset[BatchStatus]] = frozenset({BatchStatus.EXPIRED})

    def answered(self, custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
        response = {"status_code": status, "request_id": request_id, "body": _on_one_line(body)}
        return _encoded({"id": request_id, "custom_id": custom_id, "response": response, "error": None})

    def unanswered(self, custom_id: str, ending: BatchStatus) -> bytes:
        message = "This request could not be executed before the completion window expired."
        error = {"code": "batch_expired", "message": message}
        request_id = f"batch_req_{secrets.token_hex(16)}"
        return _encoded({"id": request_id, "custom_id": custom_id, "response": None, "error": error})


class MessageResults:
    """Results of a message batch: one file, where every request has a line."""

    FILES: ClassVar[Mapping[str, tuple[bool, ...]]] = {"output": (False, True)}
    TELLS_UNANSWERED: ClassVar[frozenset[BatchStatus]] = frozenset({BatchStatus.EXPIRED, BatchStatus.CANCELLED})

    def answered(self, custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
        kind, name = ("errored", "error") if status >= 400 else ("succeeded", "message")
        return _encoded({"custom_id": custom_id, "result": {"type": kind, name: _on_one_line(body)}})

    def unanswered(self, custom_id: str, ending: BatchStatus) -> bytes:
        kind = "canceled" if ending == BatchStatus.CANCELLED else "expired"
        return _encoded({"custom_id": custom_id, "result": {"type": kind}})


_FORMS: Mapping[BatchApi, AnswerForm] = {BatchApi.OPENAI: OpenAIAnswers(), BatchApi.MESSAGES: MessageResults()}


def answer_form(row: BatchRow) -> AnswerForm:
    """Of the clients that made the batch."""
    return _FORMS[row.api]


def _on_one_line(body: bytes) -> msgspec.Raw:
    """JSON without line ends. A body of another kind, such as a proxy's page, becomes a string."""
    try:
        return msgspec.Raw(msgspec.json.format(body, indent=-1))
    except UNREADABLE:
        return msgspec.Raw(msgspec.json.encode(body.decode("utf-8", "replace")))


def _encoded(line: dict[str, Any]) -> bytes:
    return msgspec.json.encode(line)
