"""The engine: `Engine.step()` is the story of the whole core; read it first.

A core loop (`loop.py`) calls `add`, `abort` and `step` from one thread. The engine wires scheduler, block manager,
runner and step cost together and reports; the parts decide.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead_common.wire.adapters import UnknownAdapter
from fairlead_common.wire.blocks import extra_bytes
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.adapter_places import Adapters
from fairlead_engine.core.clock import Clock, LatePlanning, StepWatch
from fairlead_engine.core.grammars import Grammars, usable_cores
from fairlead_engine.core.injections import Injection
from fairlead_engine.core.load_gauge import LoadGauge, output_of, outputs_of_decodes, told
from fairlead_engine.core.profile import load_profile, prior
from fairlead_engine.core.requests import Holds, RequestChecks, RequestRefusal, ended
from fairlead_engine.core.runner import Runner, load_runner
from fairlead_engine.core.scheduler import Scheduler
from fairlead_engine.core.startup import allocated_blocks, cache_size_of, drafting_of, info_of, limits_of, warm_up
from fairlead_engine.core.step_cost import StepCostModel, StepWork
from fairlead_engine.core.thinking import ThinkingBudgets
from fairlead_engine.demo import resolve_model
from fairlead_engine.errors import AdapterError, ConfigError
from fairlead_engine.model.tokenizer_files import read_tokenizer_json
from fairlead_engine.types import (
    EngineLoad,
    EngineRequest,
    FinishReason,
    HeldPrompt,
    SequenceOutput,
)
from fairlead_engine.types.adapters import Adapter
from fairlead_engine.types.batch import Batch, TokenMasks
from fairlead_engine.types.sequences import SampledToken, Sequence

logger = logging.getLogger(__name__)


_LOAD_SECONDS = 0.001
"""Seconds between two looks at loading blocks, of a step without anything to compute."""


@dataclass(slots=True)
class _Step:
    """A planned step and its launch."""

    batch: Batch
    launched: Any
    num_ended: int
    """Number of ended sequences before it."""
    sampled: list[SampledToken | None] | None = None
    """Its choices, once collected."""
    was_awaited: bool = False
    """Whether the step's end was waited for while the next was launched, because masks depended on its tokens."""


_NO_ROOM_FOR_GRAMMAR = RequestRefusal(
    FinishReason.REJECTED, "the queue is full: other requests' grammars take the memory for them"
)


class Engine:
    """A model that serves many requests at once; synchronous, for one thread. The constructor loads the model and
    computes steps. Raises ModelLoadError, ConfigError or KVCacheTooSmall. Tests replace `runner` and `clock`."""

    def __init__(self, config: EngineConfig, runner: Runner[Any] | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        started = self.clock.now()
        cores = usable_cores()  # before the runner binds this thread
        self.runner = runner or load_runner(config)
        loaded = self.clock.now()
        profile = load_profile(config.profile, self.runner, config.block_size) if config.profile else None
        model, device = self.runner.model_config, str(self.runner.device)
        self.config = config = config.for_device(device, model.max_position_embeddings if model.task.sees_all else 0)
        size = cache_size_of(config, self.runner)
        limits = limits_of(config, model.task, size, profile)
        self.blocks = allocated_blocks(config, self.runner, size, self.clock)
        self.grammars = Grammars(
            lambda: read_tokenizer_json(resolve_model(config.model)),
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            cores=cores,
        )
        self.adapters = Adapters(
            self.runner,
            most_in_host=config.num_host_adapters,
            clock=self.clock,
            most_virtual_tokens=size.max_model_len - 2,
        )
        self.thinking = ThinkingBudgets(model.vocab_size)
        self.holds = Holds(config.block_size)
        self.scheduler = Scheduler(
            self.blocks,
            limits,
            eos_token_ids=model.eos_token_ids,
            now=self.clock.now,
            predict_wait=lambda: self.predicted_wait,
            is_ready=self.grammars.is_ready,
            drafting=drafting_of(config),
            adapters=self.adapters if config.num_adapter_slots else None,
        )
        self.checks = RequestChecks(model, self.scheduler.ends.token_ids_of)
        self._has_adapters, self._sees_images = config.num_adapter_slots > 0, model.task.images is not None
        allocated = self.clock.now()
        self.runner.compile_steps(limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len)
        compiled = self.clock.now()
        self.step_cost = StepCostModel()
        adapters = self.adapters if self._has_adapters else None
        self._gauge = LoadGauge(self.scheduler, self.step_cost, self.grammars, adapters)
        self.step_cost.set_prior(warm_up(self.runner, limits, config.block_size, size.num_blocks, self.clock))
        self._load_adapters()
        if profile is not None:  # measured for longer than a warm-up
            self.step_cost.set_prior(prior(profile.step_cost, limits), profile.step_cost.residual)
        self._watch = StepWatch(self.clock)
        self._planning = LatePlanning(self.clock)
        self._under_way: _Step | None = None
        """With asynchronous scheduling, the step on the device."""
        self.num_failed_checks = 0
        start_seconds = {
            "load": loaded - started,
            "cache": allocated - loaded,
            "compile": compiled - allocated,
            "warm_up": self.clock.now() - compiled,
        }
        self.info = info_of(self.runner, limits, self.blocks, tuple(self.adapters.seconds), start_seconds)

    def step(self) -> list[SequenceOutput]:
        """Computes the next tokens of all running sequences, or begins to and returns the outputs of the step before
        (asynchronous scheduling). Call while `has_work`."""
        if self._under_way is None:
            self._watch.start()
        began = self.clock.monotonic()
        batch, step = self.scheduler.schedule(), None  # decides tokens; never touches tensors
        injected = [told(*each) for each in self.scheduler.injected]
        if self._has_adapters:
            self.adapters.place()  # for no batch, too: what waits to be placed cannot be dropped from the host's memory
        if batch:
            batch.masks = self._masks(batch) if self.grammars or self.thinking else None
            with self._watch.launching():
                # Forward and draw; the device may be at it.
                step = _Step(batch, self.runner.launch(batch), self.scheduler.num_ended)
        if self.config.async_scheduling:
            self._under_way, step = step, self._under_way
            if step is not None:
                self._planning.planned(began, is_late=not step.was_awaited and self.runner.is_over(step.launched))
        if step is None:
            if not batch:  # there is nothing to compute before something else is ready
                self._wait()
            self._expect_end()
            return injected + self._broken()
        batch, sampled = self._results(step)
        self._expect_end()
        finished = self.scheduler.commit(batch, sampled)  # appends, frees, publishes blocks
        saw_images = self._sees_images and any(item.images for item in step.batch.chunks)
        self.step_cost.observe(step.batch, self._watch.end(), learns=not saw_images)
        return injected + self.outputs(batch, sampled, finished) + self._broken()

    def add(self, request: EngineRequest) -> SequenceOutput | None:
        """Queues a request. Returns the only output of a refused request: REJECTED, INVALID or ERROR with a message."""
        hold = request.hold
        if hold is not None:
            if (whole := self.holds.whole(request)) is None:
                return ended(request.request_id, RequestRefusal(FinishReason.ERROR, "what it begins with is not held"))
            request = whole
        adapter = self._adapter(request)
        num_virtual_tokens = 0 if adapter is None else adapter.num_virtual_tokens
        prompt = request.prompt_token_ids
        extra = extra_bytes(adapter=request.adapter, cache_salt=request.cache_salt)
        if adapter is not None and adapter.is_leaving:
            extra += _apart(adapter)
        # Penalties count who occurs at all: virtual tokens are written as one that does.
        sequence = Sequence(
            request_id=request.request_id,
            token_ids=[*prompt[:1] * num_virtual_tokens, *prompt],
            num_prompt_tokens=(num_virtual_tokens if prompt else 0) + len(prompt),
            num_virtual_tokens=num_virtual_tokens,
            sampling=request.sampling,
            arrival_time=request.arrival_time,
            priority=request.priority,
            extra=extra,
            adapter=adapter,
            pooling=request.pooling,
            reading=request.reading,
            second_start=request.second_start,
            images=request.images,
            part_of=request.part_of,
            num_parts_before=request.num_parts_before,
            max_queue_seconds=request.max_queue_seconds,
            injectable=request.injectable,
            keep_seconds=request.keep_seconds,
            keep_prefixes=request.keep_prefixes,
        )
        if hold is not None:
            self.holds.begin(hold, sequence)
        refusal = (
            self.checks.cannot_do(sequence)
            or self.checks.unknown_token(sequence)
            or self._unknown_adapter(request, adapter)
            or self.checks.nothing_left(sequence)
            or (None if self.grammars.has_room(sequence) else _NO_ROOM_FOR_GRAMMAR)
            or self.scheduler.add(sequence)
        )
        if refusal is None:
            if hold is not None:
                self.holds.note(hold, sequence)
            self.grammars.add(sequence)
            self.thinking.add(sequence)
            return None
        return ended(request.request_id, refusal)

    def hold(self, hold: str, held: HeldPrompt) -> None:
        """Keeps the beginning of later requests under the name `hold`, until the hold is aborted."""
        self.holds.add(hold, held)
        if held.adapter is not None:
            self.adapters.hold(hold, held.adapter)

    def load_adapter(self, name: str, folder: Path, done: Callable[[AdapterError | None], None]) -> None:
        """Begins to load an adapter beside the steps; `done` is called by `settle` or a step. Raises AdapterError."""
        self.adapters.load(name, folder, done)
        self.blocks.retract_adapter(name)  # one of that name may have been lost, which nobody has unloaded

    def unload_adapter(self, name: str) -> None:
        """Refuses new requests for an adapter, and drops the adapter when the present requests have ended. Its blocks
        are shared no more, because another adapter may get the name. Raises AdapterError."""
        adapter = self.adapters.unload(name)
        for sequence in self.scheduler.sequences():
            if sequence.adapter is adapter:
                self.scheduler.rename(sequence, sequence.extra + _apart(adapter))
        self.blocks.retract_adapter(name)

    def inject(self, request_id: str, mark: str, token_ids: list[int], done: Callable[[str | None], None]) -> None:
        """Puts tokens into an answer at the next safe place. `done` is called with the result, now or by a step."""
        if (wrong := self.checks.outside_vocabulary(token_ids)) is not None:
            done(wrong)
        else:
            self.scheduler.inject(request_id, Injection(mark, token_ids, done))

    def abort(self, request_id: str) -> None:
        """Ends a request without an output and frees its blocks, or ends a hold; an ended request is ignored."""
        if (sequence := self.scheduler.abort(request_id)) is not None:
            self.runner.forget([request_id])
            self.grammars.forget([sequence])
            self.thinking.forget([sequence])
        else:
            self.holds.release(request_id)
            self.adapters.release(request_id)

    def has_work(self) -> bool:
        """Whether anything waits or runs, or the device still computes."""
        return self._under_way is not None or bool(self.scheduler.sequences())

    @property
    def spare_seconds(self) -> float:
        """Seconds that planning the next step can wait: the device is busy, and new requests can join the step."""
        if self._under_way is None or self.runner.is_over(self._under_way.launched):
            return 0.0
        return self._planning.spare_seconds

    def outputs(
        self, batch: Batch, sampled: list[SampledToken | None], finished: list[Sequence]
    ) -> list[SequenceOutput]:
        """A step's outputs: for each sequence with a token, prompt log-probabilities, or an end."""
        if finished:
            self.runner.forget([sequence.request_id for sequence in finished])
        found = outputs_of_decodes(batch.decodes, sampled, self.grammars)
        for item, token in zip(batch.chunks, sampled[len(batch.decodes) :], strict=True):
            if token is not None or item.scores or item.sequence.finish_reason is not None:
                found.append(output_of(item.sequence, token, item, self.grammars))
        if finished and (self.grammars or self.thinking):
            self.grammars.forget(finished)
            self.thinking.forget(finished)
        return found

    @property
    def load(self) -> EngineLoad:
        return self._gauge.load(self.num_failed_checks)

    @property
    def predicted_wait(self) -> float:
        return self._gauge.predicted_wait

    def check(self) -> None:
        self.scheduler.check()

    def recheck(self) -> bool:
        """Checks the blocks while nothing waits or runs, and resets wrong ones; returns whether all were right. No
        sequence has blocks then: a reset costs the prefix cache and no request."""
        try:
            self.blocks.settle()
            self.check()
        except Exception as error:
            logger.exception("the books of KV blocks were wrong (%s); the prefix cache begins anew, empty", error)
            self.num_failed_checks += 1
            self.scheduler.reset()
            return False
        return True

    def _broken(self) -> list[SequenceOutput]:
        """Ends sequences whose adapter cannot be read again."""
        found: list[SequenceOutput] = []
        if not (self._has_adapters and self.adapters.broken):
            return found
        for sequence in list(self.scheduler.waiting):
            problem = self.adapters.broken.get(sequence.adapter.key) if sequence.adapter is not None else None
            if problem is not None:
                self.abort(sequence.request_id)
                message = f"its adapter cannot be read any more: {problem}"
                found.append(ended(sequence.request_id, RequestRefusal(FinishReason.ERROR, message)))
        return found

    def _adapter(self, request: EngineRequest) -> Adapter | None:
        """The request's adapter, if it is there."""
        if request.adapter is None:
            return None
        if request.hold is not None:
            return self.adapters.held(request.hold)
        return self.adapters.find(request.adapter)

    def _unknown_adapter(self, request: EngineRequest, adapter: Adapter | None) -> RequestRefusal | None:
        """The refusal of an adapter's name; the adapter may have been unloaded meanwhile."""
        if request.adapter is None or adapter is not None:
            return None
        error = UnknownAdapter(request.adapter, self.adapters.seconds)
        return RequestRefusal(FinishReason.INVALID, error.message, "model")

    def _masks(self, batch: Batch) -> Callable[[], TokenMasks] | None:
        """The allowed tokens of a batch before its launch; None = all tokens. They depend on the choices of the step
        under way: while the device computes that step, the wait begins after the launch of this batch's forward pass,
        and the masks are made during the pass."""
        before = self._under_way
        if not (self.grammars.constrain(batch) or self.thinking.constrain(batch)):
            return None
        if before is None or self.runner.is_over(before.launched):
            if before is not None:
                self._collect(before)
            return self._begin_masks(batch)

        def masks() -> TokenMasks:
            before.was_awaited = not self.runner.is_over(before.launched)
            self._collect(before)
            return self._begin_masks(batch)()

        return masks

    def _begin_masks(self, batch: Batch) -> Callable[[], TokenMasks]:
        """After all tokens so far are accepted."""
        masks = self.grammars.begin(batch)
        return lambda: self.thinking.forced(batch, masks())

    def _wait(self) -> None:
        """Waits for grammars, adapters and blocks of waiting sequences."""
        if self.blocks.host.loads:
            time.sleep(_LOAD_SECONDS)
        elif self.adapters.is_awaited:
            self.adapters.wait()
        else:
            self.grammars.wait()

    def _results(self, step: _Step) -> tuple[Batch, list[SampledToken | None]]:
        """The step's choices, without sequences that ended while the step was under way."""
        sampled = self._collect(step)
        return (step.batch, sampled) if step.num_ended == self.scheduler.num_ended else _wanted(step.batch, sampled)

    def _collect(self, step: _Step) -> list[SampledToken | None]:
        """A step's choices; waits for the device, and never decides."""
        if step.sampled is None:
            step.sampled = self.runner.collect(step.launched)
            if self.grammars or self.thinking:
                self.grammars.accept(step.batch, step.sampled)
                self.thinking.accept(step.batch, step.sampled)
        return step.sampled

    def _expect_end(self) -> None:
        if self._under_way is not None:
            self._planning.begins(self.step_cost.predict_least(StepWork.of(self._under_way.batch)))

    def _load_adapters(self) -> None:
        """Loads the first adapters. Raises ConfigError for one that cannot be loaded."""

        def done(error: AdapterError | None) -> None:
            if error is not None:
                raise error

        for name, folder in self.config.adapters.items():
            try:
                self.adapters.load(name, Path(folder), done)
                while self.adapters.is_reading:
                    self.adapters.wait(60.0)
                    self.adapters.settle()
            except AdapterError as error:
                raise ConfigError("lora_modules", f"{name!r} cannot be loaded: {error.message}") from error
        self.adapters.place()


def _apart(adapter: Adapter) -> bytes:
    """Keeps the adapter's blocks from the next holder of its name."""
    return f"\0{adapter.key}".encode()


def _wanted(batch: Batch, sampled: list[SampledToken | None]) -> tuple[Batch, list[SampledToken | None]]:
    """The results without sequences that ended while the step was under way."""
    sequences = [*batch.decodes.sequences, *[item.sequence for item in batch.chunks]]
    rows = [row for row, sequence in enumerate(sequences) if sequence.finish_reason is None]
    num_decodes = len(batch.decodes)
    chunks = [batch.chunks[row - num_decodes] for row in rows if row >= num_decodes]
    decodes = batch.decodes.pick([row for row in rows if row < num_decodes])
    return Batch(chunks, decodes), [sampled[row] for row in rows]
