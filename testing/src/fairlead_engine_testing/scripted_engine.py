"""An engine client without an engine: it answers from a script, so that a server can be tested without a model."""

import asyncio
import struct
from collections.abc import Callable, Iterable

import msgspec

from fairlead_common.wire.blocks import ROOT, BlockHash
from fairlead_engine.core.client import StepListener
from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.core.request_stream import RequestStream
from fairlead_engine.errors import AdapterError, EngineDead, EngineGone, InjectionError, QueueFull, StartError
from fairlead_engine.types import (
    NO_LOAD,
    EngineInfo,
    EngineLoad,
    EngineRequest,
    FinishReason,
    HeldPrompt,
    SequenceOutput,
    TokenLogprobs,
)

Script = Callable[[EngineRequest], Iterable[SequenceOutput]]


def scripted_info(**changes: object) -> EngineInfo:
    """An `EngineInfo` of a small engine, with `changes` applied."""
    fields: dict[str, object] = {
        "architecture": "ScriptedForCausalLM",
        "dtype": "float32",
        "device": "cpu",
        "attention_backend": "scripted",
        "kv_cache_dtype": "auto",
        "vocab_size": 512,
        "hidden_size": 64,
        "max_model_len": 256,
        "max_position_embeddings": 256,
        "block_size": 16,
        "num_kv_blocks": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_num_queued_tokens": 128,
        "eos_token_ids": (0,),
        "num_parameters": 1000,
        "weight_bytes": 4000,
        "kv_cache_bytes": 65536,
        "start_seconds": {"load": 0.0, "warm_up": 0.0},
        **changes,
    }
    return EngineInfo(**fields)  # type: ignore[arg-type]


def _certain(token_id: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities of a token that had to come."""
    return TokenLogprobs(token_id, 0.0, [(token_id, 0.0)][:num_top])


def answer(
    token_ids: Iterable[int], *, finish_reason: FinishReason = FinishReason.STOP, num_cached_tokens: int = 0
) -> Script:
    """A script that answers every request with these tokens, one per output."""
    tokens = list(token_ids)

    def script(request: EngineRequest) -> Iterable[SequenceOutput]:
        if not tokens:
            yield SequenceOutput(request_id=request.request_id, new_token_ids=[], finish_reason=finish_reason)
        for index, token_id in enumerate(tokens):
            likely = None if request.sampling.logprobs is None else [_certain(token_id, request.sampling.logprobs)]
            yield SequenceOutput(
                request_id=request.request_id,
                new_token_ids=[token_id],
                logprobs=likely,
                finish_reason=finish_reason if index == len(tokens) - 1 else None,
                num_cached_tokens=num_cached_tokens,
                first_scheduled_time=request.arrival_time if index == 0 else None,
            )

    return script


def echo(request: EngineRequest) -> Iterable[SequenceOutput]:
    """Repeats the prompt, one token per output, up to `max_tokens`. Its vector is (0.6, 0.8)."""
    if request.pooling is not None:
        vector = struct.pack("<2f", 0.6, 0.8)
        output = SequenceOutput(request_id=request.request_id, new_token_ids=[], finish_reason=FinishReason.STOP)
        return [msgspec.structs.replace(output, embedding=vector, first_scheduled_time=request.arrival_time)]
    tokens = request.prompt_token_ids[: request.sampling.max_tokens]
    finish_reason = FinishReason.LENGTH if len(tokens) == request.sampling.max_tokens else FinishReason.STOP
    return answer(tokens, finish_reason=finish_reason)(request)


class ScriptedEngine:
    """An `EngineClient` that plays `script` for every request; the default repeats the prompt.

    `full = True` makes it refuse with `QueueFull`, `hang()` holds every answer, `die()` ends all with `EngineDead`.
    What was asked of it is in `requests`, what clients gave up in `aborted`, what runs now in `running`. It has no
    cache:
    a test says with `change_blocks` and `change_load` what its followers shall hear.
    """

    def __init__(
        self,
        script: Script = echo,
        *,
        info: EngineInfo | None = None,
        load: EngineLoad | None = None,
        start_error: StartError | None = None,
    ) -> None:
        self.script = script
        self.info = info or scripted_info()
        self.load = load or msgspec.structs.replace(
            NO_LOAD,
            kv_blocks_free=self.info.num_kv_blocks,
            kv_blocks_total=self.info.num_kv_blocks,
            token_budget=self.info.max_num_batched_tokens,
            max_num_seqs=self.info.max_num_seqs,
            adapters=dict.fromkeys(self.info.adapters, 0.0),
        )
        self.start_error = start_error
        self.full = False
        self.alive = False
        self.closed = False
        self.step_age_seconds = 0.0
        self.requests: list[EngineRequest] = []
        self.holds: dict[str, HeldPrompt] = {}
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.num_commands = 0
        self.num_reports = 0
        self._listener: StepListener | None = None
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self._death: str | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> EngineInfo:
        if self.start_error is not None:
            raise self.start_error
        self.alive = True
        return self.info

    async def close(self) -> None:
        self.closed = True
        if self.alive:
            self.die("the engine was closed")

    def listen(self, listener: StepListener) -> None:
        self._listener = listener

    def change_blocks(
        self, stored: Iterable[BlockHash] = (), *, removed: Iterable[BlockHash] = (), parent: BlockHash = ROOT
    ) -> None:
        """Reports a step after which the chain `stored` behind `parent` can be reused, and `removed` cannot."""
        chain = list(stored)
        self._report(BlocksChanged([(parent, chain)] if chain else [], list(removed)))

    def change_load(self, **changes: object) -> None:
        """Reports a step after which the load has these figures (fields of `EngineLoad`)."""
        self.load = msgspec.structs.replace(self.load, **changes)
        self._report()

    def hang(self, step_age_seconds: float = 0.0) -> None:
        """Holds every answer until `resume` or `die`, as a step that never ends would."""
        self.step_age_seconds = step_age_seconds
        self._may_go_on.clear()

    def resume(self) -> None:
        """Ends a hang."""
        self.step_age_seconds = 0.0
        self._may_go_on.set()

    def die(self, message: str = "the engine core has died") -> None:
        """Ends every running request with `EngineDead`, and refuses new ones with `EngineGone`."""
        self.alive = False
        self._death = message
        self._may_go_on.set()

    def add(self, request: EngineRequest, stream: RequestStream) -> int:
        if self._death is not None:
            raise EngineGone(self._death)
        self.num_commands += 1
        if request.hold is not None:
            held = self.holds[request.hold]
            prompt = held.prompt_token_ids + request.prompt_token_ids
            request = msgspec.structs.replace(request, prompt_token_ids=prompt, images=held.images)
        if not self.full:
            self.requests.append(request)
            self.running.add(request.request_id)
        self._tasks[request.request_id] = asyncio.create_task(self._play(request, stream, is_refused=self.full))
        return self.num_commands

    async def inject(self, request_id: str, mark: str, token_ids: list[int]) -> None:
        """Its answers are written already."""
        raise InjectionError("a scripted answer takes nothing in")

    async def load_adapter(self, name: str, folder: str) -> None:
        """A folder that is called `broken` cannot be read."""
        if folder == "broken":
            raise AdapterError("broken is broken")
        self.change_load(adapters={**self.load.adapters, name: 0.0})

    async def unload_adapter(self, name: str) -> None:
        self.change_load(adapters={each: 0.0 for each in self.load.adapters if each != name})

    def hold(self, hold: str, held: HeldPrompt) -> None:
        self.holds[hold] = held

    def release(self, hold: str) -> None:
        self.holds.pop(hold, None)

    def abort(self, request_id: str) -> None:
        if (task := self._tasks.pop(request_id, None)) is not None and self._death is None:
            task.cancel()
            self.running.discard(request_id)
            self.aborted.append(request_id)

    async def _play(self, request: EngineRequest, stream: RequestStream, *, is_refused: bool) -> None:
        self._report()
        try:
            if is_refused:
                raise QueueFull
            for output in self.script(request):
                await asyncio.sleep(0)  # as a real engine, never answer before others had their turn
                await self._may_go_on.wait()
                if self._death is not None:
                    raise EngineDead(self._death)
                stream.put(output)
        except Exception as error:
            stream.fail(error)
        finally:
            self.running.discard(request.request_id)
            self._tasks.pop(request.request_id, None)

    def _report(self, changed: BlocksChanged | None = None) -> None:
        self.num_reports += 1
        if self._listener is not None:
            self._listener.stepped(changed, self.num_commands)
