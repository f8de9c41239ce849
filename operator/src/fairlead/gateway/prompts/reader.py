"""Requests → prompts as routing sees them: token ids by the model's own tokenizer, once per request.

Pools ask before a request is routed. A model's tokenizer and template are in processes of their own (`tokenizers.py`),
which also decode the request's fields, so that this one does nothing but pass bytes on. A request that is wrong gets no
tokens and no error either: its engine says what is wrong with it. Only that a prompt is too long is noted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.fields import LeastTokens, Raw, prompt_fields, raw_prompt
from fairlead.gateway.prompts.prompt_jobs import Engines, Outcome, ReadJob, ReadReply
from fairlead.gateway.prompts.tokenizers import ModelTokenizer, Tokenizers
from fairlead.routing.prompt import Prompt
from fairlead_protocol.adapters import with_adapter
from fairlead_protocol.lanes import Pacer
from fairlead_protocol.messages import PromptTokens
from fairlead_protocol.prompts import TooLong
from fairlead_protocol.workers.branch import WorkerError, WorkerExceeded, WorkerInterrupted
from fairlead_protocol.workers.pool import GivenUp

MAX_TOKENS_SENT = 1_000_000
"""More would take the request over the engine's limit for bodies, which is 16 MiB by default."""
MAX_WAITING = 256
"""Requests that may be with tokenizers; while there are so many, further ones are left to their engines."""


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
        self._num_waiting = 0
        self.num_left = 0
        """Requests left to their engines: too long, too many at once, or of a model whose tokenizer is not run."""

    async def read(
        self,
        request: InferenceRequest,
        digests: Iterable[str],
        prompt: ReadPrompt | None = None,
        *,
        affinity_length: int = 100,
        engines: Mapping[str, Engines] = MappingProxyType({}),
    ) -> ReadPrompt:
        """The request's prompt for replicas of these digests; with `prompt`, what it lacks for them is added to it.

        A digest stays out while its tokenizer is not known, and where the request cannot be tokenised.
        `affinity_length`: characters of `Prompt.affinity`. `engines`: by digest, what the replicas say about prompts,
        where it is known: others with the same tokenizer may say anything.
        """
        wanted = set(digests)
        settled = set() if prompt is None else prompt.settled
        known = {digest: self._tokenizers.get(digest) for digest in wanted - settled}
        fields = prompt_fields(request.path, request.fields)
        for digest, model in known.items() if fields else ():
            if model is None:
                continue
            reply = await self._reply(request, fields, model, affinity_length, engines.get(digest, model.engines))
            if reply is not None:
                prompt = prompt or _begun(request, reply.num_tokens, reply.affinity, reply.least)
                _settle(prompt, digest, reply)
            elif prompt is None:
                prompt = await self._unread(request, affinity_length)
            prompt.settled.add(digest)
            self.num_left += reply is None or reply.outcome is Outcome.LEFT
        return prompt or await self._unread(request, affinity_length)

    async def _reply(
        self,
        request: InferenceRequest,
        fields: Mapping[str, Raw],
        model: ModelTokenizer,
        affinity_length: int,
        engines: Engines,
    ) -> ReadReply | None:
        """None where reading it is left to an engine."""
        if self._num_waiting >= MAX_WAITING:
            return None
        given = {name: memoryview(raw) for name, raw in fields.items()}
        self._num_waiting += 1
        try:
            return await model.read(ReadJob(request.path, given, request.adapter, affinity_length, engines))
        except (GivenUp, WorkerError, WorkerExceeded, WorkerInterrupted):
            return None
        finally:
            self._num_waiting -= 1

    async def _unread(self, request: InferenceRequest, affinity_length: int) -> ReadPrompt:
        """What is known of it without a tokenizer."""
        await self._pacer.pace(request.num_bytes)
        raw = raw_prompt(request.path, request.fields, request.adapter)
        return _begun(request, raw.num_tokens, raw.beginning(affinity_length), raw.least())


def _begun(request: InferenceRequest, num_tokens: int, affinity: str, least: LeastTokens) -> ReadPrompt:
    affinity = with_adapter(affinity, request.adapter)
    return ReadPrompt(num_tokens=num_tokens, affinity=affinity, least=least, adapter=request.adapter)


def _settle(prompt: ReadPrompt, digest: str, reply: ReadReply) -> None:
    """Notes what became of it."""
    prompt.seconds += reply.seconds
    if reply.outcome is Outcome.READ:
        prompt.by_digest[digest] = tuple(each.tokens(reply.extra) for each in reply.prompts)
        prompt.num_tokens = sum(tokens.num_tokens for tokens in prompt.by_digest[digest])
        prompt.num_cached_tokens += reply.num_cached_tokens
    elif reply.outcome is not Outcome.LEFT:
        prompt.num_tokens = 0  # it is going to be refused, which costs an engine nothing
        if reply.outcome is Outcome.TOO_LONG:
            prompt.too_long[digest] = TooLong(*reply.error)
