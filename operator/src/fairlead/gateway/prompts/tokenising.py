"""One request through one tokenizer: render, look up, encode, hash. Plain work without waiting, for any thread."""

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from fairlead.gateway.prompts.fields import RawPrompt
from fairlead.gateway.prompts.hash_chains import HashChains
from fairlead.gateway.prompts.prefix_cache import Encoding, Ids
from fairlead.gateway.prompts.tokenizers import ModelTokenizer
from fairlead.routing.prompt import Tokens
from fairlead_protocol.prompts import Part, PromptError, PromptFields, PromptTooLong, cannot_be_tokenised

MAX_CHARACTERS_PER_TOKEN = 32
"""A text with more of them for each token that its engine takes is hardly going to fit; finding out is left to the
engine."""
MAX_CHARACTERS = 4 * 1024 * 1024
"""Of a text, about a million tokens; longer ones are left to the engine, too."""
MAX_PROMPTS = 128
"""Of one request; more are left to the engine, which by default takes no more."""


class LeftToEngine(Exception):
    """It would cost too much here; the engine tokenises this request, or refuses it."""


class Tokenising:
    """`begin`, then `finish`, once each; `num_missing_characters` tells in between how long the second will take."""

    def __init__(self, raw: RawPrompt, fields: PromptFields, model: ModelTokenizer, chains: HashChains) -> None:
        """`fields`: those of `raw`, which has some."""
        self._fields = fields
        self._chains = chains
        self._extra = raw.extra
        self._reads_all = raw.reads_all
        self._limit = raw.limit
        self._model = model
        self._parts: list[tuple[Part, Encoding | None]] = []
        """Texts with what is known of them; ids as they came."""
        self.prompts: tuple[Tokens, ...] = ()
        """The result."""
        self.seconds = 0.0
        """Spent so far."""

    @property
    def num_missing_characters(self) -> int:
        """How much text has to be encoded."""
        return sum(encoding.num_missing_characters for _, encoding in self._parts if encoding)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of texts that were known."""
        return sum(encoding.num_cached_tokens for _, encoding in self._parts if encoding)

    def begin(self) -> None:
        """Renders and looks up. Raises PromptError, at once where a prompt is sure to be too long, and LeftToEngine."""
        with self._timed():
            parts = self._fields.parts(self._model.encoder.tokenizer)
            for part in parts:
                part.check_length(self._model.encoder.least_tokens, self._model.max_model_len)
            limit = min(self._model.max_model_len * MAX_CHARACTERS_PER_TOKEN, MAX_CHARACTERS)
            if len(parts) > MAX_PROMPTS or any(len(part.content) > limit for part in parts):
                raise LeftToEngine
            self._parts = [(part, self._lookup(part)) for part in parts]

    def finish(self) -> None:
        """Encodes what was not known, and hashes. Raises PromptError."""
        with self._timed():
            self.prompts = tuple(self._tokens(part, encoding) for part, encoding in self._parts)

    def _lookup(self, part: Part) -> Encoding | None:
        if isinstance(part.content, str):
            return self._model.encoder.begin(part.content, add_special_tokens=self._fields.adds_special_tokens)
        return None

    def _tokens(self, part: Part, encoding: Encoding | None) -> Tokens:
        ids = self._ids(part, encoding)
        sizes = tuple(self._model.block_sizes)
        if self._reads_all:
            return Tokens(ids, self._extra, {size: [] for size in sizes})
        return Tokens(ids, self._extra, {size: self._chains.hashes(ids, size, self._extra) for size in sizes})

    def _ids(self, part: Part, encoding: Encoding | None) -> Ids:
        try:
            if encoding is not None:
                ids = self._model.encoder.finish(encoding)
            else:
                ids = array("I", cast(list[int], part.content))
        except Exception as error:  # tokenizers raises bare Exception; ids may be of any size
            raise cannot_be_tokenised(part.place, error) from error
        if not ids:
            raise PromptError(part.place, "is empty")
        if len(ids) >= self._model.max_model_len:
            raise PromptTooLong(part.place, len(ids), self._model.max_model_len)
        self._limit.check(len(ids), self._model.max_model_len)
        return ids

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started
