"""Blocks that the device has no room for are kept in the host's memory, and come back for who begins with them."""

from typing import Any

import pytest

from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import BlockChanges
from fairlead_engine.errors import ConfigError
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.checked_steps import run_checked
from fairlead_engine_testing.fake_engine import fake_config
from fairlead_engine_testing.fake_runner import BYTES_PER_SLOT

LONG, OTHER = list(range(1, 25)), list(range(30, 54))  # six blocks each, where the device has eight


def make_engine(looks: int = 1) -> Engine:
    runner = FakeRunner(FakeModelConfig(eos_token_ids=()), block_size=4)
    runner.load_looks = looks
    return Engine(fake_config(num_blocks=8, max_model_len=32, host_kv_cache_memory=64 * BYTES_PER_SLOT), runner)


def ask(engine: Engine, name: str, prompt: list[int], **fields: Any) -> None:
    assert engine.add(make_request(name, prompt, max_tokens=2, **fields)) is None


def make_full_engine() -> Engine:
    """What was computed first is in the host's memory, and takes four looks to load."""
    engine = make_engine(looks=4)
    for name, prompt in (("a", LONG), ("b", OTHER)):
        ask(engine, name, prompt)
        run_checked(engine)
    return engine


def test_what_was_evicted_is_not_computed_again() -> None:
    engine = make_engine()
    changes = engine.blocks.listener = BlockChanges()
    removed = []
    for name, prompt in (("a", LONG), ("b", OTHER), ("c", LONG)):
        ask(engine, name, prompt)
        outputs = run_checked(engine)
        changed = changes.take()
        removed += [] if changed is None else changed.removed
    assert outputs[0].num_cached_tokens == 20, "the last of six is computed in any case"
    assert engine.load.num_blocks_loaded == 4, "the fifth was still on the device"
    assert not removed, "whoever follows the blocks is told of none as lost"


def test_who_waits_for_blocks_to_be_loaded_is_passed() -> None:
    engine = make_full_engine()
    ask(engine, "again", LONG, arrival_time=1.0)
    ask(engine, "short", [7, 8], arrival_time=2.0)
    first = [output.request_id for output in run_checked(engine)]
    assert first.index("short") < first.index("again")


def test_a_request_that_leaves_while_its_blocks_are_loaded_leaves_nothing_behind() -> None:
    engine = make_full_engine()
    ask(engine, "again", LONG)
    engine.step()
    assert engine.blocks.host.loads
    engine.abort("again")
    for _ in range(4):
        assert engine.recheck()
    assert engine.blocks.num_free == engine.blocks.num_blocks


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"host_kv_cache_memory": 100}, "100 is less than the 256 bytes of one block"),
        ({"host_kv_cache_memory": 2**20, "enable_prefix_caching": False}, "prefixes are not cached"),
    ],
)
def test_a_tier_that_could_hold_nothing_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"host-kv-cache-memory: .*{says}"):
        Engine(fake_config(**settings), FakeRunner(block_size=4))
