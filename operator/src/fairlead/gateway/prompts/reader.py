"""Requests → prompts for routing: token ids by the model's own tokenizer, once per request.

Pools ask before a request is routed. Tokenizers and chat templates come with models and are programs: each runs in its
own processes, which also decode the request's fields and are ended when the program exceeds its limits. This process
only passes bytes on. Engines of one model have the same digest, except during a rollout, so each tokenizer is loaded
once for all its replicas. An invalid request gets neither tokens nor an error: the engine reports the mistake. Only a
too long prompt is noted.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType

import msgspec

from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.fields import PromptBound, Raw, prompt_fields, raw_prompt
from fairlead.gateway.prompts.prompt_jobs import EncodeJob, Engines, ReadJob, ReadOutcome, ReadReply
from fairlead.routing.prompt import Prompt
from fairlead_common.http.lanes import Pacer
from fairlead_common.openai.prompts import TooLong
from fairlead_common.wire.adapters import with_adapter
from fairlead_common.wire.messages import ModelBrief, PromptTokens
from fairlead_common.workers.branch import WorkerError, WorkerExceeded, WorkerInterrupted
from fairlead_common.workers.limits import WorkerLimits
from fairlead_common.workers.pool import GivenUp, Workers
from fairlead_common.workers.root import WorkerRoot

logger = logging.getLogger(__name__)

MAX_SPARE = 4
"""Tokenizers kept unused."""
LIMITS = WorkerLimits(memory_bytes=160 * 2**20)
"""Includes the caches of the process that jobs go through."""
_PATIENCE_SECONDS = 0.05
"""Longest wait for other models' prompts; then a long prompt is left to its engine."""
_PROGRAM = "fairlead.gateway.prompts.prompt_program"
_MAX_FAILED = 8
"""Per digest: answers of engines that could not be loaded, and are not tried again."""
_MAX_TRIES = 3
"""To load a tokenizer whose process is killed from outside."""

_replies = msgspec.msgpack.Decoder(ReadReply)
_encode = msgspec.msgpack.Encoder().encode


class ModelTokenizer:
    """A tokenizer, and the limits of the engines with this tokenizer."""

    def __init__(self, info: ModelBrief, workers: Workers) -> None:
        self.workers = workers
        self.max_model_len = info.max_model_len
        """Longest context of these engines, in tokens."""
        self.block_sizes = {info.block_size}
        """Tokens per block of its engines' caches."""
        self.shares_prefixes = info.shares_prefixes

    @property
    def engines(self) -> Engines:
        return Engines(self.max_model_len, sorted(self.block_sizes), self.shares_prefixes)

    async def read(self, job: ReadJob) -> ReadReply:
        """Raises what `Workers.ask` does."""
        reply = _replies.decode(await self.workers.ask(_encode(job)))
        if reply.outcome is ReadOutcome.MISSING:
            pieces = EncodeJob(reply.missing)
            learnt = msgspec.Raw(await self.workers.ask_beside(_encode(pieces)))
            with_them = msgspec.structs.replace(job, learnt=learnt)
            reply = _replies.decode(await self.workers.ask(_encode(with_them)))
        if reply.outcome is ReadOutcome.TAKES_LONG:
            reply = _replies.decode(await self.workers.ask_beside(_encode(job)))
        return reply


class Tokenizers:
    """One per gateway. Keeps the tokenizers in use, and a few older ones for rollbacks. Close it when done."""

    def __init__(self, root: WorkerRoot | None = None) -> None:
        """`root`: of the tokenizers' processes; None = a new one."""
        self._root = root or WorkerRoot([_PROGRAM])
        self._max_spare = MAX_SPARE
        self._known: dict[str, ModelTokenizer | None] = {}
        """In the order they were last in use; None where it cannot be loaded."""
        self._failed: dict[str, dict[bytes, str]] = {}
        """Errors of unloadable tokenizers, by digest and fingerprint of the engine's answer: an engine that claims
        another engine's digest does not block that digest."""
        self._loading: dict[tuple[str, bytes], asyncio.Task[None]] = {}

    def get(self, digest: str) -> ModelTokenizer | None:
        """None = unknown, or cannot be loaded."""
        return self._known.get(digest)

    def problem(self, digest: str) -> str | None:
        """Why prompts for engines with this digest are not tokenised in the gateway now; None = they are."""
        model = self._known.get(digest)
        if model is not None:
            return model.workers.problem
        return next(iter(self._failed.get(digest, {}).values()), None)

    async def add(self, info: ModelBrief, told: bytes | None) -> None:
        """Makes the engine's tokenizer known. `told`: the engine's whole answer; None = not at hand. An unloadable
        tokenizer is logged, and its engines tokenise."""
        if told is not None and self._known.get(info.digest) is None:
            key = info.digest, await asyncio.to_thread(lambda: blake2b(told).digest())
            if self._known.get(info.digest) is None and key[1] not in self._failed.get(info.digest, {}):
                if (loading := self._loading.get(key)) is None:
                    loading = self._loading[key] = asyncio.create_task(self._load(info, told, key))
                del told  # which is large
                await asyncio.shield(loading)  # others may wait for it as well
        known = self._known.get(info.digest)
        if known is not None:
            known.max_model_len = max(known.max_model_len, info.max_model_len)
            known.block_sizes.add(info.block_size)

    def fail(self, digest: str, fingerprint: bytes, reason: str) -> None:
        """An engine's answer with this digest cannot be loaded. `fingerprint`: of the whole answer."""
        self._known.setdefault(digest, None)
        failed = self._failed.setdefault(digest, {})
        failed[fingerprint] = reason
        if len(failed) > _MAX_FAILED:
            del failed[next(iter(failed))]

    def keep(self, digests: Iterable[str]) -> None:
        """Keeps tokenizers of `digests`, and a few that were used last."""
        in_use = [digest for digest in digests if digest in self._known]
        for digest in in_use:
            self._known[digest] = self._known.pop(digest)  # to the end
        for digest in list(self._known)[: max(0, len(self._known) - len(set(in_use)) - self._max_spare)]:
            self._failed.pop(digest, None)
            if (model := self._known.pop(digest)) is not None:
                model.workers.close()

    def close(self) -> None:
        """Ends all processes."""
        for loading in self._loading.values():
            loading.cancel()
        for model in self._known.values():
            if model is not None:
                model.workers.close()
        self._known.clear()
        self._root.close()

    async def _load(self, info: ModelBrief, told: bytes, key: tuple[str, bytes]) -> None:
        name = f"the tokenizer or chat template of {info.served_name}"
        program, plain = f"{_PROGRAM}:make", f"{_PROGRAM}:make_plain"
        workers = Workers(self._root, name, program, told, LIMITS, plain_program=plain, patience=_PATIENCE_SECONDS)
        del told
        try:
            for _ in range(_MAX_TRIES):
                try:
                    await workers.load()
                    break
                except WorkerInterrupted:
                    pass
            else:
                return
            if self._known.get(info.digest) is None:
                self._known[info.digest] = ModelTokenizer(info, workers)
                self._failed.pop(info.digest, None)
            else:
                workers.close()
        except (WorkerError, WorkerExceeded) as error:
            logger.error("%s cannot be used here, so its engines do it: %s", name, error)
            self.fail(*key, str(error))
        finally:
            del self._loading[key]


MAX_TOKENS_SENT = 1_000_000
"""More would take the request over the engine's limit for bodies, which is 16 MiB by default."""
MAX_WAITING = 256
"""Requests with tokenizers at once; further prompts are left to their engines."""


@dataclass(slots=True)
class ReadPrompt(Prompt):
    """A prompt, and the cost of reading it."""

    seconds: float = 0.0
    """Spent on it; waiting for a thread is not counted."""
    num_cached_tokens: int = 0
    """Tokens found in the cache of texts."""
    settled: set[str] = field(default_factory=set)
    """Digests of tokenizers that have tried, successfully or not."""
    least: PromptBound = field(default_factory=PromptBound)
    _encoded: dict[str, bytes] = field(default_factory=dict)

    def tokens_field(self, digest: str) -> bytes | None:
        """The JSON of `fairlead_prompt_tokens` for an engine of this digest; None = the engine gets no such field."""
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
        """The request's prompt for replicas of these digests; reads into `prompt` what it still lacks.

        A digest stays out while its tokenizer is unknown, and where the request cannot be tokenised. `affinity_length`:
        characters of `Prompt.affinity`. `engines`: the replicas' limits by digest; other engines with the tokenizer may
        differ.
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
            self.num_left += reply is None or reply.outcome is ReadOutcome.LEFT
        return prompt or await self._unread(request, affinity_length)

    async def _reply(
        self,
        request: InferenceRequest,
        fields: Mapping[str, Raw],
        model: ModelTokenizer,
        affinity_length: int,
        engines: Engines,
    ) -> ReadReply | None:
        """None = reading is left to an engine."""
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


def _begun(request: InferenceRequest, num_tokens: int, affinity: str, least: PromptBound) -> ReadPrompt:
    affinity = with_adapter(affinity, request.adapter)
    return ReadPrompt(
        num_tokens=num_tokens, affinity=affinity, least=least, adapter=request.adapter, session=request.session
    )


def _settle(prompt: ReadPrompt, digest: str, reply: ReadReply) -> None:
    """Notes what became of it."""
    prompt.seconds += reply.seconds
    if reply.outcome is ReadOutcome.READ:
        prompt.by_digest[digest] = tuple(each.tokens(reply.extra) for each in reply.prompts)
        prompt.num_tokens = sum(tokens.num_tokens for tokens in prompt.by_digest[digest])
        prompt.num_cached_tokens += reply.num_cached_tokens
    elif reply.outcome is not ReadOutcome.LEFT:
        prompt.num_tokens = 0  # it is going to be refused, which costs an engine nothing
        if reply.outcome is ReadOutcome.TOO_LONG:
            prompt.too_long[digest] = TooLong(*reply.error)
