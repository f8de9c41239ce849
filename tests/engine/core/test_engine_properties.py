"""Whatever arrives in whatever order: every output is the one a prompt gets alone, and nothing leaks.

The runner is fake and its tokens depend on what it finds in its slots, so that a scheduling or block error changes one.
Beside each engine runs a follower: what it makes of the changes of each step is what the block manager holds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import BlockChanges
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator, LRUBlocks
from fairlead_engine.kernels.attention.consecutive_blocks import ConsecutiveBlocks
from fairlead_engine.server.kv_mirror import KVMirror
from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput, TokenLogprobs
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config

EOS = 0
MODEL = FakeModelConfig(vocab_size=8, max_position_embeddings=40, eos_token_ids=(EOS,))
# A few beginnings that many prompts share, and tokens so few that blocks collide.
PREFIXES = [[], [1, 2, 3, 4, 5, 6, 7, 1], [1, 2, 3, 4, 7, 7, 7, 7, 5, 5, 5, 5], [2] * 20]


@dataclass
class Trace:
    """What clients asked for and what they got."""

    requests: dict[str, EngineRequest] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    scored: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    mirror: KVMirror = field(default_factory=KVMirror)

    def follow(self, changes: BlockChanges, blocks: BlockManager) -> None:
        """Takes one step's changes over, as the HTTP process does."""
        changed = changes.take()
        if changed is not None:
            self.mirror.apply(changed)
        assert self.mirror.hashes() == blocks.published()

    def take(self, output: SequenceOutput) -> None:
        name = output.request_id
        assert name not in self.reasons, "an output after the last one"
        assert name not in self.aborted, "an output after an abort"
        if output.prompt_logprobs:
            assert not self.tokens[name], "log-probabilities of a prompt after its first token"
            self.scored.setdefault(name, []).extend(output.prompt_logprobs)
        self.tokens[name].extend(output.new_token_ids)
        if output.finish_reason is not None:
            self.reasons[name] = output.finish_reason


def expected(runner: FakeRunner, request: EngineRequest, max_model_len: int) -> tuple[list[int], FinishReason]:
    """The reference: the prompt alone, without cache, chunks or preemption."""
    sampling, prompt = request.sampling, request.prompt_token_ids
    if len(prompt) >= max_model_len:
        return [], FinishReason.ERROR
    most = max_model_len if sampling.max_tokens is None else sampling.max_tokens
    tokens = runner.generate(prompt, min(most, max_model_len - len(prompt)), sampling.logit_bias)
    stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (EOS,))}
    for count, token_id in enumerate(tokens, start=1):
        if token_id in stops and count >= sampling.min_tokens:
            return tokens[:count], FinishReason.STOP
    return tokens, FinishReason.LENGTH


samplings = st.fixed_dictionaries(
    {
        "max_tokens": st.one_of(st.none(), st.integers(4, 30)),
        "min_tokens": st.integers(0, 4),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([(), (), (3,), (6, 7)]),
        "prompt_logprobs": st.sampled_from([None, None, 0, 3]),
        "logit_bias": st.sampled_from([{}, {}, {5: 100.0}, {0: -100.0, 3: -1.5}]),
    }
) | st.fixed_dictionaries({"max_tokens": st.just(0), "prompt_logprobs": st.sampled_from([None, 1])})
prompts = st.builds(
    lambda prefix, rest: prefix + rest, st.sampled_from(PREFIXES), st.lists(st.integers(0, 7), min_size=1, max_size=22)
)
additions = st.tuples(st.just("add"), prompts, samplings, st.integers(0, 2), st.sampled_from([None, "salt"]))
aborts = st.tuples(st.just("abort"), st.integers(0, 30))
steps = st.tuples(st.just("step"), st.integers(1, 4))


@settings(deadline=None, max_examples=150)
@given(
    actions=st.lists(st.one_of(additions, additions, steps, aborts), max_size=40),
    block_size=st.sampled_from([1, 2, 4, 5]),
    spare_blocks=st.integers(0, 12),
    max_model_len=st.integers(8, 40),
    max_num_seqs=st.integers(1, 5),
    spare_budget=st.integers(0, 30),
    queue=st.sampled_from([1, 40, 10_000]),
    caching=st.booleans(),
    allocator=st.sampled_from([ConsecutiveBlocks, LRUBlocks]),
    async_scheduling=st.booleans(),
)
def test_every_request_gets_the_output_it_would_get_alone(
    actions: list[tuple[object, ...]],
    block_size: int,
    spare_blocks: int,
    max_model_len: int,
    max_num_seqs: int,
    spare_budget: int,
    queue: int,
    caching: bool,
    allocator: Callable[[int], BlockAllocator],
    async_scheduling: bool,
) -> None:
    num_blocks = -(-max_model_len // block_size) + spare_blocks
    config = fake_config(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + spare_budget,
        max_num_queued_tokens=queue,
        enable_prefix_caching=caching,
        async_scheduling=async_scheduling,
    )
    runner = FakeRunner(MODEL, block_size=block_size, block_allocator=allocator)
    engine = Engine(config, runner)
    engine.blocks.listener = BlockChanges()
    trace = Trace()
    for action in actions:
        act(engine, trace, action)
    while engine.has_work():
        step(engine, runner, trace)

    assert engine.blocks.num_free == num_blocks
    assert not len(engine.scheduler.coming)
    for name, request in trace.requests.items():
        wanted = expected(runner, request, max_model_len)
        if name in trace.aborted:
            assert trace.tokens[name] == wanted[0][: len(trace.tokens[name])]
        elif trace.reasons[name] is FinishReason.REJECTED:
            assert not trace.tokens[name]
        else:
            assert (trace.tokens[name], trace.reasons[name]) == wanted
            prompt = request.prompt_token_ids
            scored = [(each.token_id, -each.logprob) for each in trace.scored.get(name, [])]
            is_scored = request.sampling.prompt_logprobs is not None and wanted[1] is not FinishReason.ERROR
            assert scored == [(prompt[i], i) for i in range(1, len(prompt))] * is_scored


def act(engine: Engine, trace: Trace, action: tuple[object, ...]) -> None:
    match action:
        case ("add", list(prompt), dict(sampling), int(priority), salt):
            name = str(len(trace.requests))
            assert salt is None or isinstance(salt, str)
            request = make_request(
                name, prompt, arrival_time=float(len(name)), priority=priority, cache_salt=salt, **sampling
            )
            trace.requests[name], trace.tokens[name] = request, []
            refused = engine.add(request)
            if refused is not None:
                trace.take(refused)
        case ("abort", int(index)):
            name = str(index % (len(trace.requests) + 1))  # sometimes one that never was
            engine.abort(name)
            if name in trace.requests and name not in trace.reasons:
                trace.aborted.add(name)
            engine.check()
        case ("step", int(count)):
            for _ in range(count):
                if engine.has_work():
                    assert isinstance(engine.runner, FakeRunner)
                    step(engine, engine.runner, trace)


def step(engine: Engine, runner: FakeRunner, trace: Trace) -> None:
    limits = engine.scheduler.limits
    for output in engine.step():
        trace.take(output)
    engine.check()
    assert isinstance(engine.blocks.listener, BlockChanges)
    trace.follow(engine.blocks.listener, engine.blocks)
    widths = [num_tokens for _, num_tokens in runner.batches[-1]]
    assert 0 < sum(widths) <= limits.max_num_batched_tokens
    assert len(widths) <= limits.max_num_seqs
    assert widths == sorted(widths, key=lambda width: width > 1), "single-token items come first"
    assert len(engine.scheduler.running) <= limits.max_num_seqs
