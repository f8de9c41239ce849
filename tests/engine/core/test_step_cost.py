"""The step-cost model finds the coefficients that made the data, and stays sensible where there is no data."""

import random

import numpy as np
import pytest

from fairlead_engine.core.step_cost import StepCostModel, StepWork, solve_nonnegative
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import ScheduledSequence, Sequence

TRUE = StepWork(base=3e-3, prefill_step=2e-3, prefill_token=2e-4, prefill_context=1e-7, decode_seq=5e-4, kv_token=2e-6)


def item(start: int, num_tokens: int) -> ScheduledSequence:
    sequence = Sequence(
        "s", [1] * (start + num_tokens), start + num_tokens, SamplingParams(), num_computed_tokens=start
    )
    return ScheduledSequence(sequence, num_tokens)


def seconds(batch: Batch) -> float:
    return sum(cost * amount for cost, amount in zip(TRUE, StepWork.of(batch), strict=True))


def random_batch(rng: random.Random, *, prefill: bool = True) -> Batch:
    decodes = [item(rng.randint(10, 2000), 1) for _ in range(rng.randint(1, 16))]
    chunks = [item(rng.randint(0, 1000), rng.randint(2, 512))] if prefill and rng.random() < 0.5 else []
    return Batch(decodes + chunks)


def learn(cost: StepCostModel, num_steps: int, *, noise: float = 0.0, prefill: bool = True, seed: int = 0) -> None:
    rng = random.Random(seed)
    for _ in range(num_steps):
        batch = random_batch(rng, prefill=prefill)
        cost.observe(batch, seconds(batch) * rng.uniform(1 - noise, 1 + noise))


def test_work_counts_tokens_contexts_and_sequences() -> None:
    work = StepWork.of(Batch([item(9, 1), item(19, 1), item(4, 3)]))
    assert work == StepWork(
        base=1, prefill_step=1, prefill_token=3, prefill_context=4 + 5 + 6, decode_seq=2, kv_token=10 + 20
    )


def test_exact_data_give_the_exact_coefficients() -> None:
    cost = StepCostModel()
    learn(cost, 320)
    found = cost.coefficients
    for name, true in TRUE._asdict().items():
        assert found[name] == pytest.approx(true, rel=1e-3), name
    assert found["residual"] < 0.05


def test_noisy_data_give_good_predictions() -> None:
    cost = StepCostModel()
    learn(cost, 640, noise=0.1)
    rng = random.Random(1)
    for _ in range(50):
        batch = random_batch(rng)
        assert cost.predict(StepWork.of(batch)) == pytest.approx(seconds(batch), rel=0.1)
    assert 0.02 < cost.coefficients["residual"] < 0.15


def test_coefficients_follow_a_machine_that_becomes_slower() -> None:
    cost = StepCostModel(half_life=64)
    learn(cost, 320)
    rng = random.Random(2)
    for _ in range(640):
        batch = random_batch(rng)
        cost.observe(batch, 3 * seconds(batch))
    assert cost.coefficients["prefill_token"] == pytest.approx(3 * TRUE.prefill_token, rel=0.05)


def test_no_coefficient_is_ever_negative() -> None:
    cost = StepCostModel(solve_every=1)
    rng = random.Random(3)
    for _ in range(200):
        cost.observe(random_batch(rng), rng.uniform(1e-4, 1e-1))
        assert all(value >= 0.0 for value in cost.coefficients.values())


def test_the_prior_keeps_a_cost_for_work_the_load_lacks() -> None:
    cost = StepCostModel()
    prefill = Batch([item(0, 256)])
    cost.set_prior([(StepWork.of(prefill), seconds(prefill)), (StepWork.of(Batch([item(0, 16)])), 0.007)])
    learn(cost, 2000, prefill=False)
    assert cost.predict(StepWork.of(prefill)) == pytest.approx(seconds(prefill), rel=0.2)


def test_one_step_that_something_else_delayed_hardly_matters() -> None:
    cost = StepCostModel()
    learn(cost, 320)
    cost.observe(Batch([item(100, 1)]), 30.0)
    learn(cost, 16, seed=5)
    assert cost.coefficients["decode_seq"] == pytest.approx(TRUE.decode_seq, rel=0.02)


def test_decodes_do_not_wear_away_what_prompts_have_taught() -> None:
    cost = StepCostModel()
    learn(cost, 320)
    learn(cost, 5000, prefill=False)
    prefill = Batch([item(500, 300)])
    assert cost.predict(StepWork.of(prefill)) == pytest.approx(seconds(prefill), rel=0.01)


def test_a_busy_neighbour_slows_the_prediction_of_prompts_that_were_not_seen_since() -> None:
    cost = StepCostModel()
    learn(cost, 320)
    rng = random.Random(4)
    for _ in range(100):
        batch = random_batch(rng, prefill=False)
        cost.observe(batch, 2 * seconds(batch))
    prefill = Batch([item(500, 300)])
    assert cost.predict(StepWork.of(prefill)) > 1.4 * seconds(prefill)


def test_empty_and_timeless_steps_teach_nothing() -> None:
    cost = StepCostModel(solve_every=1)
    cost.observe(Batch([]), 1.0)
    cost.observe(Batch([item(0, 8)]), 0.0)
    cost.set_prior([])
    assert cost.coefficients == {}


def brute_force(rows: np.ndarray, target: np.ndarray) -> float:
    """The smallest squared error over all subsets of columns whose least-squares solution is not negative."""
    best = float(target @ target)
    for mask in range(1, 2 ** rows.shape[1]):
        columns = [index for index in range(rows.shape[1]) if mask >> index & 1]
        solution = np.linalg.lstsq(rows[:, columns], target, rcond=None)[0]
        if (solution >= 0).all():
            best = min(best, float(np.sum((rows[:, columns] @ solution - target) ** 2)))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_solver_finds_the_best_nonnegative_solution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(12, 5)) * np.array([1.0, 100.0, 1e4, 1.0, 50.0])
    target = rng.normal(size=12)
    found = solve_nonnegative(rows.T @ rows, rows.T @ target)
    assert (found >= 0).all()
    assert np.sum((rows @ found - target) ** 2) == pytest.approx(brute_force(rows, target), rel=1e-6)


def test_a_token_of_a_sequence_with_drafts_is_a_decode() -> None:
    sequence = Sequence("s", [1] * 10, 5, SamplingParams(), num_computed_tokens=9)
    drafted = ScheduledSequence(sequence, 3, drafts=[4, 5])
    assert StepWork.of(Batch([drafted])) == StepWork(1, 0, 0, 0, decode_seq=3, kv_token=10 + 11 + 12)
