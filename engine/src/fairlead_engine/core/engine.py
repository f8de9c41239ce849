"""The engine: `Engine.step()` is the story of the whole core; read it first.

A core loop (`loop.py`) calls `add`, `abort` and `step` from one thread. The engine wires scheduler, block manager,
runner and step cost together and reports what happened; each decision is one of theirs.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fairlead_engine.adapters import Adapter
from fairlead_engine.batch import Batch, TokenMasks
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.adapter_places import Adapters
from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.cache_size import choose_cache_size, size_without_cache
from fairlead_engine.core.clock import Clock
from fairlead_engine.core.grammars import Grammars, usable_cores
from fairlead_engine.core.holds import Holds
from fairlead_engine.core.injections import Injection
from fairlead_engine.core.late_planning import LatePlanning
from fairlead_engine.core.memory import format_bytes
from fairlead_engine.core.profile import load_profile, prior
from fairlead_engine.core.runner import Runner, load_runner
from fairlead_engine.core.scheduler import Limits, Refusal, Scheduler
from fairlead_engine.core.step_cost import StepCost, StepWork
from fairlead_engine.core.step_watch import StepWatch
from fairlead_engine.core.thinking import ThinkingBudgets
from fairlead_engine.core.warm_up import warm_up
from fairlead_engine.demo import resolve_model
from fairlead_engine.errors import AdapterError, ConfigError, KVCacheTooSmall
from fairlead_engine.sequences import SampledToken, ScheduledSequence, Sequence
from fairlead_engine.speculative.drafting import Drafting, RunnerProposer
from fairlead_engine.speculative.ngram import NGramProposer
from fairlead_engine.tokenizer_files import read_tokenizer_json
from fairlead_engine.types import (
    EngineInfo,
    EngineLoad,
    EngineRequest,
    FinishReason,
    Held,
    Injected,
    Pooling,
    Reading,
    SequenceOutput,
    fit_prompt,
)
from fairlead_protocol import messages
from fairlead_protocol.adapters import UnknownAdapter
from fairlead_protocol.blocks import extra_bytes

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """What was planned, and what the runner has begun of it."""

    batch: Batch
    launched: Any
    num_ended: int
    """Sequences that had ended before it."""
    sampled: list[SampledToken | None] | None = None
    """What it chose, once that was asked for."""
    was_awaited: bool = False
    """Its end was waited for while the next step was launched, of which not every token was allowed."""


_NO_ROOM_FOR_GRAMMAR = Refusal(
    FinishReason.REJECTED, "the queue is full: other requests' grammars take the memory for them"
)
_NO_TOKEN = "no next token could be chosen: the model computed logits that are not finite"


class Engine:
    """A model with everything it takes to serve many requests at once; synchronous, for one thread.

    The constructor loads the model, sizes the cache and runs a real prefill and decode. It raises ModelLoadError,
    ConfigError or KVCacheTooSmall. `runner` and `clock` stand in for the real ones in tests.
    """

    def __init__(self, config: EngineConfig, runner: Runner[Any] | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        started = self.clock.now()
        cores = usable_cores()  # before the runner binds this thread
        self.runner = runner or load_runner(config)
        loaded = self.clock.now()
        profile = load_profile(config.profile, self.runner, config.block_size) if config.profile else None
        model, device = self.runner.model_config, str(self.runner.device)
        self.config = config = config.for_device(device, model.max_position_embeddings if model.task.sees_all else 0)
        assert config.max_num_seqs and config.max_num_batched_tokens and config.max_num_queued_tokens
        if model.task.sees_all:
            size = size_without_cache(config, model.max_position_embeddings)
        else:
            size = choose_cache_size(
                config,
                device_memory=None if config.kv_cache_memory else _device_memory(self.runner, config),
                bytes_per_block=self.runner.kv_bytes_per_block(),
                max_position_embeddings=model.max_position_embeddings,
            )
        limits = Limits(
            max_model_len=size.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_queued_tokens=config.max_num_queued_tokens,
            max_batch_weight=profile.max_batch_weight.most if profile else None,
            whole_prompts=model.task.sees_all,
        )
        blocks_per_slot = -(-size.max_model_len // config.block_size)
        try:
            self.runner.allocate_kv_cache(size.num_blocks, limits.max_num_seqs, blocks_per_slot)
        except (MemoryError, RuntimeError) as error:  # the latter is torch's
            wanted = format_bytes(size.num_blocks * self.runner.kv_bytes_per_block())
            raise KVCacheTooSmall(f"no {wanted} can be had for the KV cache; lower kv-cache-memory") from error
        self.blocks = BlockManager(
            size.num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching and not model.task.sees_all,
            make_allocator=self.runner.block_allocator,
        )
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
            drafting=_drafting(config),
            adapters=self.adapters if config.num_adapter_slots else None,
        )
        self._has_adapters, self._sees_images = config.num_adapter_slots > 0, model.task.images is not None
        allocated = self.clock.now()
        self.runner.compile_steps(limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len)
        compiled = self.clock.now()
        self.step_cost = StepCost()
        self.step_cost.set_prior(warm_up(self.runner, limits, config.block_size, size.num_blocks, self.clock))
        self._load_adapters()
        if profile is not None:  # measured for longer than a warm-up
            self.step_cost.set_prior(prior(profile.step_cost, limits), profile.step_cost.residual)
        self._watch = StepWatch(self.clock)
        self._planning = LatePlanning(self.clock)
        self._under_way: _Step | None = None
        """With asynchronous scheduling, the step that the device is at."""
        self.num_failed_checks = 0
        start_seconds = {
            "load": loaded - started,
            "cache": allocated - loaded,
            "compile": compiled - allocated,
            "warm_up": self.clock.now() - compiled,
        }
        self.info = self._info(limits, start_seconds)

    def step(self) -> list[SequenceOutput]:
        """Computes the next tokens of whatever runs. Call it while `has_work`.

        With asynchronous scheduling it begins a step and returns what the one before it did.
        """
        if self._under_way is None:
            self._watch.start()
        began = self.clock.monotonic()
        batch, step = self.scheduler.schedule(), None  # decides tokens; never touches tensors
        injected = [self._told(*each) for each in self.scheduler.take_injected()]
        if self._has_adapters:
            self.adapters.place()  # for no batch, too: what waits to be placed cannot be dropped from the host's memory
        if batch:
            batch.masks = self._masks(batch) if self.grammars or self.thinking else None
            with self._watch.launching():
                launched = self.runner.launch(batch)  # forward and draw; the device may be at it
            step = _Step(batch, launched, self.scheduler.num_ended)
        if self.config.async_scheduling:
            self._under_way, step = step, self._under_way
            if step is not None:
                self._planning.planned(began, is_late=not step.was_awaited and self.runner.is_over(step.launched))
        if step is None:
            if not batch:  # there is nothing to compute before something else is ready
                (self.adapters if self.adapters.is_awaited else self.grammars).wait()
            self._expect_end()
            return injected + self._broken()
        batch, sampled = step.batch, self._collect(step)
        if step.num_ended != self.scheduler.num_ended:
            batch, sampled = _wanted(batch, sampled)
        self._expect_end()
        finished = self.scheduler.commit(batch, sampled)  # appends, frees, publishes blocks
        self.step_cost.observe(step.batch, self._watch.end(), learns=not self._saw_images(step.batch))
        return injected + self.outputs(batch, sampled, finished) + self._broken()

    def add(self, request: EngineRequest) -> SequenceOutput | None:
        """Queues a request. Returns its only output, REJECTED, INVALID or ERROR with a message, when it cannot be
        taken."""
        hold = request.hold
        if hold is not None:
            if (whole := self.holds.whole(request)) is None:
                return _ended(request.request_id, Refusal(FinishReason.ERROR, "what it begins with is not held"))
            request = whole
        adapter = self._adapter(request)
        num_virtual_tokens = 0 if adapter is None else adapter.num_virtual_tokens
        prompt = request.prompt_token_ids
        # Penalties count who occurs at all: virtual tokens are written as one that does.
        sequence = Sequence(
            request_id=request.request_id,
            token_ids=[*prompt[:1] * num_virtual_tokens, *prompt],
            num_prompt_tokens=(num_virtual_tokens if prompt else 0) + len(prompt),
            num_virtual_tokens=num_virtual_tokens,
            sampling=request.sampling,
            arrival_time=request.arrival_time,
            priority=request.priority,
            extra=_extra(request, adapter),
            adapter=adapter,
            pooling=request.pooling,
            reading=request.reading,
            second_start=request.second_start,
            images=request.images,
            part_of=request.part_of,
            max_queue_seconds=request.max_queue_seconds,
            injectable=request.injectable,
        )
        if hold is not None:
            self.holds.begin(hold, sequence)
        refusal = (
            self._cannot_do(sequence)
            or self._unknown_token(sequence)
            or self._unknown_adapter(request, adapter)
            or self._nothing_left(sequence)
            or (None if self.grammars.has_room(sequence) else _NO_ROOM_FOR_GRAMMAR)
            or self.scheduler.add(sequence)
        )
        if refusal is None:
            if hold is not None:
                self.holds.note(hold, sequence)
            self.grammars.add(sequence)
            self.thinking.add(sequence)
            return None
        return _ended(request.request_id, refusal)

    def hold(self, hold: str, held: Held) -> None:
        """Keeps what requests will begin with that name the hold, until that is aborted."""
        self.holds.add(hold, held)
        if held.adapter is not None:
            self.adapters.hold(hold, held.adapter)

    def load_adapter(self, name: str, folder: Path, done: Callable[[AdapterError | None], None]) -> None:
        """Begins to load an adapter beside the steps; `done` hears the end of it, from `settle` or a step. Raises
        AdapterError."""
        self.adapters.load(name, folder, done)
        self.blocks.retract_adapter(name)  # one of that name may have been lost, which nobody has unloaded

    def unload_adapter(self, name: str) -> None:
        """Takes no more requests for an adapter, and gives it up when those that are there have ended. Nobody shares
        blocks with them from here on: another adapter may get the name. Raises AdapterError."""
        adapter = self.adapters.unload(name)
        for sequence in self.scheduler.sequences():
            if sequence.adapter is adapter:
                self.scheduler.rename(sequence, sequence.extra + _apart(adapter))
        self.blocks.retract_adapter(name)

    def inject(self, request_id: str, mark: str, token_ids: list[int], done: Callable[[str | None], None]) -> None:
        """Has tokens put into an answer at the next safe place. `done` hears when they are there, or why not: now, or
        from a step."""
        if (wrong := self._outside_vocabulary(token_ids)) is not None:
            done(wrong)
        else:
            self.scheduler.inject(request_id, Injection(mark, token_ids, done))

    def abort(self, request_id: str) -> None:
        """Ends a request without an output and frees its blocks, or a hold; nothing happens when it has ended
        already."""
        if (sequence := self.scheduler.abort(request_id)) is not None:
            self.runner.forget([request_id])
            self.grammars.forget([sequence])
            self.thinking.forget([sequence])
        else:
            self.holds.release(request_id)
            self.adapters.release(request_id)

    def has_work(self) -> bool:
        """Whether anything waits or runs, or the device is still at something."""
        return self._under_way is not None or bool(self.scheduler.sequences())

    @property
    def spare_seconds(self) -> float:
        """How long the next step can wait to be planned, after which it is to be asked again: the device is busy, and
        who comes meanwhile is in it."""
        if self._under_way is None or self.runner.is_over(self._under_way.launched):
            return 0.0
        return self._planning.spare_seconds

    def outputs(
        self, batch: Batch, sampled: list[SampledToken | None], finished: list[Sequence]
    ) -> list[SequenceOutput]:
        """What a step did, for each sequence that got a token, log-probabilities of its prompt, or its end."""
        if finished:
            self.runner.forget([sequence.request_id for sequence in finished])
        found = [
            SequenceOutput(
                request_id=sequence.request_id,
                new_token_ids=[token.token_id],
                num_cached_tokens=sequence.num_cached_tokens,
            )
            if sequence.finish_reason is None and token is not None and token.logprobs is None
            else self._output(sequence, token)
            for sequence, token in zip(batch.decodes.sequences, sampled, strict=False)
        ]
        for item, token in zip(batch.chunks, sampled[len(batch.decodes) :], strict=True):
            if token is not None or item.scores or item.sequence.finish_reason is not None:
                found.append(self._output(item.sequence, token, item))
        if finished and (self.grammars or self.thinking):
            self.grammars.forget(finished)
            self.thinking.forget(finished)
        return found

    def _told(self, sequence: Sequence, injection: Injection) -> SequenceOutput:
        """Of tokens that were put in, before all that is computed with them."""
        injection.done(None)
        return SequenceOutput(
            request_id=sequence.request_id,
            new_token_ids=[],
            injected=Injected(injection.mark, len(injection.token_ids)),
        )

    def _output(
        self, sequence: Sequence, token: SampledToken | None, item: ScheduledSequence | None = None
    ) -> SequenceOutput:
        """What a step did for a sequence; `item`: its share, where that was not a decode."""
        if sequence.finish_reason is FinishReason.INVALID:
            problem, grammar = self.grammars.problem(sequence), sequence.sampling.grammar
            if problem is not None and grammar is not None:
                refusal = Refusal(FinishReason.INVALID, f"{grammar.field} cannot be kept to: {problem}", grammar.field)
            else:
                refusal = _no_choice(sequence)
            return _ended(sequence.request_id, refusal)
        if sequence.finish_reason is FinishReason.ERROR:
            return _ended(sequence.request_id, Refusal(FinishReason.ERROR, _NO_TOKEN))
        tokens = item.chosen if item is not None and item.drafts else [token] if token is not None else []
        is_first = item is not None and item.end == sequence.num_prompt_tokens
        return SequenceOutput(
            request_id=sequence.request_id,
            new_token_ids=[each.token_id for each in tokens],
            finish_reason=sequence.finish_reason,
            num_cached_tokens=sequence.num_cached_tokens,
            logprobs=[each.logprobs for each in tokens if each.logprobs is not None] or None,
            prompt_logprobs=item.prompt_logprobs or None if item is not None else None,
            embedding=item.embedding if item is not None else None,
            stop_token_id=tokens[-1].token_id if tokens and sequence.finish_reason is FinishReason.STOP else None,
            first_scheduled_time=sequence.first_scheduled_time if is_first else None,
        )

    @property
    def load(self) -> EngineLoad:
        """How loaded the engine is now, and its counters since start."""
        scheduler, counters, drafting = self.scheduler, self.scheduler.counters, self.scheduler.drafting
        num_held_back = scheduler.num_held_back
        if drafting is None:
            step_cost = messages.StepCost(**self.step_cost.coefficients)
        else:
            step_cost = self.step_cost.told(drafting.rows_per_decode, drafting.tokens_per_decode)
        load = EngineLoad(
            waiting=len(scheduler.waiting) - num_held_back,
            held_back=num_held_back,
            running=len(scheduler.running),
            queued_prefill_tokens=scheduler.num_prefill_tokens,
            kv_blocks_free=self.blocks.num_free,
            kv_blocks_total=self.blocks.num_blocks,
            kv_tokens=scheduler.num_kv_tokens,
            num_steps=self.step_cost.num_steps,
            num_preemptions=counters.num_preemptions,
            prefix_query_tokens=counters.prefix_query_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            last_step_tokens=self.step_cost.last_step_tokens,
            last_step_seconds=self.step_cost.last_step_seconds,
            token_budget=scheduler.limits.max_num_batched_tokens,
            max_num_seqs=scheduler.num_slots,
            step_cost=step_cost,
            num_failed_checks=self.num_failed_checks,
        )
        if self.grammars.num_masks:
            load = replace(load, **self.grammars.figures)
        if drafting is not None:
            load = replace(load, **drafting.figures)
        return replace(load, **self.adapters.figures) if self._has_adapters else load

    @property
    def predicted_wait(self) -> float:
        """Seconds until a request that came now would begin: prompts before it are prefilled, and it has a slot.

        Slots come free as the sequences that hold them end, which is after as many tokens as recent ones had.
        """
        scheduler, limits, sequences = self.scheduler, self.scheduler.limits, self.scheduler.sequences()
        if not scheduler.waiting:
            return 0.0
        num_slots = scheduler.num_slots
        num_busy = min(num_slots, len(sequences))
        num_kv_tokens = num_busy * sum(sequence.num_tokens for sequence in sequences) / len(sequences)
        num_slots_awaited = max(0, len(sequences) - scheduler.num_held_back + 1 - num_slots)
        num_decode_steps = scheduler.mean_output_tokens * num_slots_awaited / num_slots
        num_rows, num_tokens = float(num_busy), scheduler.num_prefill_tokens
        if (drafting := scheduler.drafting) is not None:
            num_decode_steps /= drafting.tokens_per_decode
            num_rows, num_kv_tokens = num_rows * drafting.rows_per_decode, num_kv_tokens * drafting.rows_per_decode
        context = sum(sequence.num_tokens * sequence.num_uncomputed_tokens / 2 for sequence in scheduler.waiting)
        num_prefill_steps = -(-num_tokens // max(1, limits.max_num_batched_tokens - num_busy))
        return (
            num_decode_steps * self.step_cost.predict(StepWork(1, 0, 0, 0, num_rows, num_kv_tokens))
            + num_prefill_steps * self.step_cost.predict(StepWork(1, 1, 0, 0, 0, 0))
            + self.step_cost.predict(StepWork(0, 0, num_tokens, context, 0, 0))
        )

    def check(self) -> None:
        """Raises AssertionError when a block or a slot is leaked, shared wrongly or counted wrongly."""
        self.scheduler.check()

    def recheck(self) -> bool:
        """Checks the books while nothing waits or runs, and begins them anew where they are wrong; whether they are.

        With nobody's blocks to lose, an empty prefix cache is all it costs, and no request must fail for it.
        """
        try:
            self.check()
        except Exception as error:
            logger.exception("the books of KV blocks were wrong (%s); the prefix cache begins anew, empty", error)
            self.num_failed_checks += 1
            self.scheduler.reset()
            return False
        return True

    def _broken(self) -> list[SequenceOutput]:
        """Ends those whose adapter can be had no more."""
        found: list[SequenceOutput] = []
        if not (self._has_adapters and self.adapters.broken):
            return found
        for sequence in list(self.scheduler.waiting):
            problem = self.adapters.broken.get(sequence.adapter.key) if sequence.adapter is not None else None
            if problem is not None:
                self.abort(sequence.request_id)
                message = f"its adapter cannot be read any more: {problem}"
                found.append(_ended(sequence.request_id, Refusal(FinishReason.ERROR, message)))
        return found

    def _adapter(self, request: EngineRequest) -> Adapter | None:
        """With which it is to be computed, if it is there."""
        if request.adapter is None:
            return None
        if request.hold is not None:
            return self.adapters.held(request.hold)
        return self.adapters.find(request.adapter)

    def _saw_images(self, batch: Batch) -> bool:
        return self._sees_images and any(item.images for item in batch.chunks)

    def _unknown_adapter(self, request: EngineRequest, adapter: Adapter | None) -> Refusal | None:
        """It may have been unloaded while the request was on its way."""
        if request.adapter is None or adapter is not None:
            return None
        error = UnknownAdapter(request.adapter, self.adapters.seconds)
        return Refusal(FinishReason.INVALID, error.message, "model")

    def _masks(self, batch: Batch) -> Callable[[], TokenMasks] | None:
        """The tokens that are allowed in a batch that is about to be launched, where not all are. They depend on what
        the step under way chooses: where the device is still at it, that is waited for once this batch's forward pass
        is launched, and its masks are made while the device computes that."""
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
        """All tokens before are accepted."""
        masks = self.grammars.begin(batch)
        return lambda: self.thinking.forced(batch, masks())

    def _collect(self, step: _Step) -> list[SampledToken | None]:
        """What a step chose; waits for the device, and never decides."""
        if step.sampled is None:
            step.sampled = self.runner.collect(step.launched)
            if self.grammars or self.thinking:
                self.grammars.accept(step.batch, step.sampled)
                self.thinking.accept(step.batch, step.sampled)
        return step.sampled

    def _expect_end(self) -> None:
        """The device begins with the step that is under way."""
        if self._under_way is not None:
            self._planning.begins(self.step_cost.predict_least(StepWork.of(self._under_way.batch)))

    def _cannot_do(self, sequence: Sequence) -> Refusal | None:
        """What the model was not made for; who serves it says so earlier, and how to ask instead."""
        task = self.runner.model_config.task
        if sequence.pooling is None and not task.generates:
            return Refusal(FinishReason.ERROR, "this model generates no text")
        if sequence.pooling is Pooling.CLS and not task.sees_all:
            return Refusal(FinishReason.ERROR, "this model's first token sees none of the others")
        if sequence.reading is Reading.LABELS and not task.labels:
            return Refusal(FinishReason.ERROR, "this model has no classifier")
        if sequence.pooling is not None and sequence.num_virtual_tokens:
            return Refusal(FinishReason.ERROR, "no vectors are made with soft prompts; leave the adapter out")
        if sequence.images and sequence.num_virtual_tokens:
            return Refusal(FinishReason.ERROR, "no images are seen behind soft prompts; leave the adapter out")
        if sequence.images and not fit_prompt(sequence.images, task.images, sequence.num_prompt_tokens):
            return Refusal(FinishReason.ERROR, "the prompt's images are not as this model takes them")
        return None

    def _unknown_token(self, sequence: Sequence) -> Refusal | None:
        """An id outside the vocabulary would otherwise end the whole engine inside the model."""
        wrong = self._outside_vocabulary([*sequence.token_ids, *chain(*sequence.sampling.named_token_ids.values())])
        return None if wrong is None else Refusal(FinishReason.ERROR, wrong)

    def _outside_vocabulary(self, token_ids: list[int]) -> str | None:
        vocab_size = self.runner.model_config.vocab_size
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
            return f"token id {wrong} is not in the vocabulary of {vocab_size} tokens"
        return None

    def _nothing_left(self, sequence: Sequence) -> Refusal | None:
        """Where it is plain from the beginning that no token can be chosen. What a grammar leaves shows as it goes."""
        sampling, vocab_size = sequence.sampling, self.runner.model_config.vocab_size
        if sampling.max_tokens == 0:
            return None
        ruled_out = {word[0] for word in sampling.bad_words if len(word) == 1}
        if sampling.min_tokens and sampling.grammar is None:
            ruled_out |= self.scheduler.end_token_ids_of(sampling)
        is_left = any(token_id not in ruled_out for token_id in sampling.allowed_token_ids or range(vocab_size))
        return None if is_left else _no_choice(sequence)

    def _info(self, limits: Limits, start_seconds: dict[str, float]) -> EngineInfo:
        runner = self.runner
        return EngineInfo(
            architecture=runner.model_config.architecture,
            dtype=str(runner.dtype).removeprefix("torch."),
            device=str(runner.device),
            attention_backend=runner.attention_backend,
            kv_cache_dtype=runner.kv_cache_dtype,
            vocab_size=runner.model_config.vocab_size,
            max_model_len=limits.max_model_len,
            max_position_embeddings=runner.model_config.max_position_embeddings,
            block_size=self.blocks.block_size,
            num_kv_blocks=self.blocks.num_blocks,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_queued_tokens=limits.max_num_queued_tokens,
            eos_token_ids=runner.model_config.eos_token_ids,
            num_parameters=runner.num_parameters,
            weight_bytes=runner.weight_bytes,
            kv_cache_bytes=self.blocks.num_blocks * runner.kv_bytes_per_block(),
            adapters=tuple(self.adapters.seconds),
            task=runner.model_config.task,
            shares_prefixes=self.blocks.enable_prefix_caching,
            start_seconds=start_seconds,
        )

    def _load_adapters(self) -> None:
        """Those to begin with. Raises ConfigError for one that cannot be loaded."""

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


def _extra(request: EngineRequest, adapter: Adapter | None) -> bytes:
    """What else decides its blocks' hashes."""
    extra = extra_bytes(adapter=request.adapter, cache_salt=request.cache_salt)
    return extra + _apart(adapter) if adapter is not None and adapter.is_leaving else extra


def _apart(adapter: Adapter) -> bytes:
    """What keeps its blocks from whoever gets its name next."""
    return f"\0{adapter.key}".encode()


def _ended(request_id: str, why: Refusal) -> SequenceOutput:
    """The last output of a request that did not end well."""
    return SequenceOutput(
        request_id=request_id, new_token_ids=[], finish_reason=why.reason, message=why.message, field=why.field
    )


def _no_choice(sequence: Sequence) -> Refusal:
    """It asks for an answer that cannot go on."""
    names = sequence.sampling.ruling_out
    message = (
        f"{' and '.join(names)} leave no token to choose behind {sequence.num_output_tokens} tokens of the answer; "
        "rule out less, or let the answer end"
    )
    return Refusal(FinishReason.INVALID, message, names[0] if names else None)


def _drafting(config: EngineConfig) -> Drafting | None:
    """Who guesses what comes next, where anybody does."""
    if config.speculative_method is None:
        return None
    assert config.num_speculative_tokens is not None
    is_ngram = config.speculative_method == "ngram"
    proposer = NGramProposer(*config.lookup_lengths) if is_ngram else RunnerProposer()
    return Drafting(proposer, config.num_speculative_tokens, config.tree)


def _device_memory(runner: Runner[Any], config: EngineConfig) -> int | None:
    """What the device has left for a cache. Raises KVCacheTooSmall where not even one step fits."""
    num_seqs, num_tokens = config.max_num_seqs or 0, config.max_num_batched_tokens or 0
    max_model_len = config.max_model_len or runner.model_config.max_position_embeddings
    try:
        return runner.memory_for_cache(config.gpu_memory_utilization, num_seqs, num_tokens, max_model_len)
    except (MemoryError, RuntimeError) as error:  # the latter is torch's
        step = f"a step of {num_tokens} tokens and {num_seqs} sequences"
        raise KVCacheTooSmall(f"{step} cannot be computed ({error}); lower max-num-batched-tokens") from error


def _wanted(batch: Batch, sampled: list[SampledToken | None]) -> tuple[Batch, list[SampledToken | None]]:
    """Without those that ended while the step was under way."""
    sequences = [*batch.decodes.sequences, *[item.sequence for item in batch.chunks]]
    rows = [row for row, sequence in enumerate(sequences) if sequence.finish_reason is None]
    num_decodes = len(batch.decodes)
    chunks = [batch.chunks[row - num_decodes] for row in rows if row >= num_decodes]
    decodes = batch.decodes.pick([row for row in rows if row < num_decodes])
    return Batch(chunks, decodes), [sampled[row] for row in rows]
