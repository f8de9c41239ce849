"""A prefix that several prompts have in common is computed once, also when they come together."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.scheduler import Scheduler, SchedulerLimits
from fairlead_engine.types import FinishReason, SamplingParams
from fairlead_engine.types.sequences import SampledToken, Sequence

BLOCK_SIZE = 4
SHARED = list(range(100, 116))


def make_scheduler(
    num_blocks: int = 64, *, max_num_seqs: int = 8, budget: int = 64, queue: int = 1000, caching: bool = True
) -> Scheduler:
    blocks = BlockManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=caching)
    limits = SchedulerLimits(
        max_model_len=64, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_num_queued_tokens=queue
    )
    return Scheduler(blocks, limits, eos_token_ids=(), now=lambda: 7.0)


def make_sequence(name: str, tokens: list[int], *, max_tokens: int = 4, arrival: float = 0.0) -> Sequence:
    return Sequence(
        request_id=name,
        token_ids=list(tokens),
        num_prompt_tokens=len(tokens),
        sampling=SamplingParams(max_tokens=max_tokens),
        arrival_time=arrival,
    )


def step(scheduler: Scheduler) -> list[tuple[str, int]]:
    """One step; returns each item's share."""
    batch = scheduler.schedule()
    scheduler.commit(batch, [SampledToken(5) if item.samples else None for item in batch.items])
    scheduler.blocks.check(scheduler.sequences())
    scheduler.coming.check(scheduler.sequences())
    return [(item.sequence.request_id, item.num_tokens) for item in batch.items]


def add(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        assert scheduler.add(sequence) is None


def test_who_shares_only_the_beginning_waits_only_for_that() -> None:
    scheduler = make_scheduler(budget=16)
    add(scheduler, make_sequence("a", [*SHARED, *range(20)]), make_sequence("b", [*SHARED[:8], *range(50, 54)]))
    assert step(scheduler) == [("a", 16)]
    assert step(scheduler) == [("a", 16)]
    assert step(scheduler) == [("a", 4), ("b", 4)]


def test_prompts_with_nothing_in_common_pass_those_that_wait() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_sequence("a", [*SHARED, 1]), make_sequence("b", [*SHARED, 2]), make_sequence("c", [7] * 6))
    assert step(scheduler) == [("a", 17), ("c", 6)]
    assert step(scheduler) == [("a", 1), ("c", 1), ("b", 1)]


def test_whoever_passes_leaves_slot_and_blocks_to_those_that_wait() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, make_sequence("a", [*SHARED, 1]), make_sequence("b", [*SHARED, 2]), make_sequence("c", [7] * 6))
    assert step(scheduler) == [("a", 17)], "the second slot is b's"
    assert step(scheduler) == [("a", 1), ("b", 1)]
    short = make_scheduler(num_blocks=9)
    add(short, make_sequence("a", [*SHARED, 1]), make_sequence("b", [*SHARED, 2]), make_sequence("c", [7] * 6))
    assert step(short) == [("a", 17)], "c would take the block that b is going to need"
    assert step(short)[:2] == [("a", 1), ("b", 1)]


def test_nobody_waits_for_a_sequence_that_is_gone() -> None:
    scheduler = make_scheduler(budget=8)
    add(scheduler, make_sequence("a", [*SHARED, 1]), make_sequence("b", [*SHARED, 2]), make_sequence("c", [*SHARED, 3]))
    step(scheduler)
    scheduler.abort("a")
    assert step(scheduler) == [("b", 8)]
    assert step(scheduler) == [("b", 1), ("c", 1)]


def test_what_another_generates_is_no_longer_to_come() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, make_sequence("a", [1, 2, 3]), make_sequence("b", [1, 2, 3, 5, 9, 9], max_tokens=1))
    assert [step(scheduler) for _ in range(5)] == [[("a", 3)], [("a", 1)], [("a", 1)], [("a", 1)], [("b", 2)]]
    assert not len(scheduler.coming)


def test_a_prefix_with_a_gap_is_whole_again_when_the_gap_is_filled() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, make_sequence("a", [*SHARED, 1], max_tokens=1))
    step(scheduler)
    blocks = scheduler.blocks
    head = blocks.match(make_sequence("a", [*SHARED, 1]))[0]
    blocks._free.reuse(head)
    blocks._evict(head)
    blocks._free.release(head, evictable=False)
    add(scheduler, make_sequence("b", [*SHARED[:4], 3], max_tokens=1), make_sequence("c", [*SHARED, 2], max_tokens=1))
    assert [step(scheduler) for _ in range(2)] == [[("b", 5)], [("c", 1)]]
    assert not len(scheduler.coming)


def test_the_last_block_of_a_prompt_is_not_waited_for_as_it_cannot_be_shared() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_sequence("a", SHARED[:4]), make_sequence("b", SHARED[:4]))
    assert step(scheduler) == [("a", 4), ("b", 4)]


def test_nobody_waits_for_a_less_urgent_sequence() -> None:
    scheduler = make_scheduler(budget=12)
    urgent = make_sequence("urgent", [*SHARED, 2])
    urgent.priority = -1
    add(scheduler, make_sequence("a", [*SHARED, 1]))
    assert step(scheduler) == [("a", 12)]
    add(scheduler, urgent)
    assert step(scheduler) == [("a", 5), ("urgent", 5)], "the block that both lack is computed by both"


def test_without_a_prefix_cache_nobody_waits() -> None:
    scheduler = make_scheduler(caching=False)
    add(scheduler, make_sequence("a", [*SHARED, 1]), make_sequence("b", [*SHARED, 2]))
    assert step(scheduler) == [("a", 17), ("b", 17)]


def test_other_salts_have_nothing_in_common() -> None:
    scheduler = make_scheduler()
    salted = make_sequence("b", [*SHARED, 2])
    salted.extra = b"salt"
    add(scheduler, make_sequence("a", [*SHARED, 1]), salted)
    assert step(scheduler) == [("a", 17), ("b", 17)]


def test_queued_tokens_leave_out_what_the_cache_will_spare() -> None:
    scheduler = make_scheduler(queue=30)
    add(scheduler, make_sequence("a", [*SHARED, 1]), *(make_sequence(f"b{index}", [*SHARED, 2]) for index in range(9)))
    assert scheduler.queue.num_tokens == 17 + 9, "only the first will compute the prefix"
    refusal = scheduler.add(make_sequence("c", [7] * 6))
    assert refusal is not None and refusal.reason is FinishReason.REJECTED
    step(scheduler)
    assert scheduler.num_prefill_tokens == 9
    scheduler.abort("a")
    assert scheduler.num_prefill_tokens == 9, "what a published stays"


@settings(deadline=None, max_examples=50)
@given(
    num_prompts=st.integers(2, 6),
    num_shared=st.integers(1, 10),
    budget=st.integers(6, 40),
    tails=st.lists(st.integers(1, 9), min_size=6, max_size=6),
)
def test_no_shared_block_is_computed_twice(num_prompts: int, num_shared: int, budget: int, tails: list[int]) -> None:
    shared = list(range(100, 100 + num_shared * BLOCK_SIZE))
    scheduler = make_scheduler(200, max_num_seqs=6, budget=budget, queue=10_000)
    prompts = [[*shared, *([index] * tails[index])] for index in range(num_prompts)]
    add(scheduler, *(make_sequence(str(index), prompt, max_tokens=1) for index, prompt in enumerate(prompts)))
    num_computed = 0
    while scheduler.sequences():
        num_computed += sum(num_tokens for _, num_tokens in step(scheduler))
    assert num_computed == len(shared) + sum(tails[:num_prompts])
