"""A model's tokenizer and chat template as the program of a process (`fairlead_common.workers`): renders, looks up,
encodes and hashes one request's prompts at a time.

Block hashes are kept for the prompts whose texts `prefix_cache.py` keeps: computing a hash takes 0.6 µs per block,
looking it up a tenth.
"""

import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import msgspec

from fairlead.gateway.prompts.fields import TOKENS_PER_IMAGE, RawPrompt, raw_prompt
from fairlead.gateway.prompts.prefix_cache import CachingTokenizer, Encoding, Ids, PrefixCache
from fairlead.gateway.prompts.prompt_jobs import EncodeJob, Engines, Key, PackedTokens, ReadJob, ReadOutcome, ReadReply
from fairlead_common.openai.prompts import Part, PromptError, PromptFields, PromptTooLong, TooLong, cannot_be_tokenised
from fairlead_common.openai.truncation import FIELD as TRUNCATE
from fairlead_common.openai.truncation import Truncation, frame_of, truncation_of
from fairlead_common.tokens.tokenizing import PromptTokenizer, TokenizerError
from fairlead_common.wire.blocks import ROOT, BlockHash, hash_blocks, num_cacheable_blocks
from fairlead_common.wire.messages import ModelInfo
from fairlead_common.workers.process import Handler

MAX_CHARACTERS_PER_TOKEN = 32
"""Longer texts will hardly fit the engine's context; the engine decides."""
MAX_CHARACTERS = 1024 * 1024
"""Of a text, which takes some two hundred times as much memory; longer texts are left to the engine."""
MAX_TOKENS = 1_000_000
"""Of all prompts of a request: the ids of more would not be sent. A tokenizer may make forty tokens of a character, and
the gateway reads the ids on its event loop."""
MAX_BLOCKS = 65_536
"""Blocks hashed per request, from the beginning: later blocks do not decide the routing."""
CHUNK_BLOCKS = 64
"""Blocks that are remembered together: with blocks of 16 tokens, 8 KiB."""


class LeftToEngine(Exception):
    """It would cost too much here; the engine tokenises this request, or refuses it."""


class HashChains:
    """Hashes prompts, reusing the hashes of common beginnings."""

    def __init__(self, max_chunks: int = 1024) -> None:
        """`max_chunks`: by default 12 MiB, for a million tokens."""

        def hash_chunk(parent: BlockHash, raw_ids: bytes, block_size: int, extra: bytes) -> tuple[BlockHash, ...]:
            return tuple(hash_blocks(array("I", raw_ids), block_size, parent=parent, extra=extra))

        self._chunk = lru_cache(maxsize=max_chunks)(hash_chunk)

    def hashes(self, token_ids: "array[int]", block_size: int, extra: bytes) -> list[BlockHash]:
        """Of a prompt's cacheable blocks, as `hash_blocks` computes them."""
        end = num_cacheable_blocks(len(token_ids), block_size) * block_size
        step = CHUNK_BLOCKS * block_size
        hashes: list[BlockHash] = []
        parent, start = ROOT, 0
        while start + step <= end:
            hashes += self._chunk(parent, token_ids[start : start + step].tobytes(), block_size, extra)
            parent, start = hashes[-1], start + step
        return hashes + hash_blocks(token_ids[start:end], block_size, parent=parent, extra=extra)


class Tokenising:
    """`begin`, then `finish`, once each; `num_missing_characters` tells in between how long the second will take."""

    def __init__(
        self, raw: RawPrompt, fields: PromptFields, model: CachingTokenizer, engines: Engines, chains: HashChains
    ) -> None:
        """`fields`: those of `raw`, which has some."""
        self._engines = engines
        self._raw = raw
        self._fields = fields
        self._chains = chains
        self._model = model
        self._parts: list[tuple[Part, Encoding | None]] = []
        """Texts with what is known of them; ids and pairs as they came."""
        self._truncation: Truncation | None = None
        self.prompts: list[PackedTokens] = []
        """The result."""
        self.seconds = 0.0
        """Spent so far."""

    @property
    def num_missing_characters(self) -> int:
        """How much text has to be encoded."""
        known = sum(encoding.num_missing_characters for _, encoding in self._parts if encoding)
        return known + sum(sum(map(len, part.texts)) for part, encoding in self._parts if encoding is None)

    @property
    def missing(self) -> list[Key]:
        """Pieces that the cache will keep once they are encoded."""
        return [key for _, encoding in self._parts if encoding for key in encoding.missing]

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of texts that were known."""
        return sum(encoding.num_cached_tokens for _, encoding in self._parts if encoding)

    def begin(self) -> None:
        """Renders and looks up. Raises PromptError, at once where a prompt is sure to be too long, and LeftToEngine."""
        with self._timed():
            self._truncation = truncation_of(self._fields, self._engines.max_model_len, self._raw.limit)
            parts = self._fields.parts(self._model.tokenizer)
            for part in parts if self._truncation is None else ():
                part.check_length(self._model.least_tokens, self._engines.max_model_len)
            limit = min(self._engines.max_model_len * MAX_CHARACTERS_PER_TOKEN, MAX_CHARACTERS)
            if any(sum(map(len, part.texts)) > limit for part in parts):
                raise LeftToEngine
            framed = self._fields.adds_special_tokens
            for part in parts:
                known = None
                if isinstance(part.content, str):
                    known = self._model.begin(part.content, add_special_tokens=framed)
                self._parts.append((part, known))

    def finish(self, learnt: Mapping[Key, Ids]) -> None:
        """Encodes pieces neither cached nor `learnt` elsewhere, and hashes. Raises PromptError and LeftToEngine."""
        with self._timed():
            extra = self._raw.extra
            reads_all = self._raw.reads_all or not self._engines.shares_prefixes
            num_tokens, room = 0, MAX_BLOCKS
            for part, encoding in self._parts:
                whole, second_start = self._ids(part, encoding, learnt)
                num_tokens += len(whole)
                if num_tokens > MAX_TOKENS:
                    raise LeftToEngine
                ids, num_estimated = self._before_images(part, whole)
                hashes = {
                    size: [] if reads_all else self._chains.hashes(ids[: room * size + 1], size, extra)
                    for size in self._engines.block_sizes
                }
                room -= max(map(len, hashes.values()), default=0)
                self.prompts.append(PackedTokens.of(ids, hashes, second_start, num_estimated))

    def _ids(self, part: Part, encoding: Encoding | None, learnt: Mapping[Key, Ids]) -> tuple[Ids, int | None]:
        """And where the second text begins. Pairs are not remembered: a document is hardly asked for twice."""
        second_start = None
        try:
            if encoding is not None:
                ids = self._model.finish(encoding, learnt)
            else:
                encoded, second_start = part.encoded(self._model.tokenizer, self._fields.adds_special_tokens)
                ids = array("I", encoded)
        except Exception as error:  # tokenizers raises bare Exception; ids may be of any size
            raise cannot_be_tokenised(part.place, error) from error
        if not ids:
            raise PromptError(part.place, "is empty")
        if self._truncation is not None:
            if self._raw.num_images and self._model.tokenizer.image_token is not None:
                raise PromptError(TRUNCATE, "is not for chats with images")
            ids = self._truncation.cut(ids, frame_of(self._fields, bool(part.texts), self._model.tokenizer))
        if len(ids) >= self._engines.max_model_len:
            raise PromptTooLong(part.place, len(ids), self._engines.max_model_len)
        self._raw.limit.check(len(ids), self._engines.max_model_len)
        return ids, second_start

    def _before_images(self, part: Part, ids: Ids) -> tuple[Ids, int]:
        """The tokens before a chat's first image, and an estimate of the tokens from there on, below the engines'
        context. Raises PromptError unless there are as many places as images."""
        tokenizer, num_images = self._model.tokenizer, self._raw.num_images
        if not num_images or tokenizer.image_token is None:
            return ids, 0
        token_id = tokenizer.token_id(tokenizer.image_token)
        if token_id is None or ids.count(token_id) != num_images:
            raise PromptError(part.place, "has not as many places as images")
        first = ids.index(token_id)
        num_texts = len(ids) - num_images
        most = self._engines.max_model_len - 1 - num_texts
        return ids[:first], num_texts - first + max(num_images, min(num_images * TOKENS_PER_IMAGE, most))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started


CACHE_BYTES = 48 * 2**20
"""Of texts and their ids."""
QUICK_CHARACTERS = 24 * 1024
"""Shorter texts are tokenised at once, in some ten milliseconds, while other jobs wait."""

_jobs = msgspec.msgpack.Decoder(ReadJob | EncodeJob)
_encode = msgspec.msgpack.Encoder().encode


def make(payload: bytes) -> tuple[bytes, Handler]:
    """Of a `ModelInfo` as its engine told it. Raises TokenizerError and ChatTemplateError."""
    return b"", PromptReading(msgspec.json.decode(payload, type=ModelInfo), may_quicken=True)


def make_plain(payload: bytes) -> tuple[bytes, Handler]:
    """The same without fastokens."""
    return b"", PromptReading(msgspec.json.decode(payload, type=ModelInfo), may_quicken=False)


class PromptReading:
    """Reads prompts. Remembers texts and hashes for the next ones."""

    def __init__(self, info: ModelInfo, *, may_quicken: bool) -> None:
        tokenizer = PromptTokenizer(
            info.tokenizer_json,
            chat_template=info.chat_template,
            special_tokens=info.special_tokens,
            joins_pairs=info.joins_pairs,
            image_token=info.image_token,
            image_frame=info.image_frame,
            instructs_tools=info.instructs_tools,
            embedding_prompts=info.embedding_prompts,
        )
        if tokenizer.digest != info.digest:  # another version of this code, which may tokenise otherwise
            raise TokenizerError("its engine understands the same files differently")
        if may_quicken:
            tokenizer.quicken()
        self._tokenizer = CachingTokenizer(tokenizer, PrefixCache(CACHE_BYTES))
        tokenizer.forget_json()
        self._chains = HashChains()

    def __call__(self, message: bytes, takes_long: bool) -> bytes:
        job = _jobs.decode(message)
        if isinstance(job, EncodeJob):
            encoded = self._tokenizer.encoded(job.keys)
            return _encode([(key, ids.tobytes()) for key, ids in encoded.items()])
        return _encode(self.read(job, takes_long))

    def read(self, job: ReadJob, takes_long: bool) -> ReadReply:
        """`takes_long`: whether it may."""
        raw = raw_prompt(job.path, job.fields, job.adapter)
        affinity = raw.beginning(job.affinity_length)
        reply = ReadReply(raw.num_tokens, affinity, raw.least(), ReadOutcome.UNREADABLE, raw.extra)
        max_model_len = job.engines.max_model_len
        if raw.fields is None:
            if raw.least().num_tokens >= max_model_len:
                reply.error = _told(PromptTooLong(raw.field, raw.least_ids, max_model_len, or_more=True))
                reply.outcome = ReadOutcome.TOO_LONG
            elif raw.well_formed:
                reply.outcome = ReadOutcome.LEFT
            return reply
        work = Tokenising(raw, raw.fields, self._tokenizer, job.engines, self._chains)
        learnt = {key: array("I", ids) for key, ids in job.learnt}
        try:
            work.begin()
            if not takes_long and work.num_missing_characters - sum(len(text) for _, text in learnt) > QUICK_CHARACTERS:
                reply.missing = work.missing
                reply.outcome = ReadOutcome.MISSING if reply.missing and not learnt else ReadOutcome.TAKES_LONG
            else:
                work.finish(learnt)
                reply.outcome = ReadOutcome.READ
                reply.prompts = work.prompts
                reply.num_cached_tokens = work.num_cached_tokens
        except LeftToEngine:
            reply.outcome = ReadOutcome.LEFT
        except TooLong as error:
            reply.outcome, reply.error = ReadOutcome.TOO_LONG, _told(error)
        except PromptError:
            pass
        reply.seconds = work.seconds
        return reply


def _told(error: PromptError) -> tuple[str, str]:
    return error.field, error.message
