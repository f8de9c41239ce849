"""What is put into an answer stands where nothing is torn apart, and the answer goes on as one behind it would."""

import random
from typing import Any

import msgspec
import pytest

from fairlead_engine.core.engine import Engine
from fairlead_engine.core.request_stream import RequestStream
from fairlead_engine.types import EngineRequest, FinishReason, Injectable, Injected, SequenceOutput
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config

MODEL = FakeModelConfig(vocab_size=12, max_position_embeddings=64, eos_token_ids=(0,))
BEGIN, END = 10, 11


class Reader:
    """One answer: its tokens, with what was put in in its place."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt = prompt
        self.tokens: list[int] = []
        """Behind the prompt."""
        self.num_own = 0
        self.put_in: dict[int, str] = {}
        """By place among the tokens."""
        self.finish_reason: FinishReason | None = None
        self.ends: list[str | None] = []
        """What those who sent something were told."""


def make(**settings: Any) -> tuple[Engine, FakeRunner]:
    runner = FakeRunner(MODEL, block_size=settings.get("block_size", 4))
    return Engine(fake_config(max_model_len=64, max_num_queued_tokens=10**6, **settings), runner), runner


def injectable(request: EngineRequest) -> EngineRequest:
    return msgspec.structs.replace(request, injectable=Injectable([(BEGIN, END)]))


def step(engine: Engine, readers: dict[str, Reader], sent: dict[str, list[int]]) -> None:
    for output in engine.step():
        reader = readers[output.request_id]
        assert output.message is None
        if output.injected is not None:
            assert not output.new_token_ids and output.injected.num_tokens == len(sent[output.injected.mark])
            reader.put_in[len(reader.tokens)] = output.injected.mark
            reader.tokens += sent[output.injected.mark]
        reader.tokens += output.new_token_ids
        reader.num_own += len(output.new_token_ids)
        reader.finish_reason = output.finish_reason
    engine.check()


def put_in_and_end(engine: Engine, readers: dict[str, Reader], sent: dict[str, list[int]]) -> None:
    for mark, token_ids in sent.items():
        engine.inject("r", mark, token_ids, readers["r"].ends.append)
    while engine.has_work():
        step(engine, readers, sent)


def is_inside(tokens: list[int]) -> bool:
    last = [token for token in tokens if token in (BEGIN, END)]
    return bool(last) and last[-1] == BEGIN


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.compute) for n in range(20, 60))])
def test_each_answer_goes_on_as_a_new_one_behind_all_of_it_would(seed: int) -> None:
    """In chunks, preempted, with steps that overlap, beside answers into which nothing is put."""
    draw = random.Random(seed)
    size = draw.choice([1, 2, 4])
    mode = draw.choice([{"async_scheduling": True}, {"async_scheduling": False}, {"speculative_method": "ngram"}])
    engine, runner = make(
        num_blocks=-(-64 // size) + draw.choice([0, 4, 30]), block_size=size, max_num_seqs=draw.choice([2, 4]),
        max_num_batched_tokens=draw.choice([4, 8, 32]), **mode,
    )  # fmt: skip
    readers: dict[str, Reader] = {}
    sent: dict[str, list[int]] = {}
    for index in range(draw.randint(2, 6)):
        prompt = [draw.randrange(1, 10) for _ in range(draw.randint(1, 12))]
        request = make_request(str(index), prompt, max_tokens=draw.randint(4, 30), ignore_eos=True, arrival_time=index)
        readers[str(index)] = Reader(prompt)
        assert engine.add(injectable(request)) is None
    while engine.has_work():
        step(engine, readers, sent)
        for name, reader in readers.items():
            if reader.finish_reason is None and draw.random() < 0.08:
                mark = f"m{len(sent)}"
                sent[mark] = [draw.choice([1, 2, 3, END]) for _ in range(draw.randint(1, 6))]
                engine.inject(name, mark, sent[mark], reader.ends.append)
    assert engine.blocks.num_free == engine.blocks.num_blocks
    for reader in readers.values():
        check(reader, sent, runner)
        assert reader.ends.count(None) == len(reader.put_in)


def check(reader: Reader, sent: dict[str, list[int]], runner: FakeRunner) -> None:
    """Each token is what a new request for everything before it would get."""
    at = num_own = 0
    while at < len(reader.tokens):
        before = reader.prompt + reader.tokens[:at]
        if (mark := reader.put_in.get(at)) is not None:
            assert not is_inside(before), "something was put into a block"
            at += len(sent[mark])
        else:
            assert runner.generate(before, 1) == [reader.tokens[at]]
            at, num_own = at + 1, num_own + 1
    assert num_own == reader.num_own


def test_some_of_those_are_put_in() -> None:
    """Behind one another where they come together; the answer is as long as it was to be."""
    engine, runner = make(num_blocks=40)
    runner.batches.clear()
    readers, sent, prompt = {"r": Reader([3, 4, 5])}, {"a": [1, 2], "b": [7]}, [3, 4, 5]
    assert engine.add(injectable(make_request("r", prompt, max_tokens=9, ignore_eos=True))) is None
    while len(readers["r"].tokens) < 3 or is_inside(readers["r"].tokens):
        step(engine, readers, sent)
    put_in_and_end(engine, readers, sent)
    check(readers["r"], sent, runner)
    assert readers["r"].ends == [None, None] and [*readers["r"].put_in.values()] == ["a", "b"]
    assert readers["r"].num_own == 9 and readers["r"].finish_reason is FinishReason.LENGTH
    assert sum(number for batch in runner.batches for _, number in batch) == 3 + 8 + 3, "nothing is computed again"


def test_what_cannot_be_put_in_is_refused_in_a_sentence() -> None:
    engine, _ = make(num_blocks=40)
    assert engine.add(injectable(make_request("r", [3], max_tokens=20, ignore_eos=True))) is None
    assert engine.add(make_request("plain", [3], max_tokens=20, ignore_eos=True)) is None
    said: list[str | None] = []
    for name, tokens in (("gone", [1]), ("plain", [1]), ("r", [12]), ("r", [1] * 70)):
        engine.inject(name, "m", tokens, said.append)
    assert [part in str(each) for part, each in zip(
        ("the answer has ended", "not asked for as injectable", "token id 12 is not in", "it has 70 tokens, and the"),
        said, strict=True,
    )] == [True] * 4  # fmt: skip
    engine.inject("r", "late", [1], said.append)
    engine.abort("r")
    assert "ended before there was a place" in str(said[-1])


def test_what_others_write_opens_no_block() -> None:
    """A user, or the result of a tool, may write of markers and close none."""
    engine, runner = make(num_blocks=40)
    prompt = [3, BEGIN, 4]
    readers, sent = {"r": Reader(prompt)}, {"a": [5, BEGIN, 6], "b": [7]}
    request = make_request("r", prompt, max_tokens=12, ignore_eos=True)
    assert engine.add(msgspec.structs.replace(request, injectable=Injectable([(BEGIN, END)]))) is None
    step(engine, readers, sent)
    put_in_and_end(engine, readers, sent)
    assert readers["r"].ends == [None, None] and [*readers["r"].put_in.values()] == ["a", "b"]
    assert runner.generate(prompt, 1) == readers["r"].tokens[:1]


def test_an_end_comes_before_what_waits_for_a_place() -> None:
    """The answer is in a block until it ends."""
    engine, _ = make(num_blocks=40)
    reader = Reader([BEGIN])
    request = make_request("r", [BEGIN], max_tokens=4, ignore_eos=True)
    injectable = Injectable([(BEGIN, 99)], begins_inside=True)
    assert engine.add(msgspec.structs.replace(request, injectable=injectable)) is None
    engine.inject("r", "m", [1], reader.ends.append)
    while engine.has_work():
        step(engine, {"r": reader}, {})
    assert len(reader.ends) == 1 and "ended before there was a place" in str(reader.ends[0])


def test_a_slow_reader_finds_it_between_what_came_before_and_after() -> None:
    stream = RequestStream(lambda: None)
    for tokens, mark in (([1], None), ([2], None), ([], "m"), ([3], None), ([4], None)):
        injected = None if mark is None else Injected(mark, 5)
        stream.put(SequenceOutput(request_id="r", new_token_ids=tokens, injected=injected))
    taken = []
    while stream.is_ready:
        taken.append(stream.take())
    assert [each.new_token_ids for each in taken] == [[1, 2], [], [3, 4]]
    assert [each.injected for each in taken] == [None, Injected("m", 5), None]


def test_a_long_prompt_that_goes_first_does_not_stop_an_answer_with_tokens_put_in() -> None:
    engine, _ = make(num_blocks=64, max_num_seqs=4, max_num_batched_tokens=8)
    request = make_request("a", [1, 2], max_tokens=40, ignore_eos=True, logit_bias={BEGIN: -100.0})
    assert engine.add(injectable(request)) is None
    engine.step()
    assert engine.add(make_request("long", [3] * 50, max_tokens=1, priority=-1)) is None
    engine.step()
    engine.inject("a", "m", [4] * 6, lambda problem: None)
    long, answer = engine.scheduler.running
    for _ in range(5):
        before = long.num_computed_tokens, answer.num_computed_tokens
        engine.step()
        assert (long.num_computed_tokens - before[0], answer.num_computed_tokens - before[1]) == (7, 1)
    assert answer.num_injected_tokens == 6
