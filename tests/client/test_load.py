"""The load generator in virtual time: who is sent when, and that no time is lost from the figures."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import pytest

from fairlead.client.load_generator import LoadGenerator
from fairlead.client.openai import ChatAnswer, RequestFailed
from fairlead.client.workload import ArrivalPhase, Conversation, Turn, arrival_times
from fairlead_testing.clock import in_virtual_time

ONE = Conversation((Turn("1 + 1 =", "2", {"max_tokens": 3}),))
THREE = Conversation((Turn("one"), Turn("two"), Turn("three")), system="Be brief.")


class FakeChat:
    """Answers after `ttft`, then ends after `rest` more seconds; may fail, or have few slots, as servers do."""

    def __init__(self, ttft: float = 1.0, rest: float = 1.0, *, slots: int | None = None, text: str = "2") -> None:
        self.ttft, self.rest, self.text = ttft, rest, text
        self.slots = asyncio.Semaphore(slots) if slots is not None else None
        self.fails: Callable[[int], RequestFailed | None] = lambda number: None
        self.asked: list[tuple[float, list[dict[str, str]], dict[str, Any]]] = []
        self.running = self.most = 0

    async def chat(self, model: str, messages: Any, *, completion: ChatAnswer, **parameters: Any) -> ChatAnswer:
        clock = asyncio.get_running_loop().time
        sent = clock()
        self.asked.append((sent, messages, parameters))
        if (error := self.fails(len(self.asked))) is not None:
            raise error
        async with self.slots if self.slots is not None else asyncio.Semaphore(1):
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(self.ttft)
            completion.ttft_seconds, completion.text = clock() - sent, self.text
            await asyncio.sleep(self.rest)
            completion.duration_seconds, completion.num_completion_tokens = clock() - sent, 3
            self.running -= 1
        return completion


@in_virtual_time
async def closed(chat: FakeChat, conversations: Iterator[Conversation], **arguments: Any) -> LoadGenerator:
    load = LoadGenerator(chat, "m", max_requests=arguments.pop("max_requests", None))
    await load.closed_loop(conversations, **arguments)
    return load


@in_virtual_time
async def open_(chat: FakeChat, conversations: Iterator[Conversation], arrivals: Any, **limits: Any) -> LoadGenerator:
    load = LoadGenerator(chat, "m", **limits)
    await load.open_loop(conversations, arrivals)
    return load


def test_a_closed_loop_keeps_so_many_going_and_sends_so_many() -> None:
    chat = FakeChat()
    load = closed(chat, repeat(ONE), concurrency=3, max_requests=10)
    assert (len(load.samples), chat.most, load.seconds) == (10, 3, 8.0)
    assert all(sample.is_completed and sample.ttft_seconds == 1.0 for sample in load.samples)
    assert chat.asked[0][1:] == ([{"role": "user", "content": "1 + 1 ="}], {"max_tokens": 3})


def test_a_closed_loop_ends_with_its_time_and_waits_for_what_runs() -> None:
    load = closed(FakeChat(), repeat(ONE), concurrency=2, seconds=5.0)
    assert [sample.due for sample in load.samples] == [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]
    assert load.seconds == 6.0


def test_a_closed_loop_ends_with_its_conversations() -> None:
    assert len(closed(FakeChat(), iter([ONE] * 4), concurrency=3).samples) == 4


def test_an_open_loop_sends_when_requests_arrive_whether_or_not_answers_come() -> None:
    chat = FakeChat(rest=1000.0)
    load = open_(chat, repeat(ONE), [0.0, 0.5, 0.6, 7.0])
    assert [time for time, _, _ in chat.asked] == [0.0, 0.5, 0.6, 7.0]
    assert load.seconds == pytest.approx(1008.0)


def test_a_server_without_room_cannot_hide_the_wait() -> None:
    """One slot of two seconds and an arrival each second: the n-th first token is n seconds later than it should be."""
    load = open_(FakeChat(slots=1), repeat(ONE), [float(second) for second in range(5)])
    assert [sample.ttft_seconds for sample in load.samples] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [sample.latency_seconds for sample in load.samples] == [2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_generator_that_falls_behind_cannot_hide_it() -> None:
    """Something holds the event loop up for three seconds: what was due meanwhile is measured from when it was due."""

    class Busy(FakeChat):
        async def chat(self, model: str, messages: Any, *, completion: ChatAnswer, **parameters: Any) -> ChatAnswer:
            if not self.asked:
                asyncio.get_running_loop()._jumping.now += 3.0  # type: ignore[attr-defined]
            return await super().chat(model, messages, completion=completion, **parameters)

    load = open_(Busy(), repeat(ONE), [0.0, 1.0, 2.0, 9.0])
    assert [sample.sent - sample.due for sample in load.samples] == [0.0, 2.0, 1.0, 0.0]
    assert [sample.ttft_seconds for sample in load.samples] == [1.0, 3.0, 2.0, 1.0]


def test_an_open_loop_stops_at_so_many_requests() -> None:
    load = open_(FakeChat(), repeat(ONE), arrival_times([ArrivalPhase(10.0, float("inf"))]), max_requests=7)
    assert len(load.samples) == 7
    assert all(sample.ended is not None for sample in load.samples)


@in_virtual_time
async def test_an_open_loop_that_is_stopped_waits_for_what_runs_and_not_for_what_would_come() -> None:
    load = LoadGenerator(FakeChat(rest=10.0), "m")
    task = asyncio.create_task(load.open_loop(repeat(ONE), [0.0, 1.0, 1000.0]))
    await asyncio.sleep(5.0)
    load.stop()
    await task
    assert [sample.is_completed for sample in load.samples] == [True, True]
    assert load.seconds == 12.0


def test_turns_follow_one_another_with_the_conversation_so_far() -> None:
    chat = FakeChat(text="aye")
    load = open_(chat, iter([THREE]), [1.0])
    assert [time for time, _, _ in chat.asked] == [1.0, 3.0, 5.0]
    assert [sample.due for sample in load.samples] == [1.0, 3.0, 5.0]
    assert [message["content"] for message in chat.asked[2][1]] == ["Be brief.", "one", "aye", "two", "aye", "three"]


def test_a_turn_without_an_answer_ends_its_conversation_and_no_other() -> None:
    chat = FakeChat()
    chat.fails = lambda number: RequestFailed(429, "full") if number == 2 else None
    load = closed(chat, iter([THREE, THREE]), concurrency=1)
    assert len(load.samples) == 2 + 3
    assert [sample.is_rejected for sample in load.samples] == [False, True, False, False, False]
    assert load.samples[1].latency_seconds == 0.0


def test_known_answers_are_checked() -> None:
    right, wrong = (closed(FakeChat(text=text), iter([ONE]), concurrency=1).samples[0] for text in (" 2\n", "3"))
    assert (right.right, wrong.right) == (True, False)
    assert closed(FakeChat(), iter([THREE]), concurrency=1).samples[0].right is None


@in_virtual_time
async def test_what_was_measured_until_an_interruption_is_kept() -> None:
    load = LoadGenerator(FakeChat(rest=100.0), "m")
    task = asyncio.create_task(load.open_loop(repeat(ONE), [0.0, 1.0, 200.0]))
    await asyncio.sleep(101.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [sample.is_completed for sample in load.samples] == [True, False]
    assert load.samples[1].ttft_seconds == 1.0
    assert load.seconds == 101.5


def test_a_closed_loop_pauses_after_a_failure_for_as_long_as_it_was_told() -> None:
    chat = FakeChat(ttft=1.0, rest=1.0)
    failures = {1: RequestFailed(404, "gone"), 2: RequestFailed(429, "full", retry_after=3.0)}
    chat.fails = failures.get
    load = closed(chat, repeat(ONE), concurrency=1, max_requests=3)
    assert [sent for sent, _, _ in chat.asked] == [0.0, 0.5, 3.5]
    assert [sample.error is None for sample in load.samples] == [False, False, True]


@in_virtual_time
async def changing(chat: FakeChat, sizes: list[int], every_seconds: float = 0.0) -> LoadGenerator:
    """Of each of these sizes for ten seconds."""
    load = LoadGenerator(chat, "m")
    left = list(sizes)
    loop = load.changing_loop(repeat(ONE), lambda: left[0], every_seconds=lambda: every_seconds)
    running = asyncio.create_task(loop)
    while left[1:]:
        await asyncio.sleep(10.0)
        del left[0]
    await asyncio.sleep(10.0)
    load.stop()
    await running
    return load


def test_a_changing_loop_is_as_large_as_it_is_told_by_now_and_loses_no_answer() -> None:
    chat = FakeChat()
    load = changing(chat, [3, 1, 2])
    per_stretch = [sum(begin <= round(sent) < begin + 10 for sent, _, _ in chat.asked) for begin in (0, 10, 20)]
    assert per_stretch == [15, 5, 10]
    assert chat.most == 3
    assert all(sample.is_completed for sample in load.samples)


def test_a_changing_loop_asks_no_sooner_than_so_long_after_it_asked() -> None:
    load = changing(FakeChat(), [1, 1], every_seconds=6.0)
    assert [sample.due for sample in load.samples] == pytest.approx([0.0, 6.0, 12.0, 18.0])
