"""A tokenizer as a model's folder stores it, and the names of its files."""

from dataclasses import dataclass, field

TOKENIZER_JSON, TEKKEN, TIKTOKEN = "tokenizer.json", "tekken.json", "tiktoken.model"
SENTENCE_PIECE = "tokenizer.model"
FILES = (TOKENIZER_JSON, TEKKEN, TIKTOKEN, SENTENCE_PIECE)
"""A folder's tokenizer, by preference."""


@dataclass(frozen=True, slots=True)
class StoredTokenizer:
    """What a tokenizer's file says."""

    tokenizer_json: str
    special_tokens: dict[str, str] = field(default_factory=dict)
    """By role; empty = tokenizer_config.json has the roles."""
    chat_template: str | None = None
    """For a folder without a template; None = not known."""
