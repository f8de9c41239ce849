"""What a step did to the reusable blocks is collected once, and the core loop sends it with that step."""

import pytest

from fairlead_common.wire.blocks import ROOT, hash_blocks
from fairlead_engine.core.loop import BlockChanges, run_core
from fairlead_engine.core.messages import Add, BlocksChanged
from fairlead_engine_testing import make_request
from fairlead_engine_testing.fake_engine import fake_config, make_fake_engine
from fairlead_engine_testing.played_channel import PlayedChannel

A, B, C = hash_blocks(range(12), 4)


def test_what_was_taken_is_not_told_again() -> None:
    changes = BlockChanges()
    assert changes.take() is None
    changes.removed(C)
    changes.stored(ROOT, [A, B])
    assert changes.take() == BlocksChanged([(ROOT, [A, B])], [C])
    assert changes.take() is None


def test_an_eviction_of_a_chain_stored_in_the_same_step_is_a_defect() -> None:
    changes = BlockChanges()
    changes.stored(ROOT, [A, B])
    with pytest.raises(AssertionError, match="evicted in the step"):
        changes.removed(B)


def test_what_a_state_made_usable_and_lost_in_the_same_step_is_not_told() -> None:
    changes = BlockChanges()
    changes.stored(ROOT, [A])
    changes.removed(C)
    changes.stored(A, [B])
    changes.removed(B)
    assert changes.take() == BlocksChanged([(ROOT, [A])], [C])


def test_each_report_carries_its_own_changes_and_most_carry_none() -> None:
    add = Add(make_request("a", range(9), max_tokens=5, ignore_eos=True))
    channel = PlayedChannel([add], [], [], [], [])
    assert run_core(lambda: make_fake_engine(fake_config()), channel)
    prompt = hash_blocks(range(9), 4)
    first, *others = [step.changed for step in channel.steps()]
    assert first == BlocksChanged([(ROOT, prompt)], [])
    assert [changed is None for changed in others] == [True, True, False, True]
    assert others[2] is not None and others[2].stored[0][0] == prompt[-1]
