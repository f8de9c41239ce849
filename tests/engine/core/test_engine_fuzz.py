"""Whatever arrives in whatever order: every output is the one that a prompt gets alone, and nothing leaks.

The runner is fake, and its tokens depend on what it finds in its slots, so that a scheduling or block error changes
one. Whole lives of an engine are played, seeded: bursts with pauses, tiny vocabularies, blocks of one to four tokens,
budgets of one, caches so small that prefixes get gaps. What one request generates is what the next one asks with, as in
every conversation. Beside each engine a mirror follows the changes of each step, as the HTTP process does.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import BlockChanges
from fairlead_engine.host.engine_stream import KVMirror
from fairlead_engine.kernels.attention.block_allocator import ConsecutiveBlocks, LRUBlocks
from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config
from fairlead_engine_testing.fake_runner import KnowingProposer

MAX_LEN = 24
UNANSWERED = (FinishReason.ERROR, FinishReason.INVALID, FinishReason.REJECTED)
"""Ends with a message. Invalid is a length that is to be reached where every token is ruled out."""
MAX_STEPS = 3000
"""More than any of these lives takes by a factor of ten: who needs more waits for ever."""


@dataclass
class Life:
    """One engine, what it was asked and what it has answered."""

    seed: int
    requests: dict[str, EngineRequest] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    scored: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Tokens of prompts, with their log-probabilities."""
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
        max_num_queued = draw.choice([1, 40, *[10_000] * 4])
        self.is_bounded = max_num_queued < 10_000
        num_drafts = draw.choice([0, 0, draw.randint(1, 6)])
        allocator = draw.choice([ConsecutiveBlocks, LRUBlocks])
        self.runner = FakeRunner(model, block_size=block_size, block_allocator=allocator)
        self.runner.load_looks = draw.choice([1, 1, 2, 5])
        caches, num_places = draw.random() < 0.9, draw.choice([0, draw.randint(1, 2 * self.num_blocks)])
        self.engine = Engine(
            fake_config(
                num_blocks=self.num_blocks,
                host_kv_cache_memory=(num_places * self.runner.kv_bytes_per_block() or None) if caches else None,
                block_size=block_size,
                max_model_len=self.max_len,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_seqs + draw.choice([0, 0, 1, 3, 20]),
                max_num_queued_tokens=max_num_queued,
                enable_prefix_caching=caches,
                async_scheduling=draw.random() < 0.5 and not num_drafts,
                speculative_method="ngram" if num_drafts else None,
                num_speculative_tokens=num_drafts or None,
            ),
            self.runner,
        )
        if self.engine.scheduler.drafting is not None:
            wrong = draw.choice([0.0, 0.2, 0.6, 1.0])
            self.engine.scheduler.drafting.proposer = KnowingProposer(self.runner, wrong, self.seed)
        self.spoilt = {draw.randrange(2, MAX_LEN) for _ in range(draw.choice([0, 0, 1]))}
        self.runner.is_spoilt = lambda sequence: sequence.num_tokens in self.spoilt and len(sequence.request_id) == 1
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
            while self.engine.blocks.host.loads:
                self.engine.blocks.settle()
            assert self.engine.blocks.num_free == self.num_blocks
            assert not len(self.engine.scheduler.coming)
        for name, request in self.requests.items():
            self.judge(name, request)
        load = self.engine.load
        accepted = list(load.num_accepted_per_position)
        assert accepted == sorted(accepted, reverse=True) and sum(accepted) <= load.num_draft_tokens

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
            ignore_eos=draw.random() < 0.5,
            **self.sampling(),
        )
        self.requests[name], self.tokens[name], self.scored[name] = request, [], []
        if (refused := self.engine.add(request)) is not None:
            self.take(refused)
        self.check()

    def sampling(self) -> dict[str, Any]:
        """What else is asked for: most of the time only a length."""
        draw = self.random
        if draw.random() < 0.05:
            return {"max_tokens": 0, "prompt_logprobs": draw.choice([None, 1])}
        last = self.runner.model_config.vocab_size - 1
        most = draw.choice([None, *[draw.randint(1, 12)] * 7])
        return {
            "max_tokens": most,
            "min_tokens": draw.choice([0, 0, 0, min(2, most or 2)]),
            "stop_token_ids": draw.choice([(), (), (), (last,), (0, last)]),
            "prompt_logprobs": draw.choice([None, None, None, 0, 3]),
            "logit_bias": draw.choice([{}, {}, {}, {0: 100.0}, {0: -100.0}]),
        }

    def prompt(self) -> list[int]:
        """Part of another's prompt and of what it is answered, often with something behind it."""
        draw, vocab_size = self.random, self.runner.model_config.vocab_size
        prompt: list[int] = []
        if self.requests and draw.random() < 0.8:
            other = draw.choice(list(self.requests.values())).prompt_token_ids
            prompt = [*other, *self.runner.generate(other, draw.randint(0, 8))]
            prompt = prompt[: draw.randint(1, len(prompt))]
        prompt += [draw.randrange(vocab_size) for _ in range(draw.choice([0, 1, 1, 2, 6]))]
        return prompt[: self.max_len - draw.choice([0, *[1] * 10])] or [0]

    def step(self) -> None:
        line = [*self.engine.scheduler.running, *self.engine.scheduler.waiting]
        computed, num_batches = [sequence.num_computed_tokens for sequence in line], len(self.runner.batches)
        was_loading = self.engine.blocks.host.loads
        for output in self.engine.step():
            self.take(output)
        scheduler, waits = self.engine.scheduler, was_loading or self.engine.blocks.host.loads
        widths = [num_tokens for batch in self.runner.batches[num_batches:] for _, num_tokens in batch]
        assert all(self.runner.batches[num_batches:])
        assert sum(widths) <= scheduler.limits.max_num_batched_tokens
        assert max(len(widths), len(scheduler.running)) <= scheduler.limits.max_num_seqs
        assert widths == sorted(widths, key=lambda width: width > 1), "single-token items come first"
        parts = [each.part_of for each in scheduler.running if each.part_of is not None]
        assert all(parts.count(each) <= scheduler.max_num_parts for each in parts)
        for first, before in zip(line[:1], computed[:1], strict=True):
            goes_on = first.num_computed_tokens > before or first.under_way is not None
            assert goes_on or waits or first.finish_reason in UNANSWERED, "the first in line always goes on"
        self.check()

    def take(self, output: SequenceOutput) -> None:
        name = output.request_id
        assert name not in self.ended
        assert (output.message is not None) == (output.finish_reason in UNANSWERED)
        if output.prompt_logprobs:
            assert not self.tokens[name], "log-probabilities of a prompt after its first token"
            self.scored[name] += [(each.token_id, -each.logprob) for each in output.prompt_logprobs]
        self.tokens[name] += output.new_token_ids
        if output.finish_reason is not None:
            self.ended[name] = output.finish_reason

    def check(self) -> None:
        self.engine.check()
        if (changed := self.changes.take()) is not None:
            self.mirror.apply(changed)
        assert self.mirror.hashes() == self.engine.blocks.published()

    def judge(self, name: str, request: EngineRequest) -> None:
        """Greedy outputs are those of a fresh engine without any cache."""
        sampling, prompt, ended = request.sampling, request.prompt_token_ids, self.ended[name]
        most = MAX_LEN if sampling.max_tokens is None else sampling.max_tokens
        tokens = self.runner.generate(prompt, min(most, self.max_len - len(prompt)), sampling.logit_bias)
        stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.runner.model_config.eos_token_ids)}
        ends = [count for count, each in enumerate(tokens, 1) if each in stops and count >= sampling.min_tokens]
        if ended in (FinishReason.ABORT, *UNANSWERED):
            assert self.tokens[name] == tokens[: len(self.tokens[name])]
            if ended is FinishReason.ERROR:
                assert len(prompt) >= self.max_len or (self.spoilt and len(name) == 1)
            assert ended is not FinishReason.INVALID or sampling.min_tokens
            assert ended is not FinishReason.REJECTED or (self.is_bounded and not self.tokens[name])
            return
        assert len(prompt) < self.max_len
        wanted = (tokens[: ends[0]], FinishReason.STOP) if ends else (tokens, FinishReason.LENGTH)
        assert (self.tokens[name], ended) == wanted
        is_scored = sampling.prompt_logprobs is not None
        assert self.scored[name] == [(prompt[i], i) for i in range(1, len(prompt))] * is_scored


def play(seeds: range) -> None:
    for seed in seeds:
        try:
            Life(seed).play()
        except AssertionError as error:
            raise AssertionError(f"the life of seed {seed}: {error}") from error


def test_books_and_answers_are_right_whatever_collides() -> None:
    play(range(60))


@pytest.mark.compute
@pytest.mark.parametrize(
    "first", [1000, 2000, *(pytest.param(first, marks=pytest.mark.long) for first in range(3000, 6000, 1000))]
)
def test_books_and_answers_are_right_in_thousands_of_lives(first: int) -> None:
    play(range(first, first + 1000))
