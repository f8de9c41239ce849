"""`truncate_prompt_tokens` at a gateway: it cuts as engines do, so it foresees the prompt that is computed."""

import json

import pytest

from fairlead.gateway.openai.parse import parse
from fairlead.gateway.prompts.fields import raw_prompt
from fairlead.routing.replica import Limits
from fairlead_common.wire.messages import FIELD_TOKENS
from fairlead_testing.fake_engine import FakeEngine

LIMITS = Limits(max_num_seqs=4, max_num_queued_tokens=1024, max_model_len=512)
LONG = "one two three " * 1000
CHAT = {"model": "fake", "messages": [{"role": "user", "content": LONG}]}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "fake", "prompt": LONG}),
        ("/v1/completions", {"model": "fake", "prompt": [7] * 2000}),
        ("/v1/chat/completions", CHAT),
        ("/v1/embeddings", {"model": "fake", "input": [LONG, LONG]}),
    ],
)
@pytest.mark.parametrize(("kept", "num_tokens"), [(100, 100), (-1, 511)])
async def test_engines_get_the_tokens_that_are_kept(start, path, body, kept: int, num_tokens: int) -> None:
    setup = await start(engines=[FakeEngine(limits=LIMITS)], follow=True)
    assert (await setup.post(body, path))[1]["error"]["code"] == "context_length_exceeded"
    status, _, _ = await setup.post({**body, "truncate_prompt_tokens": kept}, path)
    assert status == 200
    sent = setup.engines[0].requests[-1].json()
    assert {len(ids) for ids in sent[FIELD_TOKENS]["prompts"]} == {num_tokens}
    assert sent["truncate_prompt_tokens"] == kept
    counters = setup.gateway.pools.find("fake", None).counters
    assert counters.prompt_tokens == num_tokens * len(sent[FIELD_TOKENS]["prompts"])


def test_bounds_and_estimates_are_of_what_is_kept() -> None:
    def bound(path: str = "/v1/completions", **fields: object) -> tuple[int, int]:
        request = parse(path, json.dumps(fields).encode(), [], request_id="r")
        raw = raw_prompt(path, request.fields, None)
        return raw.least().num_tokens, raw.num_tokens

    assert bound(prompt=[7] * 2000)[0] == 2000
    assert bound(prompt=[7] * 2000, truncate_prompt_tokens=100) == (100, 100)
    assert bound(prompt=[7] * 50, truncate_prompt_tokens=100) == (50, 38)
    assert bound(prompt=[[7] * 2000, [7] * 2000], truncate_prompt_tokens=100) == (100, 200)
    assert bound(prompt=[7] * 2000, truncate_prompt_tokens=-1)[0] == 0
    assert bound(prompt=[7] * 500_000, truncate_prompt_tokens=100) == (100, 100)
    assert bound(prompt=[7] * 500_000, truncate_prompt_tokens=-1)[0] == 0
    assert bound("/v1/rerank", query="a", documents=["b"], truncate_prompt_tokens=0)[0] == 1


def test_without_a_tokenizer_nothing_is_refused_that_would_be_cut() -> None:
    def refused(**fields: object) -> bool:
        request = parse("/v1/completions", json.dumps({"prompt": [7] * 2000, **fields}).encode(), [], request_id="r")
        return raw_prompt(request.path, request.fields, None).least().excess(512) is not None

    assert refused()
    assert not refused(truncate_prompt_tokens=-1)
    assert not refused(truncate_prompt_tokens=100)
    assert refused(truncate_prompt_tokens=600)
    assert refused(truncate_prompt_tokens=100, max_tokens=500)
