"""Both engine clients, in process and over a process boundary, behave the same."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from fairlead_common.wire.blocks import hash_blocks
from fairlead_engine.core.client import EngineClient
from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.core.process_client import ProcessClient
from fairlead_engine.errors import EngineDead, EngineGone, KVCacheTooSmall, ModelLoadError, QueueFull, RequestError
from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput
from fairlead_engine_testing import FakeRunner, make_request
from fairlead_engine_testing.fake_engine import FAKE_CORE, fake_config, make_fake_engine
from fairlead_engine_testing.in_process_client import InProcessClient
from fairlead_engine_testing.outputs import outputs_of

KINDS = ["thread", "process"]


def make_client(kind: str, misbehaviour: str = "", **changes: object) -> EngineClient:
    config = fake_config(misbehaviour, **changes)  # type: ignore[arg-type]
    return InProcessClient(config, make_fake_engine) if kind == "thread" else ProcessClient(config, module=FAKE_CORE)


@contextlib.asynccontextmanager
async def started(kind: str, misbehaviour: str = "", **changes: object) -> AsyncIterator[EngineClient]:
    client = make_client(kind, misbehaviour, **changes)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def collect(client: EngineClient, request: EngineRequest) -> list[SequenceOutput]:
    return [output async for output in outputs_of(client, request)]


def tokens(outputs: list[SequenceOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.new_token_ids]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_generated_what_another_prompt_asks_with_outlives_its_pause(kind: str) -> None:
    question = [1, 2, 3]
    follow_up = [*question, *FakeRunner().generate(question, 6), 9, 9]
    async with started(kind, max_num_seqs=1) as client:
        requests = [make_request("a", question, max_tokens=6), make_request("b", follow_up, max_tokens=6)]
        await asyncio.gather(*(collect(client, request) for request in requests))
        await asyncio.sleep(1.5)  # idle for a second, the core checks its books
        assert client.load.num_failed_checks == 0
        assert len(await collect(client, make_request("c", question, max_tokens=1))) == 1


async def until_idle(client: EngineClient) -> None:
    while client.load.running or client.load.waiting or client.step_age_seconds:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", KINDS)
async def test_many_requests_at_once_each_get_their_own_outputs(kind: str) -> None:
    prompts = {f"request-{index}": [index, index + 1, index + 2] for index in range(20)}
    reference = FakeRunner()
    async with started(kind, max_num_queued_tokens=1000) as client:
        assert client.alive
        assert client.info.num_kv_blocks == 64
        results = await asyncio.gather(
            *(
                collect(client, make_request(name, prompt, max_tokens=8, ignore_eos=True))
                for name, prompt in prompts.items()
            )
        )
        await until_idle(client)
        assert client.load.generation_tokens == 160
        assert client.load.kv_blocks_free == 64
    for outputs, prompt in zip(results, prompts.values(), strict=True):
        assert tokens(outputs) == reference.generate(prompt, 8)
        assert [output.finish_reason for output in outputs][-1] is FinishReason.LENGTH
        assert all(output.finish_reason is None for output in outputs[:-1])


class Listener:
    """Mirrors the client's reports."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.num_commands = 0
        self.generated: list[int] = []
        self.hashes: set[bytes] = set()

    def stepped(self, changed: BlocksChanged | None, num_commands: int) -> None:
        assert num_commands >= self.num_commands
        self.num_commands = num_commands
        self.generated.append(self.client.load.generation_tokens)
        if changed is not None:
            self.hashes -= set(changed.removed)
            self.hashes |= {each for _, hashes in changed.stored for each in hashes}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_listener_hears_of_every_step_and_of_what_it_includes(kind: str) -> None:
    client = make_client(kind)
    listener = Listener(client)
    client.listen(listener)
    await client.start()
    try:
        sent: list[int] = []
        requests = [make_request(name, [*range(9)], max_tokens=4, ignore_eos=True) for name in "ab"]
        outputs = [output async for output in outputs_of(client, requests[0], sent.append)]
        outputs += [output async for output in outputs_of(client, requests[1], sent.append)]
        assert sent == [1, 2]
        assert listener.num_commands == 2
        assert listener.generated[-1] == 8, "the load is the report's own when the listener hears of it"
        answer = tokens(outputs)[:4]
        assert listener.hashes == set(hash_blocks([*range(9), *answer][:-1], 4))
    finally:
        await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_the_iterator_frees_the_blocks_within_one_step(kind: str) -> None:
    async with started(kind, "step_seconds=0.02") as client:
        stream = outputs_of(client, make_request("a", range(20), max_tokens=100, ignore_eos=True))
        await anext(stream)
        assert client.load.running == 1
        num_steps = client.load.num_steps
        await stream.aclose()
        await until_idle(client)
        assert client.load.kv_blocks_free == 64
        assert client.load.num_steps <= num_steps + 2, "the step that ran already, and at most one more"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_full_queue_raises_and_the_client_goes_on(kind: str) -> None:
    async with started(kind, "step_seconds=0.02", max_num_seqs=1, max_num_queued_tokens=1) as client:
        first = outputs_of(client, make_request("first", [1, 2], max_tokens=10, ignore_eos=True))
        await anext(first)
        second = asyncio.create_task(collect(client, make_request("second", [1, 2], max_tokens=2, ignore_eos=True)))
        while not client.load.waiting:
            await asyncio.sleep(0.005)
        with pytest.raises(QueueFull, match="queue is full"):
            await collect(client, make_request("third", [1, 2]))
        await first.aclose()
        assert len(tokens(await second)) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_the_core_cannot_serve_ends_with_its_message(kind: str) -> None:
    async with started(kind) as client:
        [output] = await collect(client, make_request("long", [1] * 200))
        assert output.finish_reason is FinishReason.ERROR
        assert "200 tokens" in (output.message or "")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_second_request_with_a_running_id_is_refused(kind: str) -> None:
    async with started(kind, "step_seconds=0.01") as client:
        stream = outputs_of(client, make_request("a", max_tokens=50, ignore_eos=True))
        await anext(stream)
        with pytest.raises(RequestError, match="'a' is running already"):
            await anext(outputs_of(client, make_request("a")))
        await stream.aclose()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("reason", "error"), [("NotEnoughMemory", KVCacheTooSmall), ("MissingTensor", ModelLoadError)])
async def test_a_core_that_cannot_start_raises_its_own_error(kind: str, reason: str, error: type[Exception]) -> None:
    client = make_client(kind, f"start_error={reason}")
    with pytest.raises(error, match="told not to start") as raised:
        await client.start()
    assert raised.value.reason == reason  # type: ignore[attr-defined]
    assert not client.alive


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unforeseen_error_at_start_is_told_too(kind: str) -> None:
    client = make_client(kind, "no_such_option=1")
    with pytest.raises(Exception, match="could not start") as raised:
        await client.start()
    assert raised.value.reason == "StartFailed"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failing_step_ends_every_request_with_engine_dead(kind: str) -> None:
    async with started(kind, "fail_at_step=3") as client:
        requests = [make_request(name, max_tokens=50, ignore_eos=True) for name in "ab"]
        results = await asyncio.gather(*(collect(client, request) for request in requests), return_exceptions=True)
        assert all(isinstance(result, EngineDead) for result in results)
        assert "told to fail" in str(results[0])
        assert not client.alive
        assert client.step_age_seconds == 0.0
        assert not any(isinstance(result, EngineGone) for result in results)
        with pytest.raises(EngineGone):
            await anext(outputs_of(client, make_request("c")))


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_the_client_ends_running_requests_and_may_be_repeated(kind: str) -> None:
    client = make_client(kind, "step_seconds=0.01")
    await client.start()
    stream = outputs_of(client, make_request("a", max_tokens=100, ignore_eos=True))
    await anext(stream)
    await client.close()
    await client.close()
    with pytest.raises(EngineDead, match="closed"):
        while True:
            await anext(stream)
    assert not client.alive


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_can_be_asked_before_the_start(kind: str) -> None:
    client = make_client(kind)
    assert not client.alive
    with pytest.raises(EngineDead, match="not been started"):
        await anext(outputs_of(client, make_request()))
    with pytest.raises(EngineDead):
        _ = client.info
    await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_idle_core_owes_nothing(kind: str) -> None:
    async with started(kind) as client:
        await collect(client, make_request(max_tokens=3))
        await until_idle(client)
        assert client.step_age_seconds == 0.0
