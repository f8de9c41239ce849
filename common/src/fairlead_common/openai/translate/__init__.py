"""Other API dialects, translated to the OpenAI form and back. Pure; gateway and engine use the same translations.

Each module is a dialect. A program asks `translation_of` for each request, hands the body to `request`, serves the
returned path and body, and hands answers and refusals to `answer`, or a stream's events to `events`. Questions about
models have a path below `/v1/models` as theirs, and no body.
"""

from collections.abc import Callable, Container, Mapping
from typing import Protocol

from fairlead_common.openai.translate.compactions import COMPACT_PATH, Compact
from fairlead_common.openai.translate.invocations import INVOCATIONS_PATH, Invocations
from fairlead_common.openai.translate.messages import (
    COUNT_TOKENS_PATH,
    MESSAGE_BATCHES_PATH,
    CountTokens,
    MessageBatches,
)
from fairlead_common.openai.translate.messages_answers import MESSAGES_PATH, Messages
from fairlead_common.openai.translate.messages_models import MODELS_PATH, VERSION_HEADER, MessageModels
from fairlead_common.openai.translate.ollama_answers import (
    CHAT_PATH,
    EMBED_PATH,
    GENERATE_PATH,
    OLDER_EMBED_PATH,
    OllamaChat,
    OllamaDialect,
    OllamaEmbed,
    OllamaEmbeddings,
    OllamaGenerate,
)
from fairlead_common.openai.translate.ollama_models import MODEL_QUESTIONS
from fairlead_common.openai.translate.responses import INPUT_TOKENS_PATH, RESPONSES_PATH
from fairlead_common.openai.translate.responses_answers import CountInputTokens, Responses
from fairlead_common.openai.unknown_fields import UnknownFields


class Translation(Protocol):
    """One request of another dialect."""

    stream_type: str
    """Content type of its streams."""

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        """The path and body of the same request in the OpenAI form. `unknown`: decodes `body`. Raises PromptError with
        the field of the dialect, and OverBudget."""
        ...

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Status and body for the client, from status and body in the OpenAI form. Never raises."""
        ...

    def events(self, data: bytes) -> bytes:
        """Events for the client, from whole events in the OpenAI form; the last one of these is `[DONE]` or an error.
        Never raises."""
        ...


_TRANSLATIONS: Mapping[str, Callable[[], Translation]] = {
    COUNT_TOKENS_PATH: CountTokens,
    MESSAGES_PATH: Messages,
    RESPONSES_PATH: Responses,
    INPUT_TOKENS_PATH: CountInputTokens,
    COMPACT_PATH: Compact,
    CHAT_PATH: OllamaChat,
    GENERATE_PATH: OllamaGenerate,
    EMBED_PATH: OllamaEmbed,
    OLDER_EMBED_PATH: OllamaEmbeddings,
    INVOCATIONS_PATH: Invocations,
}
TRANSLATED_PATHS = frozenset(_TRANSLATIONS)
"""Paths of dialects whose requests are for models, by POST."""
_REFUSED = dict.fromkeys(("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"), OllamaDialect)
"""Not served: models come and go by LLMDeployments. Clients understand refusals in their dialect alone."""
_ALL: Mapping[str, Callable[[], Translation]] = {**_TRANSLATIONS, **MODEL_QUESTIONS, **_REFUSED}


def translation_of(path: str, headers: Container[bytes] = (), query: bytes = b"") -> Translation | None:
    """A new translation for a request to a path with this ending, whose headers have these names; None = the OpenAI
    form itself."""
    if VERSION_HEADER in headers and f"{MODELS_PATH}/" in f"{path}/":
        return MessageModels(query.decode("latin-1"))
    if f"{MESSAGE_BATCHES_PATH}/" in f"{path}/":
        return MessageBatches()
    return next((made() for ending, made in _ALL.items() if path.endswith(ending)), None)
