"""An engine in virtual time takes its limits and costs from a profile."""

import pytest

from fairlead.routing.predictor import prefill_context, step_seconds
from fairlead.simulator.engine_model import EngineModel, ModelSequence
from fairlead_common.messages import StepCost
from fairlead_common.profiles import BatchWeight
from fairlead_engine_testing import FakeRunner
from fairlead_engine_testing.profiles import profile_of

COST = StepCost(base=0.01, prefill_step=0.002, prefill_token=0.001, prefill_context=1e-6, decode_seq=0.003)


def engine_of(most: int) -> EngineModel:
    weight = BatchWeight(most=most, by_memory=most, request_weight=10)
    return EngineModel.of_profile(profile_of(FakeRunner(), block_size=4, cost=COST, max_batch_weight=weight))


def test_steps_take_what_the_profile_says() -> None:
    engine = engine_of(256)
    engine.add(ModelSequence(num_prompt_tokens=20, max_tokens=3))
    step = engine.begin_step()
    assert step is not None
    prefill = step_seconds(COST, running=0, kv_tokens=0, prefill_tokens=20, prefill_context=prefill_context(0, 20))
    assert step.seconds == pytest.approx(prefill)
    load = engine.load()
    assert (load.step_cost, load.token_budget, load.max_num_seqs, load.kv_blocks_total) == (COST, 32, 8, 64)


@pytest.mark.parametrize(("most", "together"), [(256, 3), (25, 2), (1, 1)])
def test_as_many_run_at_once_as_the_batch_weight_allows(most: int, together: int) -> None:
    engine = engine_of(most)
    for _ in range(3):
        engine.add(ModelSequence(num_prompt_tokens=8, max_tokens=4))
    engine.begin_step()
    assert len(engine.running) == together
