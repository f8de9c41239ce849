"""The tokenizers of the models that are served, by digest. Fed from engines' `ModelInfo`, read by the gateway.

Tokenizers and chat templates come with models and are programs: each runs in processes of its own, which are ended when
it takes more than it may. Engines of one model have the same digest but for a while during a rollout, so each is loaded
once, however many replicas have it.
"""

import asyncio
import logging
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from fairlead.gateway.prompts.prompt_jobs import EncodeJob, Engines, Outcome, ReadJob, ReadReply
from fairlead_protocol.messages import ModelBrief
from fairlead_protocol.workers.branch import WorkerError, WorkerExceeded, WorkerInterrupted
from fairlead_protocol.workers.limits import Limits
from fairlead_protocol.workers.pool import Workers
from fairlead_protocol.workers.root import WorkerRoot

logger = logging.getLogger(__name__)

MAX_SPARE = 4
LIMITS = Limits(memory_bytes=160 * 2**20)
"""For the caches of the process that jobs go through as well."""
_PATIENCE_SECONDS = 0.05
"""A long prompt is left to its engine rather than wait longer for other models' prompts."""
_PROGRAM = "fairlead.gateway.prompts.prompt_program"
_MAX_FAILED = 8
"""Of one digest: what was told and could not be loaded is not tried again."""
_MAX_TRIES = 3
"""To load a tokenizer, where somebody ends its process."""

_replies = msgspec.msgpack.Decoder(ReadReply)
_encode = msgspec.msgpack.Encoder().encode


class ModelTokenizer:
    """A tokenizer, and what the engines that have it say about prompts."""

    def __init__(self, info: ModelBrief, workers: Workers) -> None:
        self.workers = workers
        self.max_model_len = info.max_model_len
        """Of the engine that takes the longest prompts, in tokens."""
        self.block_sizes = {info.block_size}
        """Tokens per block of its engines' caches."""
        self.shares_prefixes = info.shares_prefixes

    @property
    def engines(self) -> Engines:
        return Engines(self.max_model_len, sorted(self.block_sizes), self.shares_prefixes)

    async def read(self, job: ReadJob) -> ReadReply:
        """Raises what `Workers.ask` does."""
        reply = _replies.decode(await self.workers.ask(_encode(job)))
        if reply.outcome is Outcome.MISSING:
            pieces = EncodeJob(reply.missing)
            learnt = msgspec.Raw(await self.workers.ask_beside(_encode(pieces)))
            with_them = msgspec.structs.replace(job, learnt=learnt)
            reply = _replies.decode(await self.workers.ask(_encode(with_them)))
        if reply.outcome is Outcome.TAKES_LONG:
            reply = _replies.decode(await self.workers.ask_beside(_encode(job)))
        return reply


class Tokenizers:
    """One per gateway. Keeps the tokenizers in use, and a few that were: a rollout may be taken back. Close it when
    done."""

    def __init__(self, *, max_spare: int = MAX_SPARE, root: WorkerRoot | None = None) -> None:
        """`max_spare`: tokenizers kept unused. `root`: that of their processes; None = one of its own."""
        self._root = root or WorkerRoot([_PROGRAM])
        self._max_spare = max_spare
        self._known: dict[str, ModelTokenizer | None] = {}
        """In the order they were last in use; None where it cannot be loaded."""
        self._failed: dict[str, dict[bytes, str]] = {}
        """Why not, of each of those, by what was told of it: a digest is only a word until its tokenizer is loaded, and
        an engine that says another's keeps nobody from that one."""
        self._loading: dict[tuple[str, bytes], asyncio.Task[None]] = {}

    def get(self, digest: str) -> ModelTokenizer | None:
        """None for one that is not known, or cannot be loaded."""
        return self._known.get(digest)

    def problem(self, digest: str) -> str | None:
        """Why prompts are not tokenised here now for engines with this digest; None where they are."""
        model = self._known.get(digest)
        if model is not None:
            return model.workers.problem
        return next(iter(self._failed.get(digest, {}).values()), None)

    async def add(self, info: ModelBrief, told: bytes | None) -> None:
        """Makes this engine's tokenizer known, unless it is already. `told`: all of the engine's answer, None where it
        is not at hand.

        A tokenizer that cannot be loaded is logged, and its engines tokenise by themselves.
        """
        if told is not None and self._known.get(info.digest) is None:
            key = info.digest, await asyncio.to_thread(_fingerprint, told)
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
        """What was told of this digest cannot be loaded. `fingerprint`: of all that was told."""
        self._known.setdefault(digest, None)
        failed = self._failed.setdefault(digest, {})
        failed[fingerprint] = reason
        if len(failed) > _MAX_FAILED:
            del failed[next(iter(failed))]

    def keep(self, digests: Iterable[str]) -> None:
        """These are in use; of the others only the few that were added or in use last are kept."""
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


def _fingerprint(told: bytes) -> bytes:
    return blake2b(told).digest()
