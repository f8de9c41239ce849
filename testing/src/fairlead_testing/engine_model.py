"""One engine in virtual time: slots, queue, cache and steps, without tensors, clock or I/O.

Whoever has one drives it: `begin_step` decides what the next step computes and says how long it takes, `end_step` when
that time has passed. Drivers: `simulated_engines` and `virtual_fleet` in virtual time, `fake_engine` on a real socket.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.routing.predictor import prefill_context, step_seconds
from fairlead.routing.replica import Limits
from fairlead_common.blocks import BlockHash
from fairlead_common.messages import LoadLine, StepCost
from fairlead_common.profiles import EngineProfile
from fairlead_testing.block_cache import AdapterSlots, BlockCache


@dataclass(slots=True, eq=False, kw_only=True)
class ModelSequence:
    """One request in the engine. What it generates is not cached, and not counted as blocks."""

    num_prompt_tokens: int
    max_tokens: int
    """How many tokens it generates."""
    hashes: Sequence[BlockHash] = ()
    """Of the whole blocks of its prompt."""
    num_cacheable: int = 0
    """So many of them may be taken from the cache."""
    num_computed: int = 0
    """Tokens in the cache, generated ones too. What a new sequence has here is cached outside of the model."""
    num_generated: int = 0
    num_cached_tokens: int = 0
    """As found when it was admitted."""
    num_published: int = 0
    """Leading blocks that it uses under their hashes."""
    num_unnamed: int = 0
    """Blocks that it uses beside them."""
    adapter: str | None = None
    """What it is computed with."""

    @property
    def num_uncomputed(self) -> int:
        """Prompt tokens that are still to be computed."""
        return max(0, self.num_prompt_tokens - self.num_computed)


@dataclass(slots=True)
class Step:
    """What one step computes, or several equal ones that only decode."""

    seconds: float
    num_steps: int
    decodes: list[ModelSequence]
    """Those past their prompt: a token each, per step."""
    prefills: list[tuple[ModelSequence, int]]
    """And how many tokens of each prompt."""

    def cut(self, after_seconds: float) -> None:
        """Of steps that are taken together, only those that have begun so many seconds after the first."""
        each = self.seconds / self.num_steps
        self.num_steps = min(self.num_steps, int(after_seconds / each) + 1) if each else self.num_steps
        self.seconds = self.num_steps * each


@dataclass(slots=True)
class Ended:
    """What a step has brought."""

    answered: list[ModelSequence] = field(default_factory=list)
    """Those with more tokens than before."""
    finished: list[ModelSequence] = field(default_factory=list)
    """Those of them with all their tokens; they are gone from the engine."""


class EngineModel:
    """Decodes of all that run, and prefill in chunks within the token budget, first come first served.

    A waiting prompt whose next block is being computed by a running one waits for it, as in a real engine.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        num_blocks: int,
        token_budget: int,
        step_cost: StepCost | None,
        max_batch_weight: int | None = None,
        adapters: AdapterSlots | None = None,
    ) -> None:
        """`step_cost`: what steps take; None = nothing. `max_batch_weight`: prompt and output tokens of all that run;
        None = no bound but slots and cache. `adapters`: None = there are none. Steps wait for one that is loaded."""
        self.limits = limits
        self.token_budget = token_budget
        self.step_cost = step_cost
        self.max_batch_weight = max_batch_weight
        self.adapters = adapters or AdapterSlots({})
        self._loading_seconds = 0.0
        """Of adapters for the step that is being scheduled."""
        self.cache = BlockCache(num_blocks, limits.block_size)
        self.waiting: deque[ModelSequence] = deque()
        self.running: list[ModelSequence] = []
        self.step: Step | None = None
        """The one that is being computed."""
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

    def refuses(self, sequence: ModelSequence) -> bool:
        """Whether the queue is too full for it. An empty queue takes any one, unless nothing may wait at all."""
        if not self.waiting and self._fits(sequence, self._match(sequence)):
            return False
        limit = self.limits.max_num_queued_tokens
        queued = sum(each.num_prompt_tokens for each in self.waiting)
        return not limit or bool(self.waiting and queued + sequence.num_prompt_tokens > limit)

    def add(self, sequence: ModelSequence) -> None:
        """Queues it."""
        self.waiting.append(sequence)

    def remove(self, sequence: ModelSequence) -> None:
        """It has ended, or its client has left. Does nothing for one that is gone."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.running:
            self.running.remove(sequence)
            self.cache.free(sequence.hashes[: sequence.num_published], sequence.num_unnamed)

    def restart(self) -> None:
        """As after a crash: nothing runs, and the cache is empty."""
        self.waiting.clear()
        self.running, self.step = [], None
        self.cache = BlockCache(self.cache.num_blocks, self.cache.block_size)

    def compute_at_once(self) -> list[ModelSequence]:
        """For steps that take nothing: admits whoever fits and computes their prompts; they run until removed."""
        admitted = []
        while self.waiting and self._fits(self.waiting[0], matched := self._match(self.waiting[0])):
            sequence = self.waiting[0]
            self._admit(sequence, matched)
            sequence.num_computed = sequence.num_prompt_tokens
            self._publish(sequence)
            admitted.append(sequence)
        return admitted

    def begin_step(self, together_seconds: float = 0.0) -> Step | None:
        """Schedules the next step; None where there is nothing to compute.

        Steps that only decode are taken together while that takes less than `together_seconds` and none of their
        sequences ends: nothing else happens in them, unless a request comes (`Step.cut`).
        """
        decodes = [each for each in self.running if each.num_computed >= each.num_prompt_tokens]
        prefills = self._prefills(self.token_budget - len(decodes)) if self.waiting or len(decodes) < len(
            self.running
        ) else []  # fmt: skip
        if not decodes and not prefills:
            self.step = None
            return None
        self.step = Step(self._loading_seconds + self._seconds(decodes, prefills), 1, decodes, prefills)
        self._loading_seconds = 0.0
        if together_seconds and not prefills:
            left = min(each.max_tokens - each.num_generated for each in decodes)
            self.step.num_steps = max(1, min(left, int(together_seconds / self.step.seconds)))
            self.step.seconds *= self.step.num_steps
        return self.step

    def end_step(self) -> Ended:
        """The step is over: its blocks can be found, and who is past its prompt has more tokens."""
        step, self.step = self.step, None
        assert step is not None, "no step has begun"
        self.num_steps += step.num_steps
        ended = Ended()
        gone = set(step.decodes).union(each for each, _ in step.prefills).difference(self.running)
        for sequence in step.decodes:
            if sequence not in gone:
                self._advance(sequence, step.num_steps, ended)
        for sequence, num_tokens in step.prefills:
            if sequence not in gone:
                sequence.num_computed += num_tokens
                self._publish(sequence)
                if not sequence.num_uncomputed:
                    self._generate(sequence, 1, ended)
        for sequence in ended.finished:
            self.remove(sequence)
        return ended

    def load(self, *, seq: int = 0, seen: Mapping[str, int] | None = None, age: float = 0.0) -> LoadLine:
        """What the engine says of itself now. `age`: how long its step has been running."""
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
            step_cost=self.step_cost or StepCost(),
            adapters=self.adapters.waits,
        )

    def check(self) -> None:
        """Raises AssertionError unless every block is in one state and what runs is within its bounds."""
        self.cache.check()
        held = {each for sequence in self.running for each in sequence.hashes[: sequence.num_published]}
        assert held <= self.cache.hashes
        assert len(self.running) <= max(1, self.limits.max_num_seqs)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _prefills(self, budget: int) -> list[tuple[ModelSequence, int]]:
        """Prompts that run go on, then waiting ones are admitted, while the budget lasts."""
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
        if self.step_cost is None:
            return 0.0
        chunks = [(each.num_computed, num_tokens) for each, num_tokens in prefills if num_tokens > 1]
        singles = [each.num_computed for each, num_tokens in prefills if num_tokens == 1]
        return step_seconds(
            self.step_cost,
            running=len(decodes) + len(singles),
            kv_tokens=sum(each.num_computed + 1 for each in decodes) + sum(start + 1 for start in singles),
            prefill_tokens=sum(num_tokens for _, num_tokens in chunks),
            prefill_context=sum(prefill_context(start, num_tokens) for start, num_tokens in chunks),
        )

    def _advance(self, sequence: ModelSequence, num_tokens: int, ended: Ended) -> None:
        sequence.num_computed += num_tokens
        self._generate(sequence, num_tokens, ended)

    def _generate(self, sequence: ModelSequence, num_tokens: int, ended: Ended) -> None:
        sequence.num_generated += num_tokens
        ended.answered.append(sequence)
        if sequence.num_generated >= sequence.max_tokens:
            ended.finished.append(sequence)

    # -- cache -----------------------------------------------------------------------------------------------------

    def _match(self, sequence: ModelSequence) -> int:
        return self.cache.match(sequence.hashes[: sequence.num_cacheable])

    def _fits(self, sequence: ModelSequence, matched: int) -> bool:
        """Whether there is a slot, weight, and blocks for the whole prompt; alone it always fits."""
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
        """Names the blocks of its prompt that are whole now."""
        end = min(sequence.num_computed // self.limits.block_size, len(sequence.hashes))
        while sequence.num_published < end and sequence.num_unnamed:
            index = sequence.num_published
            self.cache.publish(sequence.hashes[index - 1] if index else None, sequence.hashes[index])
            sequence.num_published += 1
            sequence.num_unnamed -= 1

    def _num_waiting_tokens(self) -> int:
        """Of waiting prompts, without what will be cached when it is their turn."""
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
