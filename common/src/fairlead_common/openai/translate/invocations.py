"""SageMaker's `POST /invocations`: a request in the OpenAI form whose fields say what it is for. Pure."""

from collections.abc import Mapping

import msgspec

from fairlead_common.openai.budget import check_json
from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate.chat_answers import EVENT_STREAM
from fairlead_common.openai.unknown_fields import UnknownFields

INVOCATIONS_PATH = "/invocations"
_PATHS: Mapping[frozenset[str], str] = {
    frozenset({"messages"}): "/v1/chat/completions",
    frozenset({"prompt"}): "/v1/completions",
    frozenset({"input"}): "/v1/embeddings",
    frozenset({"query", "documents"}): "/v1/rerank",
    frozenset({"text_1", "text_2"}): "/v1/score",
    frozenset({"queries", "documents"}): "/v1/score",
    frozenset({"queries", "items"}): "/v1/score",
    frozenset({"data_1", "data_2"}): "/v1/score",
}
"""Fields that are there → the path of the same request; the first that fits."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Invocation(msgspec.Struct, frozen=True):
    """`POST /invocations`: the body of a chat, a completion, or a request for embeddings, ranks or scores."""


class Invocations:
    """Only the path is another."""

    stream_type = EVENT_STREAM

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        """Raises PromptError where no path fits, and OverBudget."""
        check_json(body)
        try:
            fields = _fields.decode(body)
        except msgspec.ValidationError:
            raise PromptError("", "the request body must be a JSON object") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PromptError("", f"the request body is not valid JSON: {error}") from None
        except RecursionError:
            raise PromptError("", "the request body is nested too deeply") from None
        given = {name for name, value in fields.items() if bytes(value) != b"null"}
        path = next((path for names, path in _PATHS.items() if names <= given), None)
        if path is None:
            raise PromptError("messages", "send messages, prompt, input, query and documents, or text_1 and text_2")
        return path, body

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        """As it is."""
        return status, body

    def events(self, data: bytes) -> bytes:
        """As they are."""
        return data
