"""The scheduler's policy: who gets which tokens of a step, who waits, who gives way, and why each sequence ends."""

from typing import Any

import pytest

from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.running_slots import DecodingSlots
from fairlead_engine.core.scheduler import Scheduler, SchedulerLimits
from fairlead_engine.types import FinishReason, SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import SampledToken, Sequence

EOS = 0
TOKEN = 5


def make_scheduler(
    num_blocks: int = 64,
    *,
    block_size: int = 4,
    max_model_len: int = 64,
    max_num_seqs: int = 4,
    budget: int = 16,
    queue: int = 1000,
    **more: Any,
) -> Scheduler:
    limits = SchedulerLimits(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_num_queued_tokens=queue,
    )
    return Scheduler(BlockManager(num_blocks, block_size), limits, eos_token_ids=(EOS,), now=lambda: 7.0, **more)


def make_sequence(
    request_id: str,
    num_tokens: int,
    *,
    arrival: float = 0.0,
    priority: int = 0,
    part_of: str | None = None,
    **sampling: object,
) -> Sequence:
    """A prompt that shares no block with that of another id."""
    return Sequence(
        request_id=request_id,
        token_ids=[sum(request_id.encode()) * 100 + position for position in range(num_tokens)],
        num_prompt_tokens=num_tokens,
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        arrival_time=arrival,
        priority=priority,
        part_of=part_of,
    )


def shares(batch: Batch) -> list[tuple[str, int]]:
    return [(item.sequence.request_id, item.num_tokens) for item in batch.items]


def step(scheduler: Scheduler, token_id: int = TOKEN) -> list[tuple[str, int]]:
    """One step in which every sampled token is `token_id`; returns each item's share."""
    batch = scheduler.schedule()
    scheduler.commit(batch, [SampledToken(token_id) if item.samples else None for item in batch.items])
    scheduler.blocks.check(scheduler.sequences())
    return shares(batch)


def names(sequences: list[Sequence]) -> list[str]:
    return [sequence.request_id for sequence in sequences]


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler = make_scheduler(budget=16)
    sequence = make_sequence("a", 40)
    scheduler.add(sequence)
    assert [step(scheduler) for _ in range(4)] == [[("a", 16)], [("a", 16)], [("a", 8)], [("a", 1)]]
    assert sequence.num_output_tokens == 2


def test_decodes_run_beside_a_chunk_of_another_prompt_and_come_first() -> None:
    scheduler = make_scheduler(budget=16)
    scheduler.add(make_sequence("a", 4))
    step(scheduler)
    scheduler.add(make_sequence("b", 40))
    assert step(scheduler) == [("a", 1), ("b", 15)]
    assert step(scheduler) == [("a", 1), ("b", 15)]
    assert step(scheduler) == [("a", 1), ("b", 10)]


def test_several_prompts_share_one_step() -> None:
    scheduler = make_scheduler(budget=16)
    for name in "abc":
        scheduler.add(make_sequence(name, 6))
    assert step(scheduler) == [("a", 6), ("b", 6), ("c", 4)]


def test_a_long_prompt_of_high_priority_does_not_stop_decodes() -> None:
    scheduler = make_scheduler(budget=16)
    scheduler.add(make_sequence("low", 4, priority=1))
    step(scheduler)
    scheduler.add(make_sequence("high", 40, priority=0))
    assert step(scheduler) == [("low", 1), ("high", 15)]
    assert step(scheduler) == [("low", 1), ("high", 15)]


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add(make_sequence(name, 2, max_tokens=2))
    assert step(scheduler) == [("a", 2), ("b", 2)]
    assert step(scheduler) == [("a", 1), ("b", 1)]
    assert step(scheduler) == [("c", 2)]


def test_waiting_sequences_go_by_priority_then_arrival_then_order_of_adding() -> None:
    scheduler = make_scheduler()
    for name, priority, arrival in (("late", 0, 2.0), ("tie", 0, 1.0), ("tie2", 0, 1.0), ("urgent", -1, 9.0)):
        scheduler.add(make_sequence(name, 2, priority=priority, arrival=arrival))
    assert names(scheduler.waiting) == ["urgent", "tie", "tie2", "late"]


def test_the_last_running_sequence_is_preempted_and_waits_in_front() -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=4, budget=32, max_model_len=24)
    for name in "ab":
        scheduler.add(make_sequence(name, 8))
    scheduler.add(make_sequence("c", 8))
    assert step(scheduler) == [("a", 8), ("b", 8)]
    for _ in range(4):
        assert step(scheduler) == [("a", 1), ("b", 1)]
    assert step(scheduler) == [("a", 1)]
    assert names(scheduler.waiting) == ["b", "c"]
    assert scheduler.counters.num_preemptions == 1
    assert scheduler.sequences() and scheduler.waiting[0].num_computed_tokens == 0


def test_a_preempted_sequence_goes_on_from_its_own_published_blocks() -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=4, budget=32, max_model_len=24)
    a, b = make_sequence("a", 8, max_tokens=6), make_sequence("b", 8, max_tokens=8)
    for sequence in (a, b):
        scheduler.add(sequence)
    while not b.num_preemptions:
        step(scheduler)
    while b not in scheduler.running:
        step(scheduler)
    assert a.finish_reason is FinishReason.LENGTH
    assert b.num_cached_tokens == 0, "what counts is the first admission"
    while b.finish_reason is None:
        step(scheduler)
    assert b.num_output_tokens == 8


def test_admission_leaves_room_for_the_rest_of_running_prompts() -> None:
    scheduler = make_scheduler(num_blocks=10, block_size=4, budget=16, max_model_len=40)
    scheduler.add(make_sequence("long", 24))
    scheduler.add(make_sequence("b", 16))
    assert step(scheduler) == [("long", 16)]
    assert step(scheduler) == [("long", 8)]
    assert names(scheduler.waiting) == ["b"], "4 blocks are free, but long will soon want one"
    assert scheduler.counters.num_preemptions == 0


def test_a_full_queue_rejects_and_says_how_full_it_is() -> None:
    scheduler = make_scheduler(queue=10)
    assert scheduler.add(make_sequence("a", 8)) is None
    refusal = scheduler.add(make_sequence("b", 3))
    assert refusal is not None
    assert refusal.reason is FinishReason.REJECTED
    assert "8 of 10 prompt tokens" in refusal.message
    assert scheduler.add(make_sequence("c", 2)) is None


def test_an_empty_queue_takes_one_request_of_any_length() -> None:
    scheduler = make_scheduler(queue=10)
    assert scheduler.add(make_sequence("a", 40)) is None
    assert scheduler.add(make_sequence("b", 1)) is not None
    step(scheduler)
    assert scheduler.add(make_sequence("c", 40)) is None


def test_an_empty_queue_takes_all_prompts_of_one_request() -> None:
    scheduler = make_scheduler(queue=10)
    assert [scheduler.add(make_sequence(name, 8, part_of="r")) for name in "abc"] == [None] * 3
    assert scheduler.add(make_sequence("d", 1, part_of="other")) is not None
    assert scheduler.add(make_sequence("e", 1)) is not None
    step(scheduler)
    assert names(scheduler.waiting) == ["c"]
    assert scheduler.add(make_sequence("d", 4, part_of="other")) is not None, "8 of 10 tokens wait still"
    assert scheduler.add(make_sequence("d", 2, part_of="other")) is None
    assert scheduler.add(make_sequence("f", 1, part_of="r")) is None, "the request was taken with its first part"
    later = make_sequence("later", 40, part_of="gone")
    later.num_parts_before = 7
    assert scheduler.add(later) is None, "even if all parts before it have ended"


def test_all_that_wait_are_looked_at_once_for_a_request_of_many_parts_and_not_when_they_leave() -> None:
    """Ten clients with two thousand inputs each stopped all others for half a minute."""
    num_asked = 0

    def predict_wait() -> float:
        nonlocal num_asked
        num_asked += 1
        return 0.0

    scheduler = make_scheduler(predict_wait=predict_wait)
    for client in "abc":
        for index in range(200):
            part = make_sequence(f"{client}{index}", 4, part_of=client)
            part.max_queue_seconds = 60.0
            assert scheduler.add(part) is None
    assert num_asked == 2, "nobody waited when the first came"
    waiting = scheduler.waiting
    for client in "bca":
        for index in range(200):
            assert scheduler.abort(f"{client}{index}") is not None
    assert scheduler.waiting is waiting == []


@pytest.mark.parametrize(
    ("num_tokens", "words"), [(0, "empty"), (64, "at most 63"), (1000, "1000 tokens")], ids=["empty", "no-room", "long"]
)
def test_a_prompt_that_can_never_run_ends_with_an_error(num_tokens: int, words: str) -> None:
    refusal = make_scheduler(max_model_len=64).add(make_sequence("a", num_tokens))
    assert refusal is not None
    assert refusal.reason is FinishReason.ERROR
    assert words in refusal.message


def test_one_request_never_holds_all_slots_and_others_go_ahead_of_its_later_parts() -> None:
    scheduler = make_scheduler(max_num_seqs=4, budget=64)
    for index in range(8):
        assert scheduler.add(make_sequence(f"r{index}", 1, part_of="r", max_tokens=6 + index)) is None
    assert [name for name, _ in step(scheduler)] == ["r0", "r1", "r2"]
    assert scheduler.num_held_back == 5
    assert scheduler.add(make_sequence("other", 1, part_of="other", arrival=0.1, max_tokens=2)) is None
    assert [name for name, _ in step(scheduler)][-1] == "other", "it finds a slot at once"
    for name in ("late", "later"):
        assert scheduler.add(make_sequence(name, 1, part_of=name, arrival=0.2, max_tokens=20)) is None
    names: set[str] = set()
    while "r3" not in names:
        names.update(name for name, _ in step(scheduler))
    assert {"late", "later"} <= names, "both came before the client would have sent its fourth part"
    while scheduler.sequences():
        step(scheduler)


def test_what_is_held_back_fills_the_queue_for_nobody_else() -> None:
    scheduler = make_scheduler(max_num_seqs=4, queue=10)
    for index in range(8):
        assert scheduler.add(make_sequence(f"r{index}", 4, part_of="r")) is None
    step(scheduler)
    assert scheduler.add(make_sequence("other", 8, part_of="other")) is None
    refusal = scheduler.add(make_sequence("third", 4, part_of="third"))
    assert refusal is not None and refusal.reason is FinishReason.REJECTED


def test_a_single_slot_goes_to_one_request_all_the_same() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for name in "ab":
        assert scheduler.add(make_sequence(name, 4, part_of="r", max_tokens=1)) is None
    assert [step(scheduler), step(scheduler)] == [[("a", 4)], [("b", 4)]]


def test_a_prompt_that_exceeds_the_whole_cache_ends_with_an_error() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4, max_model_len=64)
    refusal = scheduler.add(make_sequence("a", 17))
    assert refusal is not None
    assert refusal.reason is FinishReason.ERROR
    assert "at most 16" in refusal.message


def test_a_sequence_alone_ends_with_length_where_the_cache_ends() -> None:
    scheduler = make_scheduler(num_blocks=2, block_size=4, max_model_len=64, max_num_seqs=1)
    sequence = make_sequence("a", 8)
    scheduler.add(sequence)
    step(scheduler)
    assert sequence.finish_reason is FinishReason.LENGTH
    assert sequence.num_output_tokens == 1


def test_abort_frees_waiting_and_running_sequences_at_once() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    running, waiting = make_sequence("a", 8), make_sequence("b", 8)
    scheduler.add(running)
    scheduler.add(waiting)
    step(scheduler)
    assert scheduler.abort("b") is waiting
    assert scheduler.abort("a") is running
    assert running.finish_reason is waiting.finish_reason is FinishReason.ABORT
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
    assert not scheduler.sequences()
    assert not scheduler.waiting + scheduler.running
    assert scheduler.abort("a") is None


def finish(sequence: Sequence, tokens: list[int]) -> FinishReason | None:
    """Feeds sampled tokens until the sequence ends; returns why."""
    scheduler = make_scheduler()
    scheduler.add(sequence)
    for token_id in tokens:
        if sequence.finish_reason is None:
            step(scheduler, token_id)
    return sequence.finish_reason


def test_max_tokens_ends_with_length() -> None:
    sequence = make_sequence("a", 4, max_tokens=3)
    assert finish(sequence, [TOKEN] * 9) is FinishReason.LENGTH
    assert sequence.num_output_tokens == 3


def test_the_context_limit_ends_with_length() -> None:
    sequence = make_sequence("a", 60)
    assert finish(sequence, [TOKEN] * 20) is FinishReason.LENGTH
    assert sequence.num_tokens == 64


def test_an_end_of_sequence_token_ends_with_stop_and_is_kept() -> None:
    sequence = make_sequence("a", 4)
    assert finish(sequence, [TOKEN, EOS]) is FinishReason.STOP
    assert sequence.token_ids[sequence.num_prompt_tokens :] == [TOKEN, EOS]


def test_ignore_eos_goes_on_but_stop_tokens_still_stop() -> None:
    sequence = make_sequence("a", 4, ignore_eos=True, stop_token_ids=(9,))
    assert finish(sequence, [EOS, TOKEN, 9, TOKEN]) is FinishReason.STOP
    assert sequence.token_ids[sequence.num_prompt_tokens :] == [EOS, TOKEN, 9]


def test_min_tokens_holds_back_every_stop() -> None:
    sequence = make_sequence("a", 4, min_tokens=3, stop_token_ids=(9,))
    assert finish(sequence, [EOS, 9, EOS, TOKEN]) is FinishReason.STOP
    assert sequence.num_output_tokens == 3


def test_a_stop_token_on_the_last_allowed_place_is_a_stop() -> None:
    assert finish(make_sequence("a", 4, max_tokens=2), [TOKEN, EOS]) is FinishReason.STOP


def test_a_cached_prefix_is_skipped_and_counted_once() -> None:
    scheduler = make_scheduler()
    first = make_sequence("a", 12, max_tokens=1)
    scheduler.add(first)
    step(scheduler)
    again = make_sequence("a", 12, max_tokens=1)
    scheduler.add(again)
    assert step(scheduler) == [("a", 4)]
    assert again.num_cached_tokens == 8
    assert again.first_scheduled_time == 7.0
    assert (scheduler.counters.prefix_query_tokens, scheduler.counters.prefix_hit_tokens) == (24, 8)


def test_a_runner_that_samples_in_the_wrong_place_is_caught() -> None:
    scheduler = make_scheduler(budget=4)
    scheduler.add(make_sequence("a", 8))
    batch = scheduler.schedule()
    with pytest.raises(AssertionError, match="sample exactly"):
        scheduler.commit(batch, [SampledToken(TOKEN)])


def test_a_table_that_drafts_made_longer_than_needed_promises_nobody_a_block() -> None:
    slots = DecodingSlots(2, block_size=4)
    for slot, num_blocks in enumerate((9, 1)):
        sequence = make_sequence(f"s{slot}", 3)
        sequence.slot, sequence.block_table, sequence.max_num_tokens = slot, list(range(num_blocks)), 100
        slots.begin(sequence, 3)
    assert slots.num_reserved_blocks() == 1
