"""Other API dialects, translated to the OpenAI form and back. Pure; gateway and engine use the same translations.

A dialect is a module here. A program asks `translation_of` for each request, hands the body to `request`, serves the
path and body that come back, and hands its answer, refusals among them, to `answer`.
"""

from typing import Protocol

from fairlead_common.translate.messages import COUNT_TOKENS_PATH, CountTokens

TRANSLATED_PATHS = frozenset({COUNT_TOKENS_PATH})
"""Paths of other dialects that gateways and engines serve."""


class Translation(Protocol):
    """One request of another dialect."""

    def request(self, body: bytes) -> tuple[str, bytes]:
        """The path and body of the same request in the OpenAI form. Raises PromptError, which names the dialect's own
        field, and OverBudget."""
        ...

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Status and body for the client, from those of the OpenAI form. Never raises."""
        ...


def translation_of(path: str) -> Translation | None:
    """A new translation for a request to this path, whatever stands before it; None = the OpenAI form itself."""
    return CountTokens() if path.endswith(COUNT_TOKENS_PATH) else None
