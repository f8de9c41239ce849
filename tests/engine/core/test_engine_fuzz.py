"""Prompts made of others' outputs, in caches so small that prefixes get gaps: the books stay right, and all are served.

Where `test_engine_properties` lets hypothesis look for single mistakes, this plays whole lives of an engine, seeded:
bursts with pauses, tiny vocabularies, blocks of one to four tokens, budgets of one. What one request generates is what
the next one asks with, as in every conversation.
"""

import random
from dataclasses import dataclass, field

import pytest

from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import BlockChanges
from fairlead_engine.server.kv_mirror import KVMirror
from fairlead_engine.types import EngineRequest, FinishReason
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config

MAX_LEN = 24
MAX_STEPS = 3000
"""More than any of these lives takes by a factor of ten: who needs more waits for ever."""


@dataclass
class Life:
    """One engine, what it was asked and what it has answered."""

    seed: int
    requests: dict[str, EngineRequest] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, FinishReason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        draw = self.random
        block_size, max_num_seqs = draw.randint(1, 4), draw.randint(1, 5)
        self.max_len = draw.randint(6, MAX_LEN)
        self.num_blocks = -(-self.max_len // block_size) + draw.choice([0, 1, 2, 5, 20])
        vocab_size = draw.randint(1, 4)
        eos = draw.choice([(), (0,)])
        model = FakeModelConfig(vocab_size=vocab_size, max_position_embeddings=MAX_LEN, eos_token_ids=eos)
        self.runner = FakeRunner(model, block_size=block_size)
        self.engine = Engine(
            fake_config(
                num_blocks=self.num_blocks,
                block_size=block_size,
                max_model_len=self.max_len,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_seqs + draw.choice([0, 0, 1, 3, 20]),
                max_num_queued_tokens=10_000,
                enable_prefix_caching=draw.random() < 0.9,
                async_scheduling=draw.random() < 0.5,
            ),
            self.runner,
        )
        spoilt = {draw.randrange(2, MAX_LEN) for _ in range(draw.choice([0, 0, 1]))}
        self.runner.is_spoilt = lambda sequence: sequence.num_tokens in spoilt and len(sequence.request_id) == 1
        self.changes = self.engine.blocks.listener = BlockChanges()
        self.mirror = KVMirror()

    def play(self) -> None:
        num_steps = 0
        for _ in range(self.random.randint(1, 3)):
            for _ in range(self.random.randint(2, 25)):
                self.act()
            while self.engine.has_work():
                self.step()
                num_steps += 1
                assert num_steps < MAX_STEPS, f"somebody waits for ever: {self.engine.load}"
            self.engine.check()
            assert self.engine.blocks.num_free == self.num_blocks
            assert not len(self.engine.scheduler.coming)
        for name, request in self.requests.items():
            self.judge(name, request)

    def act(self) -> None:
        match self.random.choices(["add", "step", "abort"], [4, 4, 1])[0]:
            case "add":
                self.add()
            case "abort":
                name = str(self.random.randrange(len(self.requests) + 1))
                self.engine.abort(name)
                if name in self.requests:
                    self.ended.setdefault(name, FinishReason.ABORT)
                self.check()
            case "step" if self.engine.has_work():
                self.step()

    def add(self) -> None:
        draw, name = self.random, str(len(self.requests))
        request = make_request(
            name,
            self.prompt(),
            arrival_time=float(draw.randint(0, 3)),
            priority=draw.choice([0, 0, 0, 1, -1]),
            cache_salt=draw.choice([None, None, None, "salt"]),
            part_of=draw.choice([None, None, "x", "y"]),
            max_tokens=draw.randint(1, 12),
            ignore_eos=draw.random() < 0.5,
        )
        self.requests[name], self.tokens[name] = request, []
        assert self.engine.add(request) is None
        self.check()

    def prompt(self) -> list[int]:
        """Part of another's prompt and of what it is answered, often with something behind it."""
        draw, vocab_size = self.random, self.runner.model_config.vocab_size
        prompt: list[int] = []
        if self.requests and draw.random() < 0.8:
            other = draw.choice(list(self.requests.values())).prompt_token_ids
            prompt = [*other, *self.runner.generate(other, draw.randint(0, 8))]
            prompt = prompt[: draw.randint(1, len(prompt))]
        prompt += [draw.randrange(vocab_size) for _ in range(draw.choice([0, 1, 1, 2, 6]))]
        return prompt[: self.max_len - 1] or [0]

    def step(self) -> None:
        line = [*self.engine.scheduler.running, *self.engine.scheduler.waiting]
        computed = [sequence.num_computed_tokens for sequence in line]
        for output in self.engine.step():
            assert output.request_id not in self.ended
            self.tokens[output.request_id] += output.new_token_ids
            assert (output.message is not None) == (output.finish_reason is FinishReason.ERROR)
            if output.finish_reason is not None:
                self.ended[output.request_id] = output.finish_reason
        scheduler = self.engine.scheduler
        parts = [each.part_of for each in scheduler.running if each.part_of is not None]
        assert all(parts.count(each) <= scheduler.max_num_parts for each in parts)
        for first, before in zip(line[:1], computed[:1], strict=True):
            goes_on = first.num_computed_tokens > before or first.under_way is not None
            assert goes_on or first.finish_reason is FinishReason.ERROR, "the first in line always goes on"
        self.check()

    def check(self) -> None:
        self.engine.check()
        if (changed := self.changes.take()) is not None:
            self.mirror.apply(changed)
        assert self.mirror.hashes() == self.engine.blocks.published()

    def judge(self, name: str, request: EngineRequest) -> None:
        """Greedy outputs are those of a fresh engine without any cache."""
        limit = min(request.sampling.max_tokens or MAX_LEN, self.max_len - len(request.prompt_token_ids))
        tokens, ended = self.runner.generate(request.prompt_token_ids, limit), FinishReason.LENGTH
        ends = [index for index, token in enumerate(tokens) if token in self.runner.model_config.eos_token_ids]
        if ends and not request.sampling.ignore_eos:
            tokens, ended = tokens[: ends[0] + 1], FinishReason.STOP
        if self.ended[name] in (FinishReason.ABORT, FinishReason.ERROR):
            assert self.tokens[name] == tokens[: len(self.tokens[name])]
        else:
            assert (self.tokens[name], self.ended[name]) == (tokens, ended)


def play(seeds: range) -> None:
    for seed in seeds:
        try:
            Life(seed).play()
        except AssertionError as error:
            raise AssertionError(f"the life of seed {seed}: {error}") from error


def test_books_and_answers_are_right_whatever_collides() -> None:
    play(range(60))


@pytest.mark.compute
@pytest.mark.parametrize("first", range(1000, 6000, 1000))
def test_books_and_answers_are_right_in_thousands_of_lives(first: int) -> None:
    play(range(first, first + 1000))
