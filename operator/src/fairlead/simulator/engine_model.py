"""One engine without tensors: slots, queue, cache and the cost of steps. No clock, no I/O.

`begin_step` decides what the next step computes and how long it takes; the driver calls `end_step` after this time.
Drivers: `TimedEngine` in virtual time, the tests' fake engines by the event loop's clock.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.routing.predictor import prefill_context, step_seconds
from fairlead.routing.replica import Limits
from fairlead.simulator.counted_blocks import CountedBlocks
from fairlead.simulator.loaded_adapters import LoadedAdapters
from fairlead_common.wire.blocks import BlockHash
from fairlead_common.wire.messages import LoadLine, StepCost
from fairlead_common.wire.profiles import EngineProfile


@dataclass(slots=True, eq=False, kw_only=True)
class ModelSequence:
    """One request in the engine. Generated tokens are not cached and take no blocks."""

    num_prompt_tokens: int
    max_tokens: int
    """Tokens to generate."""
    hashes: Sequence[BlockHash] = ()
    """Of the whole blocks of the prompt."""
    num_cacheable: int = 0
    """Leading blocks that may be taken from the cache."""
    num_computed: int = 0
    """Tokens in the cache, generated ones too. Above 0 in a new sequence: tokens cached outside of the model."""
    num_generated: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens found in the cache at admission."""
    num_published: int = 0
    """Leading blocks in use under their hashes."""
    num_unnamed: int = 0
    """Further blocks in use, without a hash."""
    adapter: str | None = None
    """Name of the adapter; None = the model alone."""

    @property
    def num_uncomputed(self) -> int:
        """Prompt tokens still to be computed."""
        return max(0, self.num_prompt_tokens - self.num_computed)


@dataclass(slots=True)
class EngineStep:
    """The work of one step, or of several equal steps that only decode."""

    seconds: float
    num_steps: int
    decodes: list[ModelSequence]
    """Sequences past their prompt: a token each, per step."""
    prefills: list[tuple[ModelSequence, int]]
    """Sequences with the number of prompt tokens computed for each."""

    def cut(self, after_seconds: float) -> None:
        """Drops the steps that would begin more than `after_seconds` after the first."""
        each = self.seconds / self.num_steps
        self.num_steps = min(self.num_steps, int(after_seconds / each) + 1) if each else self.num_steps
        self.seconds = self.num_steps * each


@dataclass(slots=True)
class StepOutcome:
    """What a step changed."""

    answered: list[ModelSequence] = field(default_factory=list)
    """Sequences with new tokens."""
    finished: list[ModelSequence] = field(default_factory=list)
    """Sequences with all their tokens, no longer in the engine; also in `answered`."""


class EngineModel:
    """Each step decodes every running sequence and prefills chunks within the token budget, first come first served.

    A waiting prompt whose next block is being computed for a running prompt waits for this block, as in a real engine.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        num_blocks: int,
        token_budget: int,
        step_cost: StepCost,
        max_batch_weight: int | None = None,
        adapters: LoadedAdapters | None = None,
    ) -> None:
        """`max_batch_weight`: most prompt and output tokens of all running sequences together; None = slots and cache
        are the only bounds. `adapters`: None = no adapters."""
        self.limits = limits
        self.token_budget = token_budget
        self.step_cost = step_cost
        self.max_batch_weight = max_batch_weight
        self.adapters = adapters or LoadedAdapters({})
        self._loading_seconds = 0.0
        """Loading of adapters, as part of the step that is being scheduled."""
        self.cache = CountedBlocks(num_blocks, limits.block_size)
        self.waiting: deque[ModelSequence] = deque()
        self.running: list[ModelSequence] = []
        self.step: EngineStep | None = None
        """The step being computed; None = idle."""
        self.num_steps = 0

    @classmethod
    def of_profile(cls, profile: EngineProfile, *, max_num_queued_tokens: int | None = None) -> "EngineModel":
        """The engine that `fairlead-engine characterise` has measured. `max_num_queued_tokens`: None = two full steps,
        the engine's default."""
        return cls(
            Limits(
                max_num_seqs=profile.max_num_seqs,
                max_num_queued_tokens=max_num_queued_tokens or 2 * profile.max_num_batched_tokens,
                block_size=profile.block_size,
                max_model_len=profile.max_model_len,
            ),
            num_blocks=profile.num_kv_blocks,
            token_budget=profile.max_num_batched_tokens,
            step_cost=profile.step_cost,
            max_batch_weight=profile.max_batch_weight.most,
        )

    @property
    def num_requests(self) -> int:
        """Waiting and running."""
        return len(self.waiting) + len(self.running)

    def add(self, sequence: ModelSequence) -> None:
        """Queues a sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: ModelSequence) -> None:
        """Takes out a sequence that is over or whose client has left; does nothing for an unknown sequence."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.running:
            self.running.remove(sequence)
            self.cache.free(sequence.hashes[: sequence.num_published], sequence.num_unnamed)

    def begin_step(self, together_seconds: float = 0.0) -> EngineStep | None:
        """Schedules the next step; None = nothing to compute.

        Steps that only decode are joined up to `together_seconds`, and up to the end of a sequence. A request that
        comes meanwhile cuts them (`EngineStep.cut`).
        """
        decodes = [each for each in self.running if each.num_computed >= each.num_prompt_tokens]
        has_prompts = self.waiting or len(decodes) < len(self.running)
        prefills = self._prefills(self.token_budget - len(decodes)) if has_prompts else []
        if not decodes and not prefills:
            self.step = None
            return None
        self.step = EngineStep(self._loading_seconds + self._seconds(decodes, prefills), 1, decodes, prefills)
        self._loading_seconds = 0.0
        if together_seconds and not prefills:
            left = min(each.max_tokens - each.num_generated for each in decodes)
            self.step.num_steps = max(1, min(left, int(together_seconds / self.step.seconds)))
            self.step.seconds *= self.step.num_steps
        return self.step

    def end_step(self) -> StepOutcome:
        """Publishes the computed blocks and adds the generated tokens."""
        step, self.step = self.step, None
        assert step is not None, "no step has begun"
        self.num_steps += step.num_steps
        outcome = StepOutcome()
        gone = set(step.decodes).union(each for each, _ in step.prefills).difference(self.running)
        for sequence in step.decodes:
            if sequence not in gone:
                sequence.num_computed += step.num_steps
                self._generate(sequence, step.num_steps, outcome)
        for sequence, num_tokens in step.prefills:
            if sequence not in gone:
                sequence.num_computed += num_tokens
                self._publish(sequence)
                if not sequence.num_uncomputed:
                    self._generate(sequence, 1, outcome)
        for sequence in outcome.finished:
            self.remove(sequence)
        return outcome

    def load(self, *, seq: int = 0, seen: Mapping[str, int] | None = None, age: float = 0.0) -> LoadLine:
        """The load line now. `age`: seconds since the running step began."""
        uncomputed = sum(each.num_uncomputed for each in self.running) + self._num_waiting_tokens()
        return LoadLine(
            waiting=len(self.waiting),
            running=len(self.running),
            queued_prefill_tokens=uncomputed,
            kv_blocks_free=self.cache.num_free,
            kv_blocks_total=self.cache.num_blocks,
            kv_tokens=sum(each.num_computed for each in self.running),
            token_budget=self.token_budget,
            max_num_seqs=self.limits.max_num_seqs,
            step_age_seconds=age,
            draining=False,
            seq=seq,
            seen=dict(seen or {}),
            step_cost=self.step_cost,
            adapters=self.adapters.waits,
        )

    def check(self) -> None:
        """Raises AssertionError unless every block is in one state and running sequences are within their bounds."""
        self.cache.check()
        held = {each for sequence in self.running for each in sequence.hashes[: sequence.num_published]}
        assert held <= self.cache.hashes
        assert len(self.running) <= max(1, self.limits.max_num_seqs)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _prefills(self, budget: int) -> list[tuple[ModelSequence, int]]:
        """Chunks of running prompts first, then of newly admitted prompts, while the budget lasts."""
        chunks = []
        under_way: set[BlockHash] = set()
        for sequence in self.running:
            if sequence.num_uncomputed:
                under_way.update(sequence.hashes[sequence.num_published :])
                if budget > 0:
                    chunks.append((sequence, min(sequence.num_uncomputed, budget)))
                    budget -= chunks[-1][1]
        for sequence in list(self.waiting):
            if budget <= 0:
                break
            matched = self._match(sequence)
            if matched < sequence.num_cacheable and sequence.hashes[matched] in under_way:
                continue
            if not self._fits(sequence, matched):
                break
            self._admit(sequence, matched)
            chunks.append((sequence, min(sequence.num_uncomputed, budget)))
            budget -= chunks[-1][1]
            under_way.update(sequence.hashes[matched:])
        return chunks

    def _seconds(self, decodes: Sequence[ModelSequence], prefills: Sequence[tuple[ModelSequence, int]]) -> float:
        """`StepCost`'s formula. A prompt's last single token counts as a decode, as in the engine's own fit."""
        chunks = [(each.num_computed, num_tokens) for each, num_tokens in prefills if num_tokens > 1]
        singles = [each.num_computed for each, num_tokens in prefills if num_tokens == 1]
        return step_seconds(
            self.step_cost,
            running=len(decodes) + len(singles),
            kv_tokens=sum(each.num_computed + 1 for each in decodes) + sum(start + 1 for start in singles),
            prefill_tokens=sum(num_tokens for _, num_tokens in chunks),
            prefill_context=sum(prefill_context(start, num_tokens) for start, num_tokens in chunks),
        )

    def _generate(self, sequence: ModelSequence, num_tokens: int, outcome: StepOutcome) -> None:
        sequence.num_generated += num_tokens
        outcome.answered.append(sequence)
        if sequence.num_generated >= sequence.max_tokens:
            outcome.finished.append(sequence)

    # -- cache -----------------------------------------------------------------------------------------------------

    def _match(self, sequence: ModelSequence) -> int:
        return self.cache.match(sequence.hashes[: sequence.num_cacheable])

    def _fits(self, sequence: ModelSequence, matched: int) -> bool:
        """Whether slots, weight and blocks suffice for the whole prompt; the only sequence always fits."""
        if not self.running:
            return True
        if sequence.adapter is not None and not self.adapters.has_place(sequence.adapter, self._adapters_in_use()):
            return False
        if self.max_batch_weight is not None:
            weight = sum(each.num_prompt_tokens + each.max_tokens for each in (*self.running, sequence))
            if weight > self.max_batch_weight:
                return False
        needed = self._num_blocks(sequence) - matched
        return len(self.running) < self.limits.max_num_seqs and needed <= self.cache.num_free - matched

    def _adapters_in_use(self) -> set[str]:
        return {each.adapter for each in self.running if each.adapter is not None}

    def _num_blocks(self, sequence: ModelSequence) -> int:
        return min(-(-sequence.num_prompt_tokens // self.limits.block_size), self.cache.num_blocks)

    def _admit(self, sequence: ModelSequence, matched: int) -> None:
        self.waiting.remove(sequence)
        if sequence.adapter is not None:
            self._loading_seconds += self.adapters.use(sequence.adapter, self._adapters_in_use())
        self.running.append(sequence)
        self.cache.share(sequence.hashes[:matched])
        sequence.num_published = matched
        sequence.num_unnamed = self._num_blocks(sequence) - matched
        self.cache.take(sequence.num_unnamed)
        sequence.num_computed = max(sequence.num_computed, matched * self.limits.block_size)
        sequence.num_cached_tokens = sequence.num_computed

    def _publish(self, sequence: ModelSequence) -> None:
        """Puts the whole computed blocks of the prompt under their hashes."""
        end = min(sequence.num_computed // self.limits.block_size, len(sequence.hashes))
        while sequence.num_published < end and sequence.num_unnamed:
            index = sequence.num_published
            self.cache.publish(sequence.hashes[index - 1] if index else None, sequence.hashes[index])
            sequence.num_published += 1
            sequence.num_unnamed -= 1

    def _num_waiting_tokens(self) -> int:
        """Tokens of waiting prompts, less the tokens that will be cached by their turn."""
        if not self.waiting:
            return 0
        coming = {block for each in self.running for block in each.hashes}
        total = 0
        for sequence in self.waiting:
            num = 0
            for block in sequence.hashes[: sequence.num_cacheable]:
                if block not in coming and not self.cache.match([block]):
                    break
                num += 1
            total += sequence.num_prompt_tokens - max(num * self.limits.block_size, sequence.num_computed)
            coming.update(sequence.hashes)
        return total
