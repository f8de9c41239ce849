"""The gateway's pages in headless Chromium: chats, states, keys, hostile texts, dark, a phone's width, the keyboard."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fairlead.fleet.directory import Outlook, ScalingChange
from fairlead.gateway.access import KeyedAccess
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed: make setup-dev")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

EXPECT_MILLISECONDS = 60_000
"""Longest wait for what a page should show; a busy machine takes long for it."""
KEY = "alice-0123456789abcdef"
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
NAME = """<script>document.title='run'<img src=x onerror=alert(1)> it's "q"; $(touch run) `touch run` \\\\"""
"""Without a slash, before which a namespace would stand."""
FOCUSED = """() => {
  const at = document.activeElement;
  const name = at.id || at.name || at.getAttribute("aria-label") || at.textContent;
  return name.split("\\u00a0")[0].split(" ").slice(0, 2).join(" ");
}"""
"""A name of what the keyboard is on."""
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ASLEEP = Outlook(True, "It is scaled to zero; the next request wakes it.", asleep=True)


class Watched:
    """A tab, whose requests and errors are kept."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)

    def polls(self) -> int:
        return sum(url.endswith("/fairlead/v1/models") for url in self.requests)

    def check(self) -> None:
        """Nothing left the origin, nothing failed, and no script of a text ran."""
        assert {url for url in self.requests if not url.startswith(("data:", f"{self.url}/"))} == set()
        assert self.complaints == []


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as started:
        running = await started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        await running.close()


@pytest.fixture
async def opened(browser):
    """`await opened(url)`: the page at `/` in a tab of its own, once it is loaded; with options of the context."""

    async def make(url: str, path: str = "/", **options: Any) -> Watched:
        context = await browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        context.set_default_timeout(EXPECT_MILLISECONDS)
        watched = Watched(await context.new_page(), url)
        await watched.page.goto(url + path)
        return watched

    return make


def expect(locator: Any) -> Any:
    playwright.expect.set_options(timeout=EXPECT_MILLISECONDS)
    return playwright.expect(locator)


async def say(page: Any, text: str = "Hello?") -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def test_an_answer_is_streamed_with_what_was_said_before_and_a_system_prompt(start, opened) -> None:
    setup = await start()
    may_go = asyncio.Event()
    setup.engines[0].pace = lambda index: asyncio.sleep(0) if index == 0 else may_go.wait()
    tab = await opened(setup.url)
    page = tab.page
    await page.get_by_text("System prompt").click()
    await page.get_by_label("What the model is told").fill("Be brief.")
    await say(page)
    answer = page.locator("#messages article").nth(1)
    await expect(answer).to_contain_text("Hello")
    await expect(answer).not_to_contain_text("world")
    await expect(page.locator("#chat-status")).to_have_text("Answering…")
    may_go.set()
    await expect(answer).to_contain_text("Hello, world!")
    await expect(answer.locator(".note")).to_contain_text("4 tokens")
    await say(page, "And?")
    await expect(page.locator("#messages article")).to_have_count(4)
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    sent = setup.engines[0].requests[1].json()
    assert [(each["role"], each["content"]) for each in sent["messages"]] == [
        ("system", "Be brief."), ("user", "Hello?"), ("assistant", "Hello, world!"), ("user", "And?"),
    ]  # fmt: skip
    assert sent["stream"] is True
    stored = await page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]")
    assert stored == ["{}", "{}", ""]
    tab.check()


async def test_stop_ends_the_answer_in_the_engine_too(start, opened) -> None:
    setup = await start()
    setup.engines[0].pace = lambda index: asyncio.sleep(0 if index == 0 else 3600)
    tab = await opened(setup.url)
    await say(tab.page)
    await expect(tab.page.locator("#messages article").nth(1)).to_contain_text("Hello")
    await tab.page.get_by_role("button", name="Stop").click()
    await expect(tab.page.locator("#messages article").nth(1)).to_contain_text("Stopped.")
    await setup.until(lambda: setup.engines[0].num_cancelled == 1)
    await expect(tab.page.get_by_role("button", name="Send")).to_be_enabled()
    tab.check()


async def answer_with(page: Any, *events: Any) -> None:
    """Has the next answers be this stream, whatever the gateway would say."""
    body = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in events)
    await page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


async def test_images_go_along_and_come_back_where_they_are_refused(start, opened, tmp_path: Path) -> None:
    setup = await start()
    (tmp_path / "one.png").write_bytes(PIXEL)
    tab = await opened(setup.url)
    await tab.page.get_by_label("Images").set_input_files(tmp_path / "one.png")
    await say(tab.page, "What is it?")
    await expect(tab.page.locator("#chat-status")).to_contain_text("'image_url' is not supported by this model")
    await expect(tab.page.get_by_label("Message", exact=True)).to_have_value("What is it?")
    await answer_with(tab.page, chunk("stop", content="A pixel."))
    await tab.page.get_by_role("button", name="Send").click()
    await expect(tab.page.locator("#messages .text").nth(1)).to_have_text("A pixel.")
    await expect(tab.page.get_by_alt_text("Image 1 of the message")).to_have_js_property("naturalWidth", 1)
    [message] = setup.engines[0].requests[0].json()["messages"]
    url = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    assert message["content"] == [
        {"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("events", "text", "said"),
    [
        (
            [chunk(reasoning_content="Hm."), chunk(content="Yes."), chunk("length")],
            "Yes.",
            "cut at the limit of tokens",
        ),
        ([chunk(content="Yes"), {"error": {"message": "The replica broke down."}}], "Yes", "The replica broke down."),
        ([chunk(content="Yes")], "Yes", "The answer was cut."),
        ([chunk("stop")], None, ""),
    ],
)
async def test_answers_of_every_end(start, opened, events: list[Any], text: str | None, said: str) -> None:
    tab = await opened((await start()).url)
    await answer_with(tab.page, *events)
    await say(tab.page)
    answer = tab.page.locator("#messages article").nth(1)
    if text is None:
        await expect(answer.locator(".text")).to_have_count(0)
    else:
        await expect(answer.locator("> .text")).to_have_text(text)
        await expect(answer.locator(".note")).to_contain_text(said)
    await expect(answer.locator("details")).to_have_count(int("reasoning_content" in str(events)))
    await expect(tab.page.get_by_role("button", name="Send")).to_be_enabled()
    tab.check()


async def test_calls_of_tools_are_shown_and_the_next_messages_are_their_results(start, opened) -> None:
    setup = await start()
    tab = await opened(setup.url)
    page = tab.page
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

    def call(index: int, more: str, **named: str) -> dict[str, Any]:
        begins = {"id": f"call-{index}", "type": "function"} if named else {}
        return chunk(tool_calls=[{"index": index, **begins, "function": {**named, "arguments": more}}])

    await page.get_by_text("Tools", exact=True).click()
    await page.get_by_label("Functions").fill("{")
    await say(page, "Weather?")
    await expect(page.locator("#chat-status")).to_contain_text("Tools are no JSON")
    await page.get_by_label("Functions").fill(json.dumps(tools))
    events = [call(0, '{"city":', name="weather"), call(0, ' "Oslo"}'), call(1, HOSTILE, name=HOSTILE)]
    await answer_with(page, *events, chunk("tool_calls"))
    await say(page, "Weather?")
    answer = page.locator("#messages article").nth(1)
    await expect(answer.locator(".text").nth(0)).to_have_text('{"city": "Oslo"}')
    await expect(answer.locator(".who").nth(2)).to_have_text(f"Calls {HOSTILE}")
    await expect(page.locator("#chat-status")).to_have_text("Your next message is the result of weather.")
    await say(page, "rain")
    await expect(page.locator("#chat-status")).to_have_text(f"Your next message is the result of {HOSTILE}.")
    await page.unroute("**/v1/chat/completions")
    await say(page, "none")
    await expect(page.locator("#messages article").last).to_contain_text("Hello, world!")
    sent = setup.engines[0].requests[0].json()
    assert sent["tools"] == tools
    assert [each["role"] for each in sent["messages"]] == ["user", "assistant", "tool", "tool"]
    assert sent["messages"][1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert [each["tool_call_id"] for each in sent["messages"][2:]] == ["call-0", "call-1"]
    assert await page.title() == "Models"
    tab.check()


async def test_a_refused_message_can_be_sent_again(start, opened) -> None:
    setup = await start(pools=lambda _: [make_pool(name="broken", outlook=Outlook(False, "It cannot be loaded."))])
    tab = await opened(setup.url)
    await say(tab.page)
    await expect(tab.page.locator("#chat-status")).to_have_text(
        "Nothing serves the model 'broken'. It cannot be loaded."
    )
    await expect(tab.page.get_by_label("Message", exact=True)).to_have_value("Hello?")
    await expect(tab.page.locator("#messages article")).to_have_count(0)


async def test_states_follow_the_fleet_and_a_request_wakes_a_model(start, opened) -> None:
    def pools(engines: list[FakeEngine]) -> list[Any]:
        return [make_pool(name="fake", outlook=ASLEEP), make_pool(name="other", outlook=Outlook(False, "No profile."))]

    setup = await start(pools=pools)
    tab = await opened(setup.url)
    cards = tab.page.locator(".model")
    await expect(cards.nth(0)).to_contain_text("asleep")
    await expect(cards.nth(0)).to_contain_text("It is scaled to zero; the next request wakes it.")
    await expect(cards.nth(1)).to_contain_text("failed")
    await cards.nth(0).click()
    await say(tab.page)
    await expect(tab.page.locator("#chat-status")).to_contain_text("Waiting for a replica…")
    await expect(cards.nth(0)).to_contain_text("1 waiting")
    setup.fleet.publish([make_pool([setup.engines[0].replica()], name="fake")])
    await expect(tab.page.locator("#messages article").nth(1)).to_contain_text("Hello, world!")
    await expect(cards.nth(0)).to_contain_text("Replicas: 1 ready")
    await expect(cards).to_have_count(1)
    tab.check()


async def test_a_hidden_or_closed_page_asks_nothing_and_a_seen_one_every_two_seconds(start, opened) -> None:
    setup = await start()
    tab = await opened(setup.url)
    await expect(tab.page.locator(".model")).to_have_count(1)
    now = asyncio.get_running_loop().time
    began = now()
    await setup.until(lambda: tab.polls() >= 3)
    assert tab.polls() <= 2 + (now() - began) / 2
    hide = "Object.defineProperty(document, 'hidden', {get: () => %s, configurable: true});"
    hide += "document.dispatchEvent(new Event('visibilitychange'))"
    await tab.page.evaluate(hide % "true")
    await asyncio.sleep(0.5)
    polls = tab.polls()
    await asyncio.sleep(3)
    assert tab.polls() == polls
    began = now()
    for _ in range(20):
        await tab.page.evaluate(hide % "false")
    await setup.until(lambda: tab.polls() > polls)
    await asyncio.sleep(0.5)
    assert tab.polls() <= polls + 1 + (now() - began) / 2
    tab.check()


async def test_nothing_is_shown_without_a_key_and_the_key_stays_in_the_tab(start, opened, tmp_path: Path) -> None:
    (tmp_path / "alice").write_text(KEY)
    setup = await start(access=KeyedAccess(tmp_path))
    tab = await opened(setup.url)
    key = tab.page.get_by_label("API key")
    await expect(key).to_be_visible()
    await expect(tab.page.locator("#fleet")).to_be_hidden()
    await asyncio.sleep(3)
    assert tab.polls() == 1, "it does not go on asking without a key"
    await key.fill("mallory-0123456789abc")
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.get_by_role("alert")).to_have_text("The API key is not one that this gateway knows.")
    await key.fill(KEY)
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.locator(".model")).to_contain_text("fake")
    await expect(key).to_be_hidden()
    await expect(tab.page.locator("#snippet")).to_contain_text('"Authorization: Bearer $OPENAI_API_KEY"')
    await say(tab.page)
    await expect(tab.page.locator("#messages article").nth(1)).to_contain_text("Hello, world!")
    await tab.page.get_by_role("link", name="The API").click()
    await expect(tab.page.get_by_role("heading", name="Fairlead gateway")).to_be_visible()
    assert not any(KEY in url for url in tab.requests)
    assert await tab.page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    for path in ("/", "/docs"):
        fresh = await opened(setup.url, path)
        await expect(fresh.page.get_by_label("API key")).to_be_visible()
    await fresh.page.get_by_label("API key").fill(KEY)
    await fresh.page.keyboard.press("Enter")
    await expect(fresh.page.locator("#operations details").first).to_be_visible()


async def test_hostile_names_sentences_prompts_and_answers_are_text(start, opened, tmp_path: Path) -> None:
    engine = FakeEngine(
        "engine-0",
        served_name=NAME,
        tokens=("Hi ", HOSTILE, "</div>", "<style>*{display:none}</style>", "end"),
    )

    def pools(engines: list[FakeEngine]) -> list[Any]:
        broken = make_pool(name="broken", aliases=(NAME + NAME,), outlook=Outlook(False, HOSTILE))
        return [make_pool([engine.replica()], served_name=NAME), broken]

    setup = await start(engines=[engine], pools=pools)
    tab = await opened(setup.url)
    await expect(tab.page.locator(".ready")).to_have_count(1)
    await expect(tab.page.locator("strong.name").nth(1)).to_have_text(NAME)
    await expect(tab.page.locator(".message").nth(0)).to_have_text(HOSTILE)
    await say(tab.page, HOSTILE)
    await expect(tab.page.locator("#messages .text").nth(0)).to_have_text(HOSTILE)
    await expect(tab.page.locator("#messages .text").nth(1)).to_have_text(
        "Hi " + HOSTILE + "</div><style>*{display:none}</style>end"
    )
    await tab.page.get_by_role("button", name="Why there?").click()
    await expect(tab.page.locator("#request dd").nth(0)).to_have_text("default/fake, asked for as " + NAME)
    await expect(tab.page.locator("#replicas th")).to_have_text("engine-0")
    assert await tab.page.title() == "Models"
    assert await tab.page.locator("#fleet script, #fleet style, #fleet img").count() == 0
    tab.check()
    for client in ("curl", "OpenAI (Python)"):
        await tab.page.get_by_label("Client").select_option(client)
        example = await tab.page.locator("#snippet").text_content()
        command = ["bash", "-c", example] if client == "curl" else [sys.executable, "-c", example]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert "Hi " in done.stdout, done.stderr
        assert setup.engines[0].requests[-1].json()["messages"][0]["content"] == "Hello"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("client", ["curl", "OpenAI (Python)", "Anthropic (Python)", "LangChain", "LiteLLM"])
async def test_examples_work_as_copied(start, opened, tmp_path: Path, client: str) -> None:
    (tmp_path / "alice").write_text(KEY)
    setup = await start(access=KeyedAccess(tmp_path))
    tab = await opened(setup.url)
    await tab.page.get_by_label("API key").fill(KEY)
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_label("Client").select_option(client)
    example = await tab.page.locator("#snippet").text_content()
    command = ["bash", "-c", example] if client == "curl" else [sys.executable, "-c", example]
    done = await asyncio.to_thread(
        subprocess.run, command, env=os.environ | {"OPENAI_API_KEY": KEY}, capture_output=True, text=True, timeout=200
    )
    assert "Hello, world!" in done.stdout, done.stderr


async def test_open_webui_is_told_of_the_gateway(start, opened) -> None:
    setup = await start()
    tab = await opened(setup.url)
    await tab.page.get_by_label("Client").select_option("Open WebUI")
    await expect(tab.page.locator("#snippet")).to_contain_text(f"OPENAI_API_BASE_URL='{setup.url}/v1'")


async def test_the_keyboard_alone_is_enough(start, opened) -> None:
    def pools(engines: list[FakeEngine]) -> list[Any]:
        return [make_pool([each.replica()], name=each.served_name) for each in engines]

    setup = await start(engines=[FakeEngine("1", served_name="gake"), FakeEngine("2", served_name="fake")], pools=pools)
    setup.engines[0].pace = lambda index: asyncio.sleep(0 if index == 0 else 3600)
    tab = await opened(setup.url)
    page = tab.page
    await expect(page.locator(".model")).to_have_count(2)

    async def tab_to(name: str) -> None:
        for _ in range(25):
            await page.keyboard.press("Tab")
            if await page.evaluate(FOCUSED) == name:
                return
        raise AssertionError(f"{name} cannot be reached")

    await tab_to("model")
    await page.keyboard.press("ArrowDown")
    await expect(page.get_by_role("radio").nth(1)).to_be_checked()
    await expect(page.locator("#snippet")).to_contain_text("gake")
    await tab_to("prompt")
    await page.keyboard.type("Hi")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("there")
    await page.keyboard.press("Enter")
    await expect(page.locator("#messages .text").nth(1)).to_have_text("Hello")
    assert setup.engines[0].requests[0].json()["messages"][0]["content"] == "Hi\nthere"
    await page.keyboard.press("Escape")
    await expect(page.locator("#messages .note")).to_have_text("Stopped.")
    await page.keyboard.type("Again")
    await tab_to("send")
    await page.keyboard.press("Space")
    await expect(page.get_by_role("button", name="Stop")).to_be_focused()
    await page.keyboard.press("Space")
    await expect(page.get_by_label("Message", exact=True)).to_be_focused()
    await tab_to("Replicas")
    await tab_to("request-id")
    await page.keyboard.type("unknown")
    await page.keyboard.press("Enter")
    await expect(page.locator("#request-status")).to_contain_text("keeps no request")
    await tab_to("client")
    await page.keyboard.press("ArrowDown")
    await expect(page.locator("#snippet")).to_contain_text("OpenAI")
    await page.goto(setup.url + "/docs")
    await tab_to("filter")
    await page.keyboard.type("/v1/chat/completions")
    await tab_to("POST /v1/chat/completions")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("presence_penalty").first).to_be_visible()
    await page.get_by_role("link", name="Models").press("Enter")
    await expect(page.locator(".model")).to_have_count(2)
    assert [each for each in tab.complaints if "404" not in each] == []


async def test_the_last_hour_the_replicas_and_one_request_are_shown(start, opened) -> None:
    reason = f"2 replicas: 1 would leave 14 requests waiting {HOSTILE}"
    now = datetime.now(UTC).isoformat()

    def pools(engines: list[FakeEngine]) -> list[Any]:
        pool = make_pool([each.replica() for each in engines], target_ttft_seconds=0.5)
        return [replace(pool, changes=(ScalingChange(now, 1, 2, reason),))]

    setup = await start(2, pools=pools)
    await setup.stream()
    setup.gateway.app.histories.look()
    tab = await opened(setup.url)
    first = tab.page.locator("figure").nth(0)
    await expect(first).to_contain_text("First token, p90:")
    await expect(first).to_contain_text("target 500 ms")
    await expect(tab.page.locator("figure").nth(2)).to_contain_text("ready 2, starting 0")
    assert await tab.page.locator("#charts polyline").count() == 5
    assert await tab.page.locator("#charts line.mark").count() == 3
    await expect(tab.page.locator("#changes li")).to_contain_text(f"1 → {reason}")
    await expect(tab.page.locator("#replicas tr")).to_have_count(2)
    await say(tab.page)
    await tab.page.get_by_role("button", name="Why there?").click()
    await expect(tab.page.locator("#request dd").nth(0)).to_have_text("default/fake, asked for as fake")
    await expect(tab.page.locator("#request tbody tr")).to_have_count(2)
    await tab.page.get_by_label("x-request-id").fill("../unknown")
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.locator("#request-status")).to_contain_text("keeps no request")
    assert [each for each in tab.complaints if "404" not in each] == []
    assert await tab.page.title() == "Models"


async def test_a_lost_replica_is_told_of_in_every_view(start, opened) -> None:
    setup = await start(2)
    setup.engines[0].pace = setup.engines[1].pace = lambda index: asyncio.sleep(0 if index == 0 else 3600)
    tab = await opened(setup.url)
    page = tab.page
    await expect(page.locator("#replicas tr")).to_have_count(2)
    await say(page)
    answer = page.locator("#messages article").nth(1)
    await expect(answer).to_contain_text("Hello")
    lost, other = sorted(setup.engines, key=lambda each: len(each.requests), reverse=True)
    setup.fleet.publish([make_pool([other.replica()])])
    lost.kill()
    await expect(answer.locator(".note")).to_contain_text(f"The replica {lost.name} failed in the middle of its answer")
    await expect(page.locator(".model")).to_contain_text("Replicas: 1 ready")
    await expect(page.locator("#replicas tr")).to_have_count(1)
    await page.get_by_role("button", name="Why there?").click()
    await expect(page.locator("#request dd").nth(3)).to_have_text(lost.name)
    setup.fleet.publish([make_pool(outlook=Outlook(True, "Its only replica was lost; another one starts."))])
    await expect(page.locator(".model")).to_contain_text("Its only replica was lost; another one starts.")
    await expect(page.locator("#no-replicas")).to_be_visible()
    tab.check()


async def test_a_model_at_zero_has_every_view(start, opened) -> None:
    setup = await start(pools=lambda _: [make_pool(outlook=ASLEEP, target_ttft_seconds=0.5)])
    tab = await opened(setup.url)
    await expect(tab.page.locator("figure").nth(0)).to_contain_text("last none yet target 500 ms highest none")
    await expect(tab.page.locator("figure").nth(2)).to_contain_text("ready 0 starting 0")
    await expect(tab.page.locator("#no-replicas")).to_be_visible()
    await expect(tab.page.locator("#snippet")).to_contain_text("fake")
    tab.check()


async def test_a_hundred_models_are_searched_and_chosen(start, opened) -> None:
    setup = await start(pools=lambda _: [make_pool(name=f"model-{n:03}", outlook=ASLEEP) for n in range(100)])
    tab = await opened(setup.url, viewport={"width": 390, "height": 800})
    await expect(tab.page.locator(".model")).to_have_count(100)
    assert await tab.page.evaluate("document.documentElement.scrollHeight") < 100 * 40, "the list scrolls by itself"
    await check_anybody_can_use(tab.page)
    await tab.page.get_by_label("Find").first.fill("-042")
    await expect(tab.page.locator(".model:visible")).to_have_count(1)
    await tab.page.locator(".model:visible").click()
    await expect(tab.page.locator("#snippet")).to_contain_text("model-042")
    await setup.until(lambda: any(url.endswith("/models/default/model-042") for url in tab.requests))
    tab.check()


async def check_anybody_can_use(page: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe is not installed: make setup-dev")
    found = (await axe.Axe().run(page)).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []


@pytest.mark.matrix(2)
@pytest.mark.parametrize("path", ["/", "/docs"])
@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
async def test_views_fit_their_width_and_anybody_can_use_them(
    start, opened, tmp_path: Path, path: str, key: str | None, scheme: str, width: int
) -> None:
    """`key`: what the gateway asks for, and nobody has typed."""

    def pools(engines: list[FakeEngine]) -> list[Any]:
        long = make_pool(name="a-name-of-many-characters" * 4, outlook=Outlook(False, "sentence" * 40))
        starting = make_pool(name="starting", outlook=Outlook(True, "Its replicas are starting."))
        change = ScalingChange(datetime.now(UTC).isoformat(), 1, 2, "sentence" * 40)
        ready = make_pool([each.replica() for each in engines], target_ttft_seconds=0.5)
        return [replace(ready, changes=(change,)), make_pool(name="zero", outlook=ASLEEP), starting, long]

    (tmp_path / "alice").write_text(KEY)
    setup = await start(2, pools=pools, **({"access": KeyedAccess(tmp_path)} if key else {}))
    setup.gateway.app.histories.look()
    size = {"width": width, "height": 800}
    tab = await opened(setup.url, path, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    if key:
        await expect(tab.page.get_by_label("API key")).to_be_visible()
        await expect(tab.page.locator("#fleet:visible, #operations > *")).to_have_count(0)
    elif path == "/":
        await expect(tab.page.locator(".model")).to_have_count(4)
        await tab.page.get_by_text("System prompt").click()
        await say(tab.page, "word" * 100)
        await expect(tab.page.locator("#messages article").nth(1)).to_contain_text("world!")
        await tab.page.get_by_role("button", name="Why there?").click()
        await expect(tab.page.locator("#request tbody tr")).to_have_count(2)
        await expect(tab.page.locator("#changes li")).to_have_count(1)
    else:
        await tab.page.get_by_text("/v1/chat/completions").first.click()
        await expect(tab.page.get_by_text("presence_penalty").first).to_be_visible()
    assert await tab.page.evaluate("document.documentElement.scrollWidth") <= width
    ground = await tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.strip("rgb()").split(","))) < 3 * 128) == (scheme == "dark")
    await check_anybody_can_use(tab.page)
    assert [each for each in tab.complaints if key is None or "401" not in each] == []
