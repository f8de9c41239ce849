"""Prefixes of a text in the training of an embedding model, such as `query: `: the `prompts` of
sentence-transformers."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

_FILE = "config_sentence_transformers.json"
_QUERY, _DOCUMENT = ("query",), ("document", "passage", "corpus")
"""Names of the prompts of a search in the order of preference, as in `encode_query` and `encode_document` of
sentence-transformers."""
_LONGEST_TOLD = 128
"""Characters of an unknown name in an error."""


class EmbeddingPrompts(msgspec.Struct, frozen=True):
    """A model's prompts for texts that become vectors."""

    texts: dict[str, str] = {}
    """By name."""
    default: str | None = None
    """Name of the prompt for requests that name none; None = none is put in front."""

    @classmethod
    def read(cls, folder: Path) -> "EmbeddingPrompts":
        """Those of a model's folder, which may have none. Raises ValueError that names file and field."""
        path = folder / _FILE
        if not path.exists():
            return cls()
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            json.dumps(config, ensure_ascii=False).encode()
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        if not isinstance(config, Mapping):
            raise ValueError(f"{path} must hold a JSON object")
        given, default = config.get("prompts") or {}, config.get("default_prompt_name")
        if not isinstance(given, Mapping) or not all(isinstance(text, str | None) for text in given.values()):
            raise ValueError(f"{path}: prompts must be an object of names and texts")
        if default is not None and (not isinstance(default, str) or default not in given):
            known = ", ".join(given) or "none"
            raise ValueError(f"{path}: default_prompt_name {default!r} must be one of the prompts: {known}")
        return cls({name: text or "" for name, text in given.items()}, default)

    @property
    def of_query(self) -> str:
        """Prompt before the query of a search."""
        return self._of_role(_QUERY)

    @property
    def of_documents(self) -> str:
        """Prompt before the documents of a search."""
        return self._of_role(_DOCUMENT)

    def _of_role(self, names: tuple[str, ...]) -> str:
        """The default where the model names no prompt of a search; a named query leaves unnamed documents without a
        prompt, and the reverse."""
        if self.texts.keys().isdisjoint((*_QUERY, *_DOCUMENT)):
            return self.text(None)
        return next((self.texts[name] for name in names if name in self.texts), "")

    def text(self, name: str | None) -> str:
        """The prompt of this name; None = the default one, an empty name = none at all. Raises ValueError for an
        unknown name."""
        if not name:
            return "" if name is not None or self.default is None else self.texts.get(self.default, "")
        if name not in self.texts:
            known = f"its prompts are {', '.join(self.texts)}" if self.texts else "it has none"
            raise ValueError(f"this model has no prompt {name[:_LONGEST_TOLD]!r}; {known}")
        return self.texts[name]
