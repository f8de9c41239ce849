"""The job of making a request's grammar, and the program of the process for such jobs, started by `GrammarCompiler`:
llguidance cannot be interrupted, but a process can be ended. Pure but for llguidance."""

import hashlib
import pickle
import resource
import time
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fairlead_common.workers.process import Handler
from fairlead_engine.api.answers.answer_formats import AnswerFormats
from fairlead_engine.api.structured_output import Wish, bare, widest
from fairlead_engine.api.tool_use import AnswerGrammars, ToolUse
from fairlead_engine.core.grammar_limits import parser_limits
from fairlead_engine.errors import RequestError
from fairlead_engine.types import Grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_SLOW_SECONDS = 0.02
"""Processor seconds; slower grammars also yield to faster grammars in the core."""


Made = tuple[tuple[str | None, str, str | None] | None, Grammar | None]
"""Arguments of a RequestError, or the grammar; None = no restriction."""


class GrammarJob(NamedTuple):
    """Input of a grammar."""

    wish: Wish | None
    use: ToolUse | None
    formats: AnswerFormats
    marker_ids: tuple[tuple[str, int], ...]
    """Ids of the formats' markers that grammars name by id."""
    has_begun_reasoning: bool
    vocab_size: int

    @property
    def field(self) -> str:
        """The request's field for errors."""
        return "tools" if self.wish is None else self.wish.field

    @property
    def size(self) -> int:
        """Characters of the input."""
        return (0 if self.wish is None else len(self.wish.source)) + sum(
            map(len, self.use.functions if self.use else ())
        )

    def bare(self) -> "GrammarJob":
        """The job without schemas' annotations."""
        use = None if self.use is None else self.use.bare
        return self._replace(wish=None if self.wish is None else bare(self.wish), use=use)

    def widest(self) -> "GrammarJob | None":
        """The job with everything relaxed that may be relaxed; None = nothing may."""
        wish = self.wish and (widest(self.wish) or self.wish)
        use = self.use and self.use.widest
        return None if (wish, use) == (self.wish, self.use) else self._replace(wish=wish, use=use)

    @property
    def key(self) -> bytes:
        """Digest of the whole input."""
        wish = None if self.wish is None else (self.wish.make.__name__, *self.wish[:1], *self.wish[2:])
        told = (wish, self.use, repr(self.formats), self.marker_ids, self.has_begun_reasoning, self.vocab_size)
        return hashlib.sha256(repr(told).encode(errors="surrogatepass")).digest()

    def made(self) -> Grammar | None:
        """Raises RequestError. Takes as long as in the core, as the grammar is compiled."""
        began = time.process_time()
        found = AnswerGrammars(self.formats, dict(self.marker_ids).get).grammar(
            self.wish, self.use, self.has_begun_reasoning
        )
        if found is None:
            return None
        _try(found.text, self.vocab_size)
        return Grammar(found.text, found.field, time.process_time() - began >= _SLOW_SECONDS)


def _try(text: str, vocab_size: int) -> None:
    """Compiles the grammar as the core does, for a vocabulary of bytes. Errors are left to the core."""
    from llguidance import LLMatcher

    matcher = LLMatcher(bytes_as_tokens(vocab_size), text, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()


class _Bytes:
    """A vocabulary of all bytes, padded to the model's number of tokens."""

    eos_token_id, bos_token_id = 0, None

    def __init__(self, vocab_size: int) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)] + [b"\xff%d" % index for index in range(256, vocab_size)]
        self.special_token_ids = [0, *range(256, vocab_size)]

    def __call__(self, text: bytes) -> list[int]:
        return [*text]


@lru_cache(maxsize=1)
def bytes_as_tokens(vocab_size: int) -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes(vocab_size)))


_STACK_BYTES = 4 * 2**20
"""Half of a core thread's stack: overflowing it would end the core with all requests."""


def make(payload: bytes) -> tuple[bytes, Handler]:
    """`payload`: the model's number of tokens, in decimal. A job is a pickled `GrammarJob`, and the answer `Made` as
    MessagePack."""
    bytes_as_tokens(int(payload))  # loads llguidance before the first job
    most, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if most == resource.RLIM_INFINITY or most > _STACK_BYTES:
        resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, hard))
    encode = msgspec.msgpack.Encoder().encode

    def made(job: bytes, takes_long: bool) -> bytes:
        wanted: GrammarJob = pickle.loads(job)
        try:
            found: Made = (None, wanted.made())
        except RequestError as error:
            found = ((error.field, str(error), error.code), None)
        return encode(found)

    return b"", made
