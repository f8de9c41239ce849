"""Several clients of one core: each is told what is its own, and the first of everything."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_engine.core.loop import Clients, run_core
from fairlead_engine.core.messages import Abort, Add, BlocksChanged, Command, Forget, Started, Stepped
from fairlead_engine.core.process_client import ProcessClient, SocketClient
from fairlead_engine.errors import EngineDead, EngineGone, KVCacheTooSmall
from fairlead_engine.types import NO_LOAD, FinishReason, SequenceOutput
from fairlead_engine_testing import FakeRunner, make_request
from fairlead_engine_testing.fake_engine import FAKE_CORE, fake_config, make_fake_engine
from fairlead_engine_testing.outputs import outputs_of
from fairlead_engine_testing.played_channel import PlayedChannel

NUM_CLIENTS = 3


def output(request_id: str, *, is_last: bool) -> SequenceOutput:
    reason = FinishReason.LENGTH if is_last else None
    return SequenceOutput(request_id=request_id, new_token_ids=[1], finish_reason=reason)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["add", "abort", "step", "end", "forget"])), max_size=60))
def test_every_output_reaches_its_own_client_and_nobody_else(moves: list[tuple[int, str]]) -> None:
    channel = PlayedChannel(num_clients=NUM_CLIENTS)
    clients = Clients(channel)
    running: dict[str, int] = {}
    gone: set[int] = set()
    num_commands = [0, 0, 0]
    for number, (client, move) in enumerate(moves):
        if client in gone:
            continue
        own = [each for each, owner in running.items() if owner == client]
        if move == "add":
            running[f"r{number}"] = client
            clients.added(client, f"r{number}")
        elif move == "abort" and own:
            del running[own[0]]
            clients.aborted(own[0])
        elif move == "forget" and client:
            assert sorted(clients.forget(client)) == sorted(own)
            running = {each: owner for each, owner in running.items() if owner != client}
            gone.add(client)
            continue
        if move in ("add", "abort"):
            clients.obeyed(client)
            num_commands[client] += 1
        ending = set(own) if move == "end" else set()
        before = [len(each) for each in channel.told]
        clients.report([output(each, is_last=each in ending) for each in running], NO_LOAD, BlocksChanged([], []))
        for other in range(NUM_CLIENTS):
            reports = channel.told[other][before[other] :]
            expected = [each for each, owner in running.items() if owner == other and other not in gone]
            assert [each.request_id for report in reports for each in report.outputs] == expected  # type: ignore[union-attr]
            assert len(reports) == 1 if other == 0 else len(reports) <= 1
            for report in reports:
                assert isinstance(report, Stepped)
                assert (report.num_commands, report.changed is None) == (num_commands[other], other > 0)
        running = {each: owner for each, owner in running.items() if each not in ending}
    assert not clients._clients.keys() - running.keys(), "what has ended is forgotten"
    numbers = [step.number for step in channel.steps(0)]
    assert numbers == list(range(1, len(numbers) + 1))


def play(*rounds: list[tuple[int, Command]], misbehaviour: str = "", **changes: Any) -> PlayedChannel:
    channel = PlayedChannel(*rounds, num_clients=NUM_CLIENTS)
    run_core(lambda: make_fake_engine(fake_config(misbehaviour, **changes)), channel)
    return channel


def add(name: str, **settings: Any) -> Add:
    return Add(make_request(name, [1, 2, 3], ignore_eos=True, **settings))


def test_who_has_nothing_to_hear_is_not_woken() -> None:
    channel = play([(1, add("a", max_tokens=4))], [], [], [])
    assert [type(told[0]) for told in channel.told] == [Started] * 3
    assert len(channel.steps(0)) == 5, "one for each step, and one before the first"
    assert [len(step.outputs) for step in channel.steps(1)] == [0, 1, 1, 1, 1]
    assert channel.steps(2) == []


def test_the_first_knows_that_a_step_runs_which_another_has_caused() -> None:
    channel = play([(2, add("a", max_tokens=2))])
    first = channel.steps(0)[0]
    assert (first.load.num_sequences, first.num_commands, first.load.num_steps) == (1, 0, 0)
    alone = play([(0, add("a", max_tokens=2))])
    assert alone.steps(0)[0].outputs == []


def test_what_a_lost_client_asked_for_ends_and_the_others_go_on() -> None:
    both = [(1, add("a", max_tokens=9)), (2, add("b", max_tokens=3)), (2, Abort("nobody"))]
    channel = play(both, [(0, Forget(1))], [], [])
    assert len([each for step in channel.steps(1) for each in step.outputs]) == 1
    assert [each.request_id for step in channel.steps(2) for each in step.outputs] == ["b"] * 3
    assert channel.steps(0)[-1].load.num_sequences == 0
    assert channel.steps(0)[-1].load.kv_blocks_free == 64


def test_what_a_lost_client_said_last_is_not_begun() -> None:
    """Its words may still lie in its socket when the first has told of its end, and are read after that."""
    last_words: list[tuple[int, Command]] = [(0, Forget(1)), (1, add("late", max_tokens=9)), (1, Abort("late"))]
    channel = play(last_words, [(1, add("later", max_tokens=9))], [])
    assert {step.load.num_sequences for step in channel.steps(0)} == {0}


@contextlib.asynccontextmanager
async def started(misbehaviour: str = "", **changes: Any) -> AsyncIterator[tuple[ProcessClient, list[SocketClient]]]:
    """A core process with three clients, all on this loop."""
    first = ProcessClient(fake_config(misbehaviour, **changes), module=FAKE_CORE, num_peers=2)
    starting = asyncio.create_task(first.start())
    await asyncio.sleep(0)
    peers = [SocketClient(address) for address in first.peer_addresses]
    try:
        await asyncio.gather(starting, *(peer.start() for peer in peers))
        first.all_connected()
        yield first, peers
    finally:
        await asyncio.gather(*(client.close() for client in (first, *peers)))


async def collect(client: SocketClient, name: str, prompt: list[int]) -> list[int]:
    request = make_request(name, prompt, max_tokens=8, ignore_eos=True)
    return [token async for each in outputs_of(client, request) for token in each.new_token_ids]


async def until_idle(client: ProcessClient) -> None:
    while client.load.num_sequences or client.step_age_seconds:
        await asyncio.sleep(0.005)


async def test_many_requests_of_all_clients_each_get_their_own_outputs() -> None:
    async with started(max_num_queued_tokens=1000) as (first, peers):
        clients = [first, *peers]
        prompts = {f"request-{index}": [index, index + 1, index + 2] for index in range(30)}
        answers = await asyncio.gather(
            *(collect(clients[index % 3], name, prompt) for index, (name, prompt) in enumerate(prompts.items()))
        )
        assert answers == [FakeRunner().generate(prompt, 8) for prompt in prompts.values()]
        assert [client.info for client in peers] == [first.info] * 2
        await until_idle(first)
        assert first.load.generation_tokens == 240
        assert first.load.kv_blocks_free == 64


async def test_a_peer_that_dies_holds_no_blocks() -> None:
    async with started("step_seconds=0.01") as (first, peers):
        streams = [
            outputs_of(peer, make_request(f"r{n}", [n], max_tokens=90, ignore_eos=True)) for n, peer in enumerate(peers)
        ]
        for stream in streams:
            await anext(stream)
        await peers[0].close()  # says nothing to the core
        first.forget(0)
        while first.load.num_sequences != 1:
            await asyncio.sleep(0.005)
        await anext(streams[1])
        await streams[1].aclose()
        await until_idle(first)
        assert first.load.kv_blocks_free == 64
        with pytest.raises(EngineDead):
            while True:
                await anext(streams[0])


async def test_a_hang_that_a_peer_has_caused_shows_at_the_first() -> None:
    async with started("hang_at_step=2") as (first, peers):
        stream = outputs_of(peers[0], make_request(max_tokens=9, ignore_eos=True))
        await anext(stream)
        await asyncio.sleep(0.05)
        age = first.step_age_seconds
        await asyncio.sleep(0.05)
        assert 0.0 < age < first.step_age_seconds
        await stream.aclose()


async def test_an_idle_core_that_stops_shows_at_the_first_when_it_asks() -> None:
    """No step has begun of which the first could have heard."""
    async with started() as (first, peers):
        assert first.pid is not None
        os.kill(first.pid, signal.SIGSTOP)
        try:
            asking = asyncio.create_task(collect(peers[0], "r", [1]))
            await asyncio.sleep(0.05)
            assert first.step_age_seconds == 0.0 < peers[0].step_age_seconds
            first.ping()
            await asyncio.sleep(0.05)
            age = first.step_age_seconds
            first.ping()
            await asyncio.sleep(0.05)
            assert 0.0 < age < first.step_age_seconds
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert len(await asking) == 8
        await until_idle(first)
        assert peers[0].step_age_seconds == 0.0


async def test_a_client_that_waits_for_others_requests_is_owed_no_answer() -> None:
    async with started("step_seconds=0.01", max_num_seqs=1) as (first, peers):
        stream = outputs_of(first, make_request("long", [1], max_tokens=90, ignore_eos=True))
        await anext(stream)
        asking = asyncio.create_task(collect(peers[0], "waits", [2]))
        while first.load.waiting == 0:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        assert peers[0].step_age_seconds == 0.0
        await stream.aclose()
        assert len(await asking) == 8


@pytest.mark.parametrize("client", [0, 1, 2])
async def test_a_failing_step_ends_the_requests_of_all(client: int) -> None:
    async with started("fail_at_step=3") as (first, peers):
        clients = [first, *peers]
        results = await asyncio.gather(
            *(collect(each, f"r{index}", [index]) for index, each in enumerate(clients)), return_exceptions=True
        )
        assert all(isinstance(result, EngineDead) for result in results)
        with pytest.raises(EngineGone, match="told to fail"):
            await collect(clients[client], "later", [1])


async def test_a_core_that_cannot_start_tells_all() -> None:
    with pytest.raises(KVCacheTooSmall, match="told not to start"):
        async with started("start_error=NotEnoughMemory"):
            pass
