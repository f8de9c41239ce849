"""The fake engine behaves as a real one where a router can tell: slots, queue, cache, steps, loads."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.routing.replica import Limits
from fairlead.simulator.engine_model import StepOutcome
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.messages import FIELD_TOKENS, KVBlocks, ModelInfo, StepCost
from fairlead_testing.clock import run_in_virtual_time
from fairlead_testing.fake_engine import FakeEngine, Refusal
from fairlead_testing.fake_engine.core import FakeCore, FakeSequence
from fairlead_testing.fake_engine.loads import Seen
from fairlead_testing.fake_engine.prompts import make_tokenizer, read_prompt

COST = StepCost(base=1.0, prefill_token=0.01, decode_seq=0.1)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http: aiohttp.ClientSession, engine: FakeEngine, **body: Any) -> tuple[int, Any, Any]:
    document = {"model": "fake", "prompt": "x", **body}
    async with http.post(f"{engine.url}/v1/completions", json=document) as response:
        return response.status, response.headers, await response.read()


# -- steps -------------------------------------------------------------------------------------------------------------


def core(**changes: Any) -> FakeCore:
    limits = Limits(max_num_seqs=2, max_num_queued_tokens=100, block_size=4)
    return FakeCore(limits, **{"num_blocks": 100, "token_budget": 20, "step_cost": COST, **changes})


async def first_token_times(core: FakeCore, *sequences: FakeSequence) -> list[float]:
    """When each has its first token, in virtual seconds, if all come at once."""
    running = asyncio.create_task(core.run())
    loop = asyncio.get_running_loop()

    async def one(sequence: FakeSequence) -> float:
        core.add(sequence)
        await sequence.until_ready(0)
        return loop.time()

    times = await asyncio.gather(*(one(sequence) for sequence in sequences))
    running.cancel()
    return times


def test_a_step_takes_what_it_costs_and_a_long_prompt_several() -> None:
    made = core()
    (time,) = run_in_virtual_time(first_token_times(made, made.sequence(range(30), 1)))
    assert time == pytest.approx(1.2 + 1.1), "20 tokens, then 10"
    assert (made.num_steps, made.running, len(made.cache.hashes)) == (2, [], 7)


def test_decodes_share_steps_with_prefill_and_a_full_engine_lets_others_wait() -> None:
    made = core()
    times = run_in_virtual_time(first_token_times(made, *(made.sequence([index] * 4, 2) for index in range(3))))
    assert times == pytest.approx([1.08, 1.08, 1.08 + 1.2 + 1.04]), "two slots: the third comes two steps later"


def test_a_prompt_waits_for_a_prefix_that_another_is_computing() -> None:
    made = core()
    first, second = made.sequence([*range(30), 1], 1), made.sequence([*range(30), 2], 1)
    run_in_virtual_time(first_token_times(made, first, second))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 28)


def test_what_a_prompt_finds_in_the_cache_is_not_computed_again() -> None:
    made = core(step_cost=None)
    first = made.sequence(range(17), 1)
    made.add(first)
    made.remove(first)
    second = made.sequence(range(17), 1)
    made.add(second)
    assert second.num_cached_tokens == 16, "whole blocks, and never the last token"


def test_the_queue_is_bounded_in_tokens_and_takes_any_one_prompt_when_empty() -> None:
    made = core(step_cost=None)
    for _ in range(2):
        made.add(made.sequence(range(8), 1))
    assert not made.refuses(made.sequence(range(500), 1))
    made.add(made.sequence(range(60), 1))
    assert not made.refuses(made.sequence(range(40), 1))
    assert made.refuses(made.sequence(range(41), 1))


class CheckedCore(FakeCore):
    """Looks at itself after every step."""

    def end_step(self) -> StepOutcome:
        assert self.step is not None
        num_tokens = len(self.step.decodes) + sum(num_tokens for _, num_tokens in self.step.prefills)
        assert 0 < num_tokens <= max(self.token_budget, len(self.running))
        outcome = super().end_step()
        self.check()
        return outcome


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(1, 5), st.booleans()), max_size=25),
    st.integers(4, 40),
)
def test_whatever_comes_and_leaves_everything_is_served_and_every_block_given_back(
    requests: list[tuple[int, int, int, bool]], num_blocks: int
) -> None:
    limits = Limits(max_num_seqs=3, max_num_queued_tokens=10_000, block_size=4)
    made = CheckedCore(limits, num_blocks=num_blocks, token_budget=16, step_cost=COST)

    async def one(index: int, family: int, length: int, num_tokens: int, leaves: bool) -> None:
        await asyncio.sleep(index / 3)
        sequence = made.sequence([family] * (length // 2) + [index + 3] * (length - length // 2), num_tokens)
        made.add(sequence)
        await sequence.until_ready(0 if leaves else num_tokens - 1)
        made.remove(sequence)

    async def all_of_them() -> None:
        running = asyncio.create_task(made.run())
        await asyncio.gather(*(one(index, *request) for index, request in enumerate(requests)))
        running.cancel()

    run_in_virtual_time(all_of_them())
    assert (made.num_requests, made.cache.num_free) == (0, num_blocks)
    made.cache.check()


def test_the_highest_number_of_each_gateway_is_seen() -> None:
    seen = Seen()
    for header in ("a:2", "b:1", "a:1", None, "nonsense", "a:b:3", "a:-1"):
        seen.came(header)
    assert seen.numbers() == {"b": 1, "a": 2, "a:b": 3}


# -- over HTTP ---------------------------------------------------------------------------------------------------------


async def test_it_says_what_it_is_with_a_tokenizer_that_works(http: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine, http.get(f"{engine.url}/fairlead/v1/model") as response:
        info = msgspec.json.decode(await response.read(), type=ModelInfo)
    tokenizer = PromptTokenizer(info.tokenizer_json, chat_template=info.chat_template)
    assert tokenizer.digest == info.digest == engine.replica().digest
    assert tokenizer.decode(tokenizer.encode("Grüße, ship 🚢")) == "Grüße, ship 🚢"
    chat = [{"role": "user", "content": "hi"}]
    assert len(tokenizer.encode_chat(chat)) == 4
    assert read_prompt({"messages": chat}) == tokenizer.encode_chat(chat)


def test_ids_are_taken_from_whoever_has_the_same_tokenizer() -> None:
    digest = make_tokenizer().digest
    assert read_prompt({"prompt": "x", FIELD_TOKENS: {"digest": digest, "prompts": [[7, 8]]}}) == [7, 8]
    assert read_prompt({"prompt": "x", FIELD_TOKENS: {"digest": "other", "prompts": [[7, 8]]}}) != [7, 8]


async def test_the_second_time_a_prompt_is_found_in_the_cache(http: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        found = [(await post(http, engine, prompt="a" * 50))[1]["x-fairlead-cached-tokens"] for _ in range(2)]
        async with http.get(f"{engine.url}/fairlead/v1/kv/blocks") as response:
            blocks = msgspec.json.decode(await response.read(), type=KVBlocks)
    assert found == ["0", "48"]
    assert (blocks.seq, [len(each.hashes) for each in blocks.blocks]) == (1, [3])


@pytest.mark.parametrize(
    "unread", [{}, {"prompt": 7}, {"prompt": {}}, {"messages": 7}, {"messages": [7]}, {"input": None}]
)
async def test_what_is_no_prompt_is_refused(http: aiohttp.ClientSession, unread: dict[str, Any]) -> None:
    async with (
        FakeEngine() as engine,
        http.post(f"{engine.url}/v1/completions", json={"model": "fake", **unread}) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["type"]) == (400, "invalid_request_error")


async def test_a_full_one_refuses_before_any_work(http: aiohttp.ClientSession) -> None:
    limits = Limits(max_num_seqs=1, max_num_queued_tokens=0)
    async with FakeEngine(limits=limits) as engine:
        engine.gate.clear()
        first = asyncio.create_task(post(http, engine))
        while not engine.num_running:
            await asyncio.sleep(0.001)
        status, headers, _ = await post(http, engine)
        assert (status, headers["x-fairlead-reason"]) == (429, "engine-full")
        engine.gate.set()
        assert (await first)[0] == 200


async def test_a_draining_one_is_not_ready_and_finishes_what_runs(http: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        engine.gate.clear()
        first = asyncio.create_task(post(http, engine))
        while not engine.num_running:
            await asyncio.sleep(0.001)
        async with http.post(f"{engine.url}/fairlead/v1/drain") as response:
            assert response.status == 202
        async with http.get(f"{engine.url}/ready") as response:
            assert response.status == 503
        assert (await post(http, engine))[0] == Refusal.DRAINING.value[0]
        engine.gate.set()
        assert (await first)[0] == 200


async def test_hundreds_of_streams_run_through_real_steps(http: aiohttp.ClientSession) -> None:
    limits = Limits(max_num_seqs=150, max_num_queued_tokens=100_000)
    cost = StepCost(base=0.002, prefill_token=1e-6)
    async with FakeEngine(limits=limits, num_kv_blocks=10_000, step_cost=cost) as engine:
        answers = await asyncio.gather(
            *(
                post(http, engine, prompt=f"{index} " * 20, stream=True, max_tokens=10, ignore_eos=True)
                for index in range(150)
            )
        )
        assert {status for status, _, _ in answers} == {200}
        assert all(body.count(b"data: ") == 12 and body.endswith(b"data: [DONE]\n\n") for _, _, body in answers)
        assert engine.core.num_steps < 150, "they shared steps"
        assert (engine.num_finished, engine.core.num_requests) == (150, 0)
        engine.core.cache.check()


async def test_a_client_that_leaves_gives_its_slot_back(http: aiohttp.ClientSession) -> None:
    async with FakeEngine(step_cost=StepCost(base=0.005)) as engine:
        body = {"model": "fake", "prompt": "x", "stream": True, "max_tokens": 100_000, "ignore_eos": True}
        async with http.post(f"{engine.url}/v1/completions", json=body) as response:
            await response.content.readany()
            response.close()
        async with asyncio.timeout(30):
            while engine.core.running:
                await asyncio.sleep(0.005)
        assert engine.num_cancelled == 1


async def test_it_can_be_a_process_of_its_own(http: aiohttp.ClientSession) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead_testing.fake_engine", "--max-num-seqs", "3", "--num-tokens", "2",
        "--drain-grace", "0", "--step-cost", "base=0.001,prefill_token=1e-6", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    address = json.loads(await process.stdout.readline())
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    async with http.post(f"{address['url']}/v1/chat/completions", json=body) as response:
        assert (await response.json())["choices"][0]["message"]["content"] == " 0 1"
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
