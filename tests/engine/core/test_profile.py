"""Profiles: the fit finds the costs that made the steps, an engine begins with them, and admits by the batch weight."""

import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_common.wire import messages
from fairlead_common.wire.profiles import write_profile
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.profile import batch_weight, fit, prior, step_seconds
from fairlead_engine.core.scheduler import SchedulerLimits
from fairlead_engine.core.step_cost import StepCostModel, StepWork
from fairlead_engine.errors import ConfigError
from fairlead_engine_testing import FakeClock, FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config
from fairlead_engine_testing.profiles import profile_of

MODEL = FakeModelConfig(vocab_size=50, max_position_embeddings=64, eos_token_ids=())
COST = messages.StepCost(
    base=3e-3, prefill_step=2e-3, prefill_token=2e-4, prefill_context=1e-7, decode_seq=5e-4, kv_token=2e-6, residual=0.1
)
costs = st.builds(
    messages.StepCost,
    base=st.floats(1e-5, 1.0),
    prefill_step=st.floats(0, 1.0),
    prefill_token=st.floats(0, 1e-2),
    prefill_context=st.floats(0, 1e-5),
    decode_seq=st.floats(0, 1e-1),
    kv_token=st.floats(0, 1e-4),
)


def works(draw: random.Random) -> list[StepWork]:
    """Steps as engines run them."""
    found = []
    for _ in range(60):
        seqs, tokens = draw.randint(1, 32), draw.randint(2, 512)
        found.append(StepWork(1, 0, 0, 0, seqs, seqs * draw.randint(1, 2000)))
        found.append(StepWork(1, 1, tokens, tokens * draw.randint(1, 2000), seqs - 1, (seqs - 1) * 100))
    return found


@settings(max_examples=40, deadline=None)
@given(cost=costs, seed=st.integers(0, 2**16))
def test_the_fit_recovers_the_costs_that_made_the_steps(cost: messages.StepCost, seed: int) -> None:
    # A microsecond is nothing to a step, and all there is of some beside others that take a second.
    steps = [(work, step_seconds(cost, work)) for work in works(random.Random(seed))]
    found, error = fit(steps)
    assert error.p90 < 1e-3 and found.residual == error.median
    assert error.num_steps == len(steps) // 5
    for work, took in steps:
        assert step_seconds(found, work) == pytest.approx(took, rel=1e-3, abs=1e-6)


def test_the_error_is_that_of_steps_the_fit_has_not_seen() -> None:
    """With noise, it is about as large as the noise."""
    draw = random.Random(0)
    found, error = fit([(work, step_seconds(COST, work) * draw.uniform(0.8, 1.2)) for work in works(draw)])
    assert 0.05 < error.median < 0.15 < error.p90 < 0.25
    assert found.base == pytest.approx(COST.base, rel=0.3)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="3 steps are too few"):
        fit([(StepWork(1, 0, 0, 0, 1, 1), 1.0)] * 3)


@settings(max_examples=40, deadline=None)
@given(
    cost=costs,
    seqs=st.integers(1, 256),
    more=st.integers(0, 8192),
    longest=st.integers(2, 131072),
)
def test_a_step_cost_that_begins_with_a_profile_predicts_what_the_profile_does(
    cost: messages.StepCost, seqs: int, more: int, longest: int
) -> None:
    limits = SchedulerLimits(
        max_model_len=longest, max_num_seqs=seqs, max_num_batched_tokens=seqs + more, max_num_queued_tokens=1
    )
    begun = StepCostModel()
    begun.set_prior(prior(cost, limits), 0.25)
    assert begun.coefficients["residual"] == 0.25
    for work in (StepWork(1, 0, 0, 0, seqs, seqs * longest), StepWork(1, 1, seqs + more, (seqs + more) ** 2 / 2, 0, 0)):
        assert begun.predict(work) == pytest.approx(step_seconds(cost, work), rel=1e-2, abs=1e-6)


def make_engine(folder: Path, runner: FakeRunner | None = None, **changes: Any) -> Engine:
    runner = runner or FakeRunner(MODEL)
    path = folder / "profile.json"
    write_profile(profile_of(runner, block_size=4, cost=COST, **changes), path)
    return Engine(fake_config(profile=str(path)), runner, FakeClock())


def test_an_engine_with_a_profile_publishes_its_costs_before_any_request(tmp_path: Path) -> None:
    told = make_engine(tmp_path).load.step_cost
    for name in COST.__struct_fields__:
        assert getattr(told, name) == pytest.approx(getattr(COST, name), rel=1e-3), name
    without = Engine(fake_config(), FakeRunner(MODEL), FakeClock())
    assert not without.load.step_cost.is_known, "this clock stands still: the warm-up teaches nothing"


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("architecture", "OtherForCausalLM"), ("num_parameters", 7), ("vocab_size", 51),
        ("kv_bytes_per_token", 1), ("weight_bytes", 2), ("quantization", "fp8"),
        ("kv_cache_dtype", "int8"),
        ("dtype", "bfloat16"), ("device", "cuda"), ("device_name", "another processor"),
    ],
)  # fmt: skip
def test_a_profile_of_something_else_is_refused_by_the_field(tmp_path: Path, field: str, other: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        make_engine(tmp_path, **{field: other})
    assert f"was measured with {field} {other}, and this engine has " in refused.value.message
    assert refused.value.field == "profile" and "leave --profile out" in refused.value.message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"{", "is no engine profile"),
        (b"\xff", "is no engine profile"),
        (b"{}", "missing required field `model`"),
        (b'{"step_cost": {"base": -1}}', "Expected `float` >= 0.0 - at `$.step_cost.base`"),
        (b'{"step_cost": {"base": 1e300}}', "- at `$.step_cost.base`"),
        (b'{"num_parameters": 1' + b"0" * 400 + b"}", "Expected `int` <= 9007199254740992 - at `$.num_parameters`"),
        (b'{"other": ' + b"[" * 100_000, "is no engine profile: maximum recursion depth exceeded"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        Engine(fake_config(profile=str(path)), FakeRunner(MODEL), FakeClock())
    assert says in refused.value.message and str(path) in refused.value.message


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e9])
def test_costs_that_no_computer_has_teach_nothing_that_is_no_number(tmp_path: Path, size: float) -> None:
    cost = messages.StepCost(
        **{name: size for name in COST.__struct_fields__ if name not in ("residual", "tokens_per_decode")}
    )
    write_profile(profile_of(FakeRunner(MODEL), block_size=4, cost=cost), tmp_path / "profile.json")
    engine = Engine(fake_config(profile=str(tmp_path / "profile.json")), FakeRunner(MODEL), FakeClock())
    assert all(math.isfinite(getattr(engine.load.step_cost, name)) for name in COST.__struct_fields__)


def test_a_profile_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has profile_version 2, not 1"):
        make_engine(tmp_path, profile_version=2)


@pytest.mark.parametrize("target", [None, 1e-9, 4e-3, 6e-3, 1.0])
def test_the_batch_weight_is_the_greatest_that_keeps_both_bounds(target: float | None) -> None:
    found = batch_weight(COST, cache_tokens=2000, max_num_seqs=6, request_weight=100, tpot_target=target)

    def keeps(weight: int) -> bool:
        num_seqs = min(6, -(-weight // 100))
        step = step_seconds(COST, StepWork(1, 0, 0, 0, num_seqs, weight))
        return weight <= 2000 and (target is None or step <= target or weight <= 100)

    assert found.most == max(weight for weight in range(1, 3000) if keeps(weight))
    assert found.by_memory == 2000
    assert (found.by_tpot is None) == (target is None)


def weighing(folder: Path, most: int) -> Engine:
    weight = batch_weight(COST, cache_tokens=most, max_num_seqs=8, request_weight=10, tpot_target=None)
    return make_engine(folder, max_batch_weight=weight)


def test_no_more_runs_at_once_than_the_batch_weight_allows(tmp_path: Path) -> None:
    """40 tokens: three requests of 12, and not a fourth, though there are slots and blocks for eight."""
    engine = weighing(tmp_path, 40)
    for number in range(8):
        assert engine.add(make_request(str(number), prompt=[number] * 8, max_tokens=4)) is None
    finished, widest = 0, 0
    while engine.has_work():
        outputs = engine.step()
        engine.check()
        assert engine.load.max_num_seqs == 3 or not engine.has_work(), "gateways hold what would only wait here"
        widest = max(widest, len(outputs))
        finished += sum(output.finish_reason is not None for output in outputs)
    assert (finished, widest) == (8, 3)
    assert engine.load.max_num_seqs == 8


def test_a_request_above_the_batch_weight_runs_alone(tmp_path: Path) -> None:
    engine = weighing(tmp_path, 20)
    engine.add(make_request("long", prompt=[1] * 20, max_tokens=10))
    engine.add(make_request("short", prompt=[2] * 4, max_tokens=2))
    ended = []
    while engine.has_work():
        outputs = engine.step()
        assert len(outputs) <= 1
        ended += [output.request_id for output in outputs if output.finish_reason is not None]
    assert ended == ["long", "short"]


def test_who_says_no_length_weighs_what_others_generate(tmp_path: Path) -> None:
    """Without `max_tokens` a request could fill the context of 64; by then 10 tokens are usual, so two fit 40."""
    engine = weighing(tmp_path, 40)
    engine.scheduler.mean_output_tokens = 10.0
    for number in range(3):
        engine.add(make_request(str(number), prompt=[number] * 8, max_tokens=None, stop_token_ids=list(range(50))))
    assert len(engine.step()) == 2


def test_requests_that_wait_for_weight_are_foreseen_to_wait(tmp_path: Path) -> None:
    """The wait that clients are told is that for a slot which the weight leaves, not for one of eight."""
    engine = weighing(tmp_path, 12)
    for number in range(3):
        engine.add(make_request(str(number), prompt=[number] * 8, max_tokens=4))
    engine.step()
    assert engine.predicted_wait > 3 * engine.scheduler.mean_output_tokens * COST.base


def test_profiles_are_written_as_they_are_read(tmp_path: Path) -> None:
    from fairlead_common.wire.profiles import read_profile

    profile = profile_of(FakeRunner(MODEL), block_size=4, cost=COST)
    write_profile(profile, tmp_path / "new folder" / "profile.json")
    assert read_profile(tmp_path / "new folder" / "profile.json") == profile
    assert msgspec.json.decode((tmp_path / "new folder" / "profile.json").read_bytes())["step_cost"]["base"] == 3e-3
