"""What a load tells of running sequences is counted as they go: it is what looking at each of them would find."""

import random

import pytest

from fairlead_engine.core.engine import Engine
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config
from fairlead_engine_testing.fake_runner import BYTES_PER_SLOT

MODEL = FakeModelConfig(vocab_size=50, max_position_embeddings=64, eos_token_ids=(7,))


def figures(engine: Engine) -> tuple[int, int, int]:
    """Tokens in the cache, tokens of prompts, and requests held back, one sequence after the other."""
    scheduler = engine.scheduler
    left = [each.num_tokens - each.num_computed_tokens for each in scheduler.running]
    queued = sum(each.num_tokens - each.num_expected_cached_tokens for each in scheduler.waiting)
    parts = [each.part_of for each in scheduler.sequences() if each.part_of is not None]
    return (
        sum(each.num_computed_tokens for each in scheduler.running),
        queued + sum(number for number in left if number > 1),
        sum(max(0, parts.count(part) - scheduler.max_num_parts) for part in set(parts)),
    )


@pytest.mark.parametrize("is_async", [False, True], ids=["one-at-a-time", "async"])
@pytest.mark.parametrize("num_blocks", [16, 64], ids=["preempting", "roomy"])
def test_a_load_tells_what_is_there(is_async: bool, num_blocks: int) -> None:
    config = fake_config(
        async_scheduling=is_async, block_size=4, kv_cache_memory=num_blocks * 4 * BYTES_PER_SLOT, max_num_seqs=4,
        max_num_batched_tokens=16, max_num_queued_tokens=10**6,
    )  # fmt: skip
    engine = Engine(config, FakeRunner(MODEL, block_size=4))
    rng = random.Random(num_blocks)
    seen = []
    for number in range(40):
        part_of = rng.choice([None, "a", "b"])
        prompt = [rng.randrange(8, 50) for _ in range(rng.randint(1, 30))]
        engine.add(make_request(f"r{number}", prompt, max_tokens=rng.randint(1, 20), part_of=part_of))
        if rng.random() < 0.2:
            engine.abort(f"r{rng.randrange(number + 1)}")
        for _ in range(rng.randint(0, 3)):
            engine.step()
            engine.check()
            load = engine.load
            seen.append((load.kv_tokens, load.queued_prefill_tokens, load.held_back))
            assert seen[-1] == figures(engine)
    assert all(any(column) for column in zip(*seen, strict=True)), "each of them has been there"
    assert (engine.load.num_preemptions > 0) == (num_blocks == 16)
