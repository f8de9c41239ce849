"""Other API dialects, translated to the OpenAI form and back. Pure; gateway and engine use the same translations.

Each module is a dialect. A program asks `translation_of` for each request, hands the body to `request`, serves the
returned path and body, and hands answers and refusals to `answer`.
"""

from typing import Protocol

from fairlead_common.openai.translate.messages import COUNT_TOKENS_PATH, CountTokens

TRANSLATED_PATHS = frozenset({COUNT_TOKENS_PATH})
"""Paths of dialects that gateways and engines serve."""


class Translation(Protocol):
    """One request of another dialect."""

    def request(self, body: bytes) -> tuple[str, bytes]:
        """The path and body of the same request in the OpenAI form. Raises PromptError with the field of the
        dialect, and OverBudget."""
        ...

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Status and body for the client, from status and body in the OpenAI form. Never raises."""
        ...


def translation_of(path: str) -> Translation | None:
    """A new translation for a request to a path with this ending; None = the OpenAI form itself."""
    return CountTokens() if path.endswith(COUNT_TOKENS_PATH) else None
