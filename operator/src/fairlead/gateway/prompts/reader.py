"""Requests → prompts as routing sees them: token ids by the model's own tokenizer, once per request.

Pools ask before a request is routed. Short prompts, and long ones of which most is known from earlier turns, are
tokenised on the event loop; what takes long, in one of a few threads. A request that is wrong gets no tokens and no
error either: its engine says what is wrong with it. Only that a prompt is too long is noted.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.fields import TOKENS_PER_IMAGE, LeastTokens, RawPrompt, raw_prompt
from fairlead.gateway.prompts.tokenising import HashChains, LeftToEngine, Tokenising
from fairlead.gateway.prompts.tokenizers import ModelTokenizer, Tokenizers
from fairlead.routing.prompt import Prompt
from fairlead_protocol.adapters import with_adapter
from fairlead_protocol.lanes import Lanes, Pacer
from fairlead_protocol.messages import PromptTokens
from fairlead_protocol.prompts import AnswerTooLong, PromptError, PromptTooLong

MAX_WAITING = 64
"""Requests that may wait for a thread; while there are so many, further ones are left to their engines."""
QUICK_CHARACTERS = 8 * 1024
"""Texts of this length are tokenised on the event loop, in about two milliseconds."""
QUICK_BYTES = 128 * 1024
"""Prompts of this size are rendered and looked up on the event loop, in about half a millisecond."""
QUICK_RENDERED_BYTES = 2 * 1024 * 1024
"""The same for what a template may make of them."""
MAX_TOKENS_SENT = 1_000_000
"""More would take the request over the engine's limit for bodies, which is 16 MiB by default."""
BYTES_PER_TOKEN = 4
"""Of typical text, for prompts that no tokenizer has seen."""


@dataclass(slots=True)
class ReadPrompt(Prompt):
    """A prompt, and what it cost to read it."""

    seconds: float = 0.0
    """Spent on it; waiting for a thread is not counted."""
    num_cached_tokens: int = 0
    """Tokens that did not have to be made, since the text they stand for was known."""
    settled: set[str] = field(default_factory=set)
    """Digests of the tokenizers that have tried, with success or without."""
    least: LeastTokens = field(default_factory=LeastTokens)
    _encoded: dict[str, bytes] = field(default_factory=dict)

    def tokens_field(self, digest: str) -> bytes | None:
        """The JSON of `fairlead_prompt_tokens` for an engine of this digest; None: it gets no such field."""
        if digest not in self._encoded:
            prompts = self.by_digest.get(digest, ())
            if any(prompt.num_estimated for prompt in prompts):
                return None
            ids = [list(prompt.token_ids) for prompt in prompts]
            if not 0 < sum(map(len, ids)) <= MAX_TOKENS_SENT:
                return None
            starts = [prompt.second_start for prompt in prompts]
            if all(start is None for start in starts):
                starts = []
            sent = PromptTokens(digest=digest, prompts=ids, second_starts=starts)
            self._encoded[digest] = msgspec.json.encode(sent)
        return self._encoded[digest]


class PromptReader:
    """Knows the tokenizers; not where a request goes. `num_left` is for metrics."""

    def __init__(self, tokenizers: Tokenizers, pacer: Pacer) -> None:
        self._tokenizers = tokenizers
        self._pacer = pacer
        self._lanes = Lanes()
        self._chains = HashChains()
        self._num_in_threads = 0
        self.num_left = 0
        """Requests left to their engines, as too long or because too many waited for a thread."""

    def close(self) -> None:
        """Ends the threads when they have done what they are at."""
        self._lanes.close()

    async def read(
        self,
        request: InferenceRequest,
        digests: Iterable[str],
        prompt: ReadPrompt | None = None,
        *,
        affinity_length: int = 100,
    ) -> ReadPrompt:
        """The request's prompt for replicas of these digests; with `prompt`, what it lacks for them is added to it.

        A digest stays out while its tokenizer is not known, and where the request cannot be tokenised.
        `affinity_length`: characters of `Prompt.affinity`.
        """
        wanted = set(digests)
        if prompt is not None and not self._open(prompt, wanted):
            return prompt
        await self._pacer.pace(request.num_bytes)
        raw = raw_prompt(request)
        if prompt is None:
            num_tokens = raw.num_bytes // BYTES_PER_TOKEN + raw.num_images * TOKENS_PER_IMAGE if raw.well_formed else 0
            prompt = ReadPrompt(
                num_tokens=num_tokens,
                affinity=with_adapter(raw.beginning(affinity_length), request.adapter),
                least=raw.least(),
                adapter=request.adapter,
            )
        for digest, model in self._open(prompt, wanted).items():
            await self._settle(prompt, digest, raw, model)
        return prompt

    def _open(self, prompt: ReadPrompt, digests: set[str]) -> dict[str, ModelTokenizer]:
        """The known tokenizers among `digests` that have not tried yet."""
        known = {digest: self._tokenizers.get(digest) for digest in digests - prompt.settled}
        return {digest: model for digest, model in known.items() if model is not None}

    async def _settle(self, prompt: ReadPrompt, digest: str, raw: RawPrompt, model: ModelTokenizer) -> None:
        prompt.settled.add(digest)
        if raw.fields is None:
            if raw.least_ids >= model.max_model_len:
                prompt.num_tokens = 0
                prompt.too_long[digest] = PromptTooLong(raw.field, raw.least_ids, model.max_model_len, or_more=True)
            else:
                self.num_left += raw.well_formed
            return
        work = Tokenising(raw, raw.fields, model, self._chains)
        try:
            is_long = raw.num_bytes > QUICK_BYTES or raw.most_rendered_bytes > QUICK_RENDERED_BYTES
            await self._run(work.begin, raw.num_bytes, in_thread=is_long)
            num_missing = work.num_missing_characters
            await self._run(work.finish, num_missing, in_thread=num_missing > QUICK_CHARACTERS)
        except LeftToEngine:
            self.num_left += 1
        except PromptError as error:
            prompt.num_tokens = 0  # it is going to be refused, which costs an engine nothing
            if isinstance(error, PromptTooLong | AnswerTooLong):
                prompt.too_long[digest] = error
        else:
            prompt.by_digest[digest] = work.prompts
            prompt.num_tokens = sum(tokens.num_tokens for tokens in work.prompts)
            prompt.num_cached_tokens += work.num_cached_tokens
        prompt.seconds += work.seconds

    async def _run(self, work: Callable[[], None], size: int, *, in_thread: bool) -> None:
        """Work of this size, where it disturbs least. Raises LeftToEngine."""
        if not in_thread:
            return work()
        if self._num_in_threads >= MAX_WAITING:
            raise LeftToEngine
        self._num_in_threads += 1
        try:
            await self._lanes.run(size, work)
        finally:
            self._num_in_threads -= 1
