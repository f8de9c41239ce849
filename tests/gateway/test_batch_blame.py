"""Which lines of a batch end with an error of the fleet: those that break replicas, and no innocent line."""

import asyncio
import json
import random
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.gateway.batches import batch_run
from fairlead.gateway.batches.batch_run import ServedAnswer
from fairlead.gateway.batches.blame import MAX_FAULTS, MOST_FAULTS, Blame, fault
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.http import RecordedRequest, Responder

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "FIRST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(batch_run, "LONGEST_PAUSE_SECONDS", 0.01)


def text(body: bytes) -> str:
    return json.loads(body)["messages"][0]["content"]


async def statuses(setup: Any, *texts: str) -> dict[str, int]:
    """What each line of a batch ended with; its text is its name."""
    bodies = {each: {"model": "fake", "messages": [{"role": "user", "content": each}]} for each in texts}
    asked = ({"custom_id": each, "method": "POST", "url": CHAT, "body": body} for each, body in bodies.items())
    file = await setup.openai.files.create(
        file=("lines.jsonl", b"".join(json.dumps(each).encode() + b"\n" for each in asked)), purpose="batch"
    )
    batch = await setup.openai.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    async with asyncio.timeout(60):
        while (now := await setup.openai.batches.retrieve(batch.id)).status != "completed":
            await asyncio.sleep(0.05)
    found = {}
    for name in filter(None, (now.output_file_id, now.error_file_id)):
        for each in map(json.loads, (await setup.openai.files.content(name)).text.splitlines()):
            assert (
                found.setdefault(each["custom_id"], each["response"]["status_code"]) == each["response"]["status_code"]
            )
    return found


def serving(setup: Any, answer: Callable[[str, int], ServedAnswer]) -> tuple[Counter[str], set[str]]:
    """Has lines served by `answer(text, number of the try)`; counts tries, and names those kept apart."""
    tries, apart = Counter[str](), set[str]()

    async def serve(
        path: str, body: bytes, owner: str, request_id: str, on_dispatched: Any, *, is_suspect: bool
    ) -> ServedAnswer:
        name = text(body)
        tries[name] += 1
        if is_suspect:
            apart.add(name)
        return answer(name, tries[name])

    setup.gateway.storage.batches._serve = serve
    return tries, apart


async def test_a_line_that_always_breaks_what_runs_it_ends(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path)
    always = {"alone": (502, 2), "silent": (504, 0), "own": (500, 0), "shared": (503, 2)}
    tries, apart = serving(setup, lambda name, _: ServedAnswer(always[name][0], b"{}", always[name][1]))
    assert await statuses(setup, *always) == {name: status for name, (status, _) in always.items()}
    assert tries == {"alone": 3, "silent": 3, "own": 3, "shared": 12}
    assert apart == {"alone", "shared"}


async def test_a_line_without_capacity_is_tried_on_and_on(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path)
    later = [503, 429, 0] * 10
    tries, apart = serving(setup, lambda _, number: ServedAnswer(later[number - 1] if number < 30 else 200, b"{}"))
    assert await statuses(setup, "a") == {"a": 200}
    assert tries == {"a": 30} and not apart


async def test_where_lines_were_blamed_wrongly_it_takes_more_to_blame_another(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path)

    def answer(name: str, number: int) -> ServedAnswer:
        lost = {"first": 1, "second": 4}[name] if first_passed or name == "first" else 2
        if number <= lost:
            return ServedAnswer(502, b"{}", 2)
        first_passed.append(name)
        return ServedAnswer(200, b"{}")

    first_passed: list[str] = []
    tries, _ = serving(setup, answer)
    assert await statuses(setup, "first", "second") == {"first": 200, "second": 200}
    assert tries["second"] == 5 > MAX_FAULTS


async def test_a_line_that_kills_is_found_beside_innocent_ones(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path, engines=[FakeEngine(f"engine-{index}") for index in range(3)])
    num_deaths = 0
    for engine in setup.engines:

        async def respond(
            request: RecordedRequest, responder: Responder, engine: FakeEngine = engine, usual=engine._respond
        ) -> None:
            nonlocal num_deaths
            await asyncio.sleep(0.02)
            if text(request.body) == "killer":
                num_deaths += 1
                engine.kill()
                raise ConnectionResetError
            await asyncio.sleep(0.02)
            await usual(request, responder)

        engine._respond = respond
    innocent = [str(number) for number in range(30)]
    found = await statuses(setup, *innocent[:5], "killer", *innocent[5:])
    assert found == dict.fromkeys(innocent, 200) | {"killer": 502}
    assert num_deaths <= 2 * MOST_FAULTS


@pytest.mark.parametrize("chance", [0.05, 0.3])
def test_innocent_lines_of_a_fleet_that_dies_by_chance_are_not_blamed(chance: float) -> None:
    """Lines in rounds, of which each is lost alone by chance, whoever it is."""
    draw = random.Random(3)
    for _ in range(20):
        blame, waiting, blamed = Blame(), deque((0.0, name) for name in range(2000)), []
        while waiting:
            faults, name = waiting.popleft()
            if draw.random() >= chance:
                blame.answered(faults)
                continue
            faults += fault(502, 2)
            if blame.has(faults):
                blamed.append(name)
            else:
                waiting.append((faults, name))
        assert not blamed
        assert blame.has(MOST_FAULTS)
