"""A cache from pieces of prompt text to token ids, so that a conversation grown by one turn costs that turn.

Texts are cut only where `cuts.py` knows that the ids stay the same: at special tokens, which every chat template writes
between messages. A piece goes from one such token up to and with another, so its ids are right in whatever text it
stands, and a conversation shares its pieces with its earlier turns and with all that begin alike. An engine, which gets
ids, has no need of it.
"""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TypeAlias

from fairlead.gateway.prompts.cuts import Cuts, frame_of
from fairlead.gateway.prompts.prompt_jobs import Key
from fairlead_protocol.least_tokens import LeastTokens
from fairlead_protocol.tokenizing import PromptTokenizer

Ids: TypeAlias = "array[int]"
"""Token ids as unsigned ints: a tenth of a list's memory, and quick to join and to hash."""
_ENTRY_BYTES = 300
"""What an entry takes besides text and ids: key, links, object headers."""


class PrefixCache:
    """Pieces and their ids; beyond `max_bytes` the least recently used go. Any number of tokenizers share one."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._ids: OrderedDict[Key, Ids] = OrderedDict()
        self._num_bytes = 0

    def find(self, keys: Sequence[Key]) -> "list[Ids | None]":
        """What is known of each piece; they count as used now."""
        found = [self._ids.get(key) for key in keys]
        for key, ids in zip(keys, found, strict=True):
            if ids is not None:
                self._ids.move_to_end(key)
        return found

    def add(self, pieces: Iterable[tuple[Key, Ids]]) -> None:
        """Keeps these too. A piece that would take a quarter of the cache is not worth what it drives out."""
        for key, ids in pieces:
            size = _size(key, ids)
            if key not in self._ids and 4 * size <= self.max_bytes:
                self._ids[key] = ids
                self._num_bytes += size
        while self._num_bytes > self.max_bytes:
            self._num_bytes -= _size(*self._ids.popitem(last=False))

    def check(self) -> None:
        """Asserts that the books are right."""
        assert self._num_bytes == sum(_size(key, ids) for key, ids in self._ids.items())
        assert self._num_bytes <= self.max_bytes


def _size(key: Key, ids: Ids) -> int:
    return sys.getsizeof(key[1]) + len(ids) * ids.itemsize + _ENTRY_BYTES


@dataclass(slots=True)
class Encoding:
    """A text on its way to ids: its pieces, and what the cache knew of each."""

    keys: list[Key]
    known: "list[Ids | None]"
    framed: bool
    """Whether the ids of `add_special_tokens` are to be put around it."""

    @property
    def missing(self) -> list[Key]:
        """Each piece that is still to be encoded, once."""
        return list(dict.fromkeys(key for key, ids in zip(self.keys, self.known, strict=True) if ids is None))

    @property
    def num_missing_characters(self) -> int:
        """How much text is still to be encoded, which is what takes the time."""
        return sum(len(text) for _, text in self.missing)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens that the cache knew; after the first piece each repeats one."""
        return sum(len(ids) - (index > 0) for index, ids in enumerate(self.known) if ids is not None)


class CachingTokenizer:
    """A `PromptTokenizer` that remembers. The ids are the same as without, whatever was encoded before."""

    def __init__(self, tokenizer: PromptTokenizer, cache: PrefixCache) -> None:
        self.tokenizer = tokenizer
        self.cache = cache
        self.least_tokens = LeastTokens(tokenizer)
        self.cuts = Cuts.of(tokenizer)
        self._frame = frame_of(tokenizer)

    def begin(self, text: str, *, add_special_tokens: bool) -> Encoding:
        """The quick part: a millisecond for a million characters."""
        if add_special_tokens and self._frame is None:  # what is added depends on the text, which so stays whole
            keys = [(f"{self.tokenizer.digest}+", text)]
            return Encoding(keys, self.cache.find(keys), framed=False)
        keys = [(self.tokenizer.digest, piece) for piece in self.cuts.pieces(text)]
        return Encoding(keys, self.cache.find(keys), framed=add_special_tokens)

    def finish(self, encoding: Encoding, learnt: Mapping[Key, Ids] = MappingProxyType({})) -> Ids:
        """The slow part: tokenises what was not known, and not `learnt` elsewhere."""
        missing = encoding.missing
        new = self.encoded([key for key in missing if key not in learnt])
        new |= {key: learnt[key] for key in missing if key in learnt}
        self.cache.add(new.items())
        before, after = self._frame if encoding.framed and self._frame else ((), ())
        whole = array("I", before)
        for index, (key, ids) in enumerate(zip(encoding.keys, encoding.known, strict=True)):
            piece = new[key] if ids is None else ids
            whole.extend(piece[1:] if index else piece)
        whole.extend(after)
        return whole

    def encoded(self, keys: Iterable[Key]) -> dict[Key, Ids]:
        """The ids of pieces; nothing is looked up."""
        new: dict[Key, Ids] = {}
        for is_framed, group in groupby(keys, lambda key: key[0] != self.tokenizer.digest):
            missing = list(group)
            encoded = self.tokenizer.encode_each([text for _, text in missing], add_special_tokens=is_framed)
            new |= {key: array("I", ids) for key, ids in zip(missing, encoded, strict=True)}
        return new
