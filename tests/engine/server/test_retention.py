"""Retention hints, as official clients send them: what they name is still cached after a flood of other prompts."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.api.served_model import ModelFiles
from fairlead_engine.api.service import Service
from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.server.app import build_app
from fairlead_engine_testing import FakeClock, FakeModelConfig, FakeRunner
from fairlead_engine_testing.fake_engine import fake_config
from fairlead_engine_testing.in_process_client import InProcessClient
from fairlead_engine_testing.prompts_here import PromptsHere

SAID = "a fairlead guides each line to where it runs freely"
EPHEMERAL = {"type": "ephemeral"}
TEXT: dict[str, Any] = {"type": "text", "text": SAID, "cache_control": EPHEMERAL}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT]}
TOOL = {"name": "tide", "input_schema": {"type": "object"}, "cache_control": {**EPHEMERAL, "ttl": "5m"}}


@dataclass
class Served:
    """An application and its core's clock."""

    app: Any
    http: httpx.AsyncClient
    clock: FakeClock

    async def message(self, content: Any = SAID, **fields: Any) -> int:
        """The cached tokens of a message's prompt."""
        asked: Any = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}
        http = anthropic.DefaultAsyncHttpxClient(transport=httpx2.ASGITransport(app=self.app))
        async with anthropic.AsyncAnthropic(base_url="http://engine", api_key="none", http_client=http) as client:
            return (await client.messages.create(model="tiny", **asked)).usage.cache_read_input_tokens or 0

    async def chat(self, **fields: Any) -> int:
        """The same of a chat."""
        client = openai.AsyncOpenAI(base_url="http://engine/v1", api_key="none", http_client=self.http)
        said: Any = [{"role": "user", "content": SAID}]
        answer = await client.chat.completions.create(model="tiny", messages=said, max_tokens=4, **fields)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    async def respond(self, **fields: Any) -> int:
        client = openai.AsyncOpenAI(base_url="http://engine/v1", api_key="none", http_client=self.http)
        answer = await client.responses.create(model="tiny", input=SAID, max_output_tokens=4, **fields)
        assert answer.usage is not None
        return answer.usage.input_tokens_details.cached_tokens

    async def flood(self) -> None:
        """Prompts of others, three times as much as the cache has room for."""
        for number in range(16):
            prompt = [number % 300, *range(1, 96)]
            reply = await self.http.post("/v1/completions", json={"model": "tiny", "prompt": prompt, "max_tokens": 1})
            assert reply.status_code == 200, reply.text


@pytest.fixture
async def served(tokenizer: PromptTokenizer, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """The product's HTTP application and core, on a runner without a model; 128 blocks of four tokens. Its parameter
    stands before the chat template."""
    assert tokenizer.chat_template is not None
    tokenizer = tokenizer.templated(getattr(request, "param", "") + tokenizer.chat_template.source)
    clock, model = FakeClock(), FakeModelConfig(vocab_size=320, max_position_embeddings=256, eos_token_ids=())

    def make_engine(config: EngineConfig) -> Engine:
        return Engine(config, FakeRunner(model, block_size=4), clock)

    client = InProcessClient(fake_config(num_blocks=128), make_engine)
    service = Service("tiny", client, ServerConfig(), make_asked=PromptsHere)
    service.ready(ModelFiles(tokenizer, {}), await client.start())
    app = build_app(service)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://engine") as http:
        yield Served(app, http, clock)
    await client.close()
    service.close()


HINTED = [
    pytest.param("message", {"content": [TEXT]}, 300, id="block"),
    pytest.param("message", {"system": [TEXT]}, 300, id="system"),
    pytest.param("message", {"content": [RESULT]}, 300, id="tool_result"),
    pytest.param("message", {"tools": [TOOL], "tool_choice": {"type": "none"}}, 300, id="tools"),
    pytest.param("message", {"cache_control": {**EPHEMERAL, "ttl": "1h"}}, 3600, id="top-level"),
    pytest.param("message", {"metadata": {"user_id": "u"}}, 300, id="user_id"),
    pytest.param("chat", {"prompt_cache_options": {"ttl": "30m"}, "prompt_cache_key": "k"}, 1800, id="ttl"),
    pytest.param("chat", {"prompt_cache_retention": "24h"}, 24 * 3600, id="24h"),
    pytest.param("chat", {"prompt_cache_key": "k"}, 300, id="prompt_cache_key"),
    pytest.param("chat", {"user": "u"}, 300, id="user"),
    pytest.param("chat", {"extra_headers": {"x-session-id": "s"}}, 300, id="x-session-id"),
    pytest.param("respond", {"prompt_cache_retention": "24h"}, 24 * 3600, id="response"),
]


@pytest.mark.parametrize(("how", "fields", "seconds"), HINTED)
async def test_a_hinted_prompt_survives_a_flood_until_its_time_is_over(
    served: Served, how: str, fields: dict[str, Any], seconds: int
) -> None:
    ask = getattr(served, how)
    assert await ask(**fields) == 0
    served.clock.advance(seconds - 1)
    await served.flood()
    assert await ask(**fields) > 16
    served.clock.advance(seconds)
    await served.flood()
    assert await ask(**fields) == 0


async def test_a_breakpoint_covers_the_prompt_up_to_it(served: Served) -> None:
    """Each for its own time: the system for an hour, what was said behind it for five minutes or not at all."""
    system = [{**TEXT, "cache_control": {**EPHEMERAL, "ttl": "1h"}}]
    whole = await served.message([TEXT], system=system) + await served.message([TEXT], system=system)
    served.clock.advance(299)
    await served.flood()
    assert await served.message([TEXT], system=system) == whole > 32
    served.clock.advance(301)
    await served.flood()
    assert 16 < await served.message(system=system) < whole - 16
    served.clock.advance(3601)
    await served.flood()
    assert await served.message(system=system) == 0


@pytest.mark.parametrize("served", ["{{ messages | length }}", "{{ messages[1].role }}"], indirect=True)
async def test_a_breakpoint_covers_all_where_the_template_has_no_such_beginning(served: Served) -> None:
    system = [{**TEXT, "cache_control": {**EPHEMERAL, "ttl": "1h"}}]
    assert await served.message(system=system) == 0
    whole = await served.message(system=system)
    served.clock.advance(3500)
    await served.flood()
    assert await served.message(system=system) == whole > 32


@pytest.mark.parametrize("prefixes", [{"2h": 0}, {"1h": "a"}, [1], {"1h": True}])
async def test_beginnings_that_are_none_are_refused_by_their_field(served: Served, prefixes: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="must be times and numbers of messages") as refused:
        await served.chat(extra_body={"prompt_cache_options": {"prefixes": prefixes}})
    assert refused.value.param == "prompt_cache_options.prefixes"


@pytest.mark.parametrize(
    ("how", "fields"),
    [
        ("message", {"content": [{"type": "text", "text": SAID}]}),
        ("message", {"content": [{**TEXT, "cache_control": None}]}),
        ("chat", {}),
        ("chat", {"prompt_cache_retention": "in_memory", "prompt_cache_options": {"mode": "implicit"}}),
    ],
)
async def test_without_a_hint_it_does_not(served: Served, how: str, fields: dict[str, Any]) -> None:
    ask = getattr(served, how)
    await ask(**fields)
    assert await ask(**fields) > 16
    await served.flood()
    assert await ask(**fields) == 0


@pytest.mark.parametrize("ttl", ["25h", "0s", "1d", "", 30, {}])
async def test_a_time_that_is_none_is_refused_by_its_field(served: Served, ttl: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="must be a time from 1s to 24h, such as 30m") as refused:
        await served.chat(extra_body={"prompt_cache_options": {"ttl": ttl}})
    assert refused.value.param == "prompt_cache_options.ttl"
    if isinstance(ttl, str):
        with pytest.raises(openai.BadRequestError, match=r"prefixes: each time must be a time from 1s") as refused:
            await served.chat(extra_body={"prompt_cache_options": {"prefixes": {ttl: 1}}})
        assert refused.value.param == "prompt_cache_options.prefixes"


@pytest.mark.parametrize(
    ("control", "said"),
    [({**EPHEMERAL, "ttl": "2h"}, "cache_control.ttl: .*send 5m or 1h"), ({"type": "x"}, "type: .*send ephemeral")],
)
async def test_a_breakpoint_that_is_none_is_refused_by_its_place(served: Served, control: Any, said: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=rf"messages\.0\.content\.0\..*{said}"):
        await served.message([{**TEXT, "cache_control": control}])
