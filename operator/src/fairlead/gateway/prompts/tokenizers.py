"""The tokenizers of the models that are served, by digest. Fed from engines' `ModelInfo`, read by the gateway.

Engines of one model have the same digest but for a while during a rollout, so each tokenizer is built once, however
many replicas have it. All share one cache of texts and their ids.
"""

import asyncio
import logging
from collections.abc import Iterable

from fairlead.gateway.prompts.prefix_cache import CachingTokenizer, PrefixCache
from fairlead_protocol.chat import ChatTemplateError
from fairlead_protocol.messages import ModelBrief, ModelInfo
from fairlead_protocol.tokenizing import PromptTokenizer, TokenizerError

logger = logging.getLogger(__name__)

CACHE_BYTES = 128 * 1024 * 1024
MAX_SPARE = 4
_SMALL_BYTES = 256 * 1024
"""A tokenizer of this size is read in a few milliseconds, on the event loop; larger ones in a thread."""


class ModelTokenizer(CachingTokenizer):
    """A tokenizer that remembers what it encoded, and what the engines that have it say about prompts."""

    def __init__(self, info: ModelInfo, cache: PrefixCache) -> None:
        """Raises TokenizerError and ChatTemplateError."""
        tokenizer = PromptTokenizer(
            info.tokenizer_json,
            chat_template=info.chat_template,
            special_tokens=info.special_tokens,
            joins_pairs=info.joins_pairs,
            image_token=info.image_token,
        )
        if tokenizer.digest != info.digest:  # another version of this code, which may tokenise otherwise
            raise TokenizerError("its engine understands the same files differently")
        super().__init__(tokenizer, cache)
        self.max_model_len = info.max_model_len
        """Of the engine that takes the longest prompts, in tokens."""
        self.block_sizes = {info.block_size}
        """Tokens per block of its engines' caches."""
        self.shares_prefixes = info.shares_prefixes
        """Whether these spare a prompt what another has in common with it."""


class Tokenizers:
    """One per gateway. Keeps the tokenizers in use, and a few that were: a rollout may be taken back."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES, max_spare: int = MAX_SPARE) -> None:
        """`cache_bytes`: of texts and their ids, for all tokenizers together. `max_spare`: tokenizers kept unused."""
        self.cache = PrefixCache(cache_bytes)
        self._max_spare = max_spare
        self._known: dict[str, ModelTokenizer | None] = {}
        """In the order they were last in use; None where it cannot be built."""
        self._building: dict[str, asyncio.Task[None]] = {}

    def get(self, digest: str) -> ModelTokenizer | None:
        """None for one that is not known, or cannot be built."""
        return self._known.get(digest)

    async def add(self, info: ModelBrief) -> None:
        """Makes this engine's tokenizer known, unless it is already; then `info` may come without it.

        A tokenizer that cannot be built is logged, and its engines tokenise by themselves.
        """
        while info.digest not in self._known and isinstance(info, ModelInfo):
            if (building := self._building.get(info.digest)) is None:
                building = self._building[info.digest] = asyncio.create_task(self._build(info))
            await asyncio.shield(building)  # others may wait for it as well
        known = self._known.get(info.digest)
        if known is not None:
            known.max_model_len = max(known.max_model_len, info.max_model_len)
            known.block_sizes.add(info.block_size)

    def keep(self, digests: Iterable[str]) -> None:
        """These are in use; of the others only the few that were added or in use last are kept."""
        in_use = [digest for digest in digests if digest in self._known]
        for digest in in_use:
            self._known[digest] = self._known.pop(digest)  # to the end
        for digest in list(self._known)[: max(0, len(self._known) - len(set(in_use)) - self._max_spare)]:
            del self._known[digest]

    async def _build(self, info: ModelInfo) -> None:
        try:
            if len(info.tokenizer_json) <= _SMALL_BYTES:
                self._known[info.digest] = ModelTokenizer(info, self.cache)
            else:
                self._known[info.digest] = await asyncio.to_thread(ModelTokenizer, info, self.cache)
        except (TokenizerError, ChatTemplateError) as error:
            logger.error("the tokenizer of %s cannot be used here, so its engines do it: %s", info.served_name, error)
            self._known[info.digest] = None
        finally:
            del self._building[info.digest]
