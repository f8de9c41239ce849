"""The engine as a whole, on a fake runner: what goes in, what comes out, what it reports."""

from pathlib import Path

import msgspec
import pytest

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import BlockChanges
from fairlead_engine.core.step_cost import StepWork
from fairlead_engine.errors import KVCacheTooSmall
from fairlead_engine.host.engine_stream import KVMirror
from fairlead_engine.types import NO_LOAD, FinishReason, SequenceOutput
from fairlead_engine_testing import FakeClock, FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.checked_steps import run_checked
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.fake_engine import fake_config
from fairlead_engine_testing.tiny_families.dense import llama_fields

MODEL = FakeModelConfig(vocab_size=50, max_position_embeddings=64, eos_token_ids=())


def make_engine(clock: FakeClock | None = None, **changes: object) -> tuple[Engine, FakeRunner]:
    runner = FakeRunner(MODEL)
    engine = Engine(fake_config(**changes), runner, clock or FakeClock())  # type: ignore[arg-type]
    return engine, runner


def test_info_reports_what_was_settled_at_start() -> None:
    engine, _ = make_engine(num_blocks=32)
    info = engine.info
    assert (info.max_model_len, info.block_size, info.num_kv_blocks) == (64, 4, 32)
    assert (info.max_num_seqs, info.max_num_batched_tokens, info.vocab_size) == (8, 32, 50)
    assert info.kv_cache_bytes == engine.config.kv_cache_memory
    assert info.architecture == "FakeForCausalLM"


def test_a_cache_that_the_machine_has_no_memory_for_is_refused_by_the_setting(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields())
    config = EngineConfig(model=str(folder), device="cpu", kv_cache_memory=2**60)
    with pytest.raises(KVCacheTooSmall, match=r"no 1073741824 GiB can be had for the KV cache; lower kv-cache-memory"):
        Engine(config)


def test_a_real_prefill_and_decode_run_before_the_engine_is_there() -> None:
    engine, runner = make_engine()
    assert any((0, 32) in batch for batch in runner.batches), "a prefill of the whole budget"
    assert any(all(num_tokens == 1 for _, num_tokens in batch) for batch in runner.batches)
    assert set(runner.forgotten) == {f"warm-up-{index}" for index in range(4)}
    assert engine.load == msgspec.structs.replace(
        NO_LOAD, kv_blocks_free=64, kv_blocks_total=64, token_budget=32, max_num_seqs=8
    )


@pytest.mark.parametrize("max_model_len", [2, 3, 5, 64])
@pytest.mark.parametrize("block_size", [1, 16])
def test_warm_up_fits_the_smallest_cache_that_is_allowed(max_model_len: int, block_size: int) -> None:
    num_blocks = -(-max_model_len // block_size)
    runner = FakeRunner(MODEL, block_size=block_size)
    config = fake_config(num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len)
    engine = Engine(config, runner, FakeClock())
    engine.add(make_request(prompt=[1]))
    assert run_checked(engine)[-1].finish_reason is FinishReason.LENGTH


def test_a_cache_too_small_for_one_sequence_is_an_error_at_start() -> None:
    with pytest.raises(KVCacheTooSmall, match="at most 12"):
        make_engine(num_blocks=3)


def test_outputs_carry_each_new_token_and_end_with_a_reason() -> None:
    engine, runner = make_engine()
    engine.add(make_request("a", [5, 6, 7], max_tokens=3))
    outputs = run_checked(engine)
    assert [output.new_token_ids for output in outputs] == [[token] for token in runner.generate([5, 6, 7], 3)]
    assert [output.finish_reason for output in outputs] == [None, None, FinishReason.LENGTH]
    assert runner.forgotten[-1] == "a"


def test_the_first_output_says_when_it_was_scheduled_and_what_was_cached() -> None:
    clock = FakeClock(now=500.0)
    engine, _ = make_engine(clock)
    for arrival in (1.0, 2.0):
        clock.advance(10.0)
        engine.add(make_request(f"at-{arrival}", range(9), arrival_time=arrival, max_tokens=2))
        first, second = run_checked(engine)
    assert (first.first_scheduled_time, second.first_scheduled_time) == (520.0, None)
    assert first.num_cached_tokens == second.num_cached_tokens == 8


def test_logprobs_come_with_their_tokens_when_asked_for() -> None:
    engine, _ = make_engine()
    engine.add(make_request("with", [1, 2], max_tokens=1, logprobs=0))
    engine.add(make_request("without", [1, 2], max_tokens=1))
    with_logprobs, without = run_checked(engine)
    assert with_logprobs.logprobs is not None
    assert with_logprobs.logprobs[0].token_id == with_logprobs.new_token_ids[0]
    assert without.logprobs is None


def test_a_stop_token_is_named() -> None:
    engine, runner = make_engine()
    stop = runner.generate([1, 2, 3], 2)[1]
    engine.add(make_request(prompt=[1, 2, 3], stop_token_ids=(stop,)))
    last = run_checked(engine)[-1]
    assert (last.finish_reason, last.stop_token_id, last.new_token_ids) == (FinishReason.STOP, stop, [stop])


@pytest.mark.parametrize(
    ("prompt", "stops", "words"),
    [([], (), "empty"), ([1, 50], (), "token id 50"), ([-1], (), "token id -1"), ([1], (99,), "token id 99")],
)
def test_a_bad_request_ends_with_an_error_and_a_sentence(prompt: list[int], stops: tuple[int, ...], words: str) -> None:
    engine, _ = make_engine()
    output = engine.add(make_request("bad", prompt, stop_token_ids=stops))
    assert output is not None
    assert (output.request_id, output.finish_reason) == ("bad", FinishReason.ERROR)
    assert words in (output.message or "")
    assert not engine.has_work()


def test_a_request_without_finite_logits_ends_alone_and_leaves_nothing_to_reuse() -> None:
    engine, runner = make_engine()
    changes = engine.blocks.listener = BlockChanges()
    shared, spoilt = list(range(8)), {"spoilt"}
    runner.is_spoilt = lambda sequence: sequence.request_id in spoilt and sequence.num_output_tokens == 5
    engine.add(make_request("twin", shared + [9], max_tokens=12))
    engine.add(make_request("spoilt", shared + [10] * 5, max_tokens=12))
    mirror = KVMirror()
    outputs = []
    while engine.has_work():
        outputs += engine.step()
        engine.check()
        if (changed := changes.take()) is not None:
            mirror.apply(changed)
        assert mirror.hashes() == engine.blocks.published()
    ends = {output.request_id: output for output in outputs if output.finish_reason is not None}
    assert ends["spoilt"].finish_reason is FinishReason.ERROR
    assert "logits that are not finite" in str(ends["spoilt"].message)
    assert ends["twin"].finish_reason is FinishReason.LENGTH
    tokens = [token for output in outputs if output.request_id == "twin" for token in output.new_token_ids]
    assert tokens == runner.generate([*shared, 9], 12)
    assert "spoilt" in runner.forgotten
    spoilt.clear()
    engine.blocks.listener = None
    engine.add(make_request("again", shared + [10] * 5, max_tokens=3))
    assert run_checked(engine)[0].num_cached_tokens == 0, "nothing that it was computed from is trusted"


def test_later_parts_of_anothers_request_are_no_reason_to_refuse_one() -> None:
    """They are passed: of each only as many count as its client would have sent by now."""
    clock = FakeClock()
    engine = Engine(fake_config(max_num_seqs=8), TickingRunner(clock), clock)
    for client in "abcd":
        for index in range(500):
            part = make_request(f"{client}{index}", [ord(client) // 50, index // 50, index % 50, 1], max_tokens=10)
            part = msgspec.structs.replace(part, part_of=client, arrival_time=clock.now(), max_queue_seconds=1.0)
            assert engine.add(part) is None
    assert engine.predicted_wait < 0.1
    other = make_request("other", [7, 8], max_tokens=1)
    other = msgspec.structs.replace(other, arrival_time=clock.now(), max_queue_seconds=1.0)
    assert engine.add(other) is None
    assert engine.predicted_wait < 0.1
    for _ in range(60):
        if any(output.request_id == "other" for output in engine.step()):
            return
    raise AssertionError("it was not computed before most parts of others")


def test_who_asks_the_engine_itself_waits_as_long_as_it_may() -> None:
    """One slot, steps of 1 ms per token, answers of 10 tokens: each that waits costs its prompt and 10 ms."""
    clock = FakeClock()
    engine = Engine(fake_config(max_num_seqs=1, max_num_queued_tokens=4), TickingRunner(clock), clock)

    def add(name: str, max_queue_seconds: float | None) -> SequenceOutput | None:
        request = make_request(name, [ord(name) // 50, ord(name) % 50] * 4, max_tokens=10)
        return engine.add(msgspec.structs.replace(request, max_queue_seconds=max_queue_seconds))

    for name in map(chr, range(65, 165)):
        assert add(name, 0.0) is None, "an empty queue takes any request"
        run_checked(engine)
    assert engine.predicted_wait == 0.0
    taken = [add(name, 0.2) is None for name in map(chr, range(200, 240))]
    num_taken = sum(taken)
    assert taken == [True] * num_taken + [False] * (40 - num_taken)
    assert 8 <= num_taken <= 14
    assert 0.2 < engine.predicted_wait < 0.25
    refused = add("x", 0.1)
    assert refused is not None and refused.finish_reason is FinishReason.REJECTED
    assert "the queue is full: a request would wait about 0.2 s, and at most 0.1 s are allowed" in str(refused.message)
    refused = add("y", None)
    assert refused is not None and "prompt tokens wait already" in str(refused.message), "what a gateway sent"
    last = chr(199 + num_taken)
    began = clock.now()
    while engine.scheduler._sequences[last].first_scheduled_time is None:
        engine.step()
    assert clock.now() - began == pytest.approx(0.2, rel=0.35)


def test_an_abort_frees_blocks_and_sampler_state_at_once() -> None:
    engine, runner = make_engine()
    engine.add(make_request("a", range(20)))
    engine.step()
    engine.abort("a")
    assert engine.load.kv_blocks_free == 64
    assert runner.forgotten[-1] == "a"
    assert not engine.has_work()
    engine.abort("a")
    assert runner.forgotten.count("a") == 1


def test_load_shows_the_moment_and_the_history() -> None:
    engine, _ = make_engine(max_num_seqs=1)
    engine.add(make_request("a", range(20), max_tokens=2))
    engine.add(make_request("b", range(30, 36), max_tokens=2))
    engine.step()
    load = engine.load
    assert (load.running, load.waiting, load.queued_prefill_tokens, load.kv_tokens) == (1, 1, 6, 20)
    assert (load.kv_blocks_free, load.kv_blocks_total) == (59, 64)
    run_checked(engine)
    load = engine.load
    assert (load.running, load.waiting, load.queued_prefill_tokens, load.kv_tokens) == (0, 0, 0, 0)
    assert (load.num_steps, load.prompt_tokens, load.generation_tokens, load.last_step_tokens) == (4, 26, 4, 1)


class TickingRunner(FakeRunner):
    """Takes a millisecond of fake time for each token."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MODEL)
        self.clock = clock

    def launch(self, batch):  # type: ignore[no-untyped-def]
        self.clock.advance(0.001 * batch.num_tokens)
        return super().launch(batch)


def test_the_step_cost_is_known_from_warm_up_and_follows_the_clock() -> None:
    clock = FakeClock()
    engine = Engine(fake_config(), TickingRunner(clock), clock)
    assert engine.load.step_cost.prefill_token == pytest.approx(0.001, rel=0.05)
    engine.add(make_request("a", range(12), max_tokens=40))
    run_checked(engine)
    load = engine.load
    assert load.last_step_seconds == pytest.approx(0.001)
    assert set(load.step_cost.__struct_fields__) == {*StepWork._fields, "residual", "tokens_per_decode"}


class Recorder:
    """Counts hashes that come and go."""

    def __init__(self) -> None:
        self.num_stored = 0

    def stored(self, parent: bytes, hashes: list[bytes]) -> None:
        self.num_stored += len(hashes)

    def removed(self, block_hash: bytes) -> None:
        raise AssertionError("the cache is large enough")


def test_a_listener_hears_of_published_blocks_and_never_of_warm_up() -> None:
    recorder = Recorder()
    engine, _ = make_engine()
    engine.blocks.listener = recorder
    assert recorder.num_stored == 0
    engine.add(make_request("a", range(9), max_tokens=4))
    run_checked(engine)
    assert recorder.num_stored == 3


def test_one_prompt_under_two_adapters_shares_no_block() -> None:
    engine = Engine(
        fake_config(lora_modules="pirate=/pirate,poet=/poet"), FakeRunner(MODEL, num_adapter_slots=2), FakeClock()
    )
    prompt = list(range(1, 20))
    found = []
    for index, adapter in enumerate((None, "pirate", "poet", "pirate", None)):
        engine.add(make_request(str(index), prompt, adapter=adapter, max_tokens=1))
        found.append(run_checked(engine)[-1].num_cached_tokens)
    assert found == [0, 0, 0, 16, 16]
