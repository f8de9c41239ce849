"""The core loop, with a channel that plays commands back: one reply per step, and an answer to everything."""

import msgspec
import pytest

from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import run_core
from fairlead_engine.core.messages import Abort, Add, BlocksChanged, Command, Died, Failed, Started
from fairlead_engine.errors import KVCacheTooSmall
from fairlead_engine.types import FinishReason, SamplingParams
from fairlead_engine.types.sequences import Sequence
from fairlead_engine_testing import make_request
from fairlead_engine_testing.fake_engine import fake_config, make_fake_engine
from fairlead_engine_testing.played_channel import PlayedChannel


def run(*rounds: list[Command], misbehaviour: str = "") -> tuple[bool, PlayedChannel]:
    channel = PlayedChannel(*rounds)
    return run_core(lambda: make_fake_engine(fake_config(misbehaviour)), channel), channel


def test_each_step_is_one_reply_with_every_output() -> None:
    add = [Add(make_request(name, [index], max_tokens=2, ignore_eos=True)) for index, name in enumerate("abc")]
    ended, channel = run(add, [])
    assert ended
    assert isinstance(channel.replies[0], Started)
    assert [len(step.outputs) for step in channel.steps()] == [3, 3]
    assert all(output.finish_reason is FinishReason.LENGTH for output in channel.steps()[1].outputs)


def test_every_round_of_commands_is_acknowledged_even_without_a_step() -> None:
    _, channel = run([Abort("nobody"), Abort("either")], [Add(make_request("bad", []))])
    assert [step.num_commands for step in channel.steps()] == [2, 3]
    assert channel.steps()[1].outputs[0].finish_reason is FinishReason.ERROR


def test_an_abort_takes_effect_before_the_next_step() -> None:
    add = Add(make_request("a", range(20), max_tokens=50, ignore_eos=True))
    _, channel = run([add], [Abort("a")])
    first, second = channel.steps()
    assert first.load.kv_blocks_free < second.load.kv_blocks_free == second.load.kv_blocks_total
    assert not second.outputs


def test_it_polls_while_there_is_work_and_blocks_when_there_is_none() -> None:
    _, channel = run([Add(make_request("a", max_tokens=2, ignore_eos=True))], [], [], [])
    assert channel.timeouts == [1.0, 0.0, 1.0, None, 1.0]


def test_books_found_wrong_in_a_quiet_moment_begin_anew_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good = Engine.check

    def check(engine: Engine) -> None:
        if not engine.num_failed_checks:
            engine.blocks.extend(Sequence("lost", [1], 1, SamplingParams()), 4, 4)
        good(engine)

    monkeypatch.setattr(Engine, "check", check)
    request = make_request("a", range(9), max_tokens=1)
    ended, channel = run([Add(request)], [], [Add(msgspec.structs.replace(request, request_id="b"))], [])
    assert ended
    first, mended, second = channel.steps()
    assert first.load.kv_blocks_total == mended.load.kv_blocks_free == second.load.kv_blocks_free
    assert first.changed is not None and mended.changed is not None
    ((_, hashes),) = first.changed.stored
    assert mended.changed == BlocksChanged([], hashes), "who follows the cache knows that it is empty"
    assert (second.outputs[0].new_token_ids, second.outputs[0].num_cached_tokens) == (first.outputs[0].new_token_ids, 0)
    assert [step.load.num_failed_checks for step in channel.steps()] == [0, 1, 1]
    assert "(reference counts differ from block tables); the prefix cache begins anew" in caplog.text


def test_a_step_that_fails_is_told_before_the_core_ends() -> None:
    ended, channel = run([Add(make_request("a"))], misbehaviour="fail_at_step=1")
    assert not ended
    assert channel.replies[-1] == Died("the engine core has died: RuntimeError: this step was told to fail")


def test_a_start_that_fails_is_told_with_its_reason() -> None:
    channel = PlayedChannel()

    def make_engine() -> Engine:
        raise KVCacheTooSmall("too little memory")

    assert not run_core(make_engine, channel)
    assert channel.replies == [Failed("NotEnoughMemory", "too little memory")]
