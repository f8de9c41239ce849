"""SageMaker's `/invocations` at a gateway."""

import json

import pytest

MESSAGES = [{"role": "user", "content": "Say hello"}]
CHAT = {"model": "fake", "messages": MESSAGES}


@pytest.mark.parametrize("path", ["/invocations", "/default/fake/invocations"])
async def test_an_invocation_is_the_request_that_its_fields_say(start, path: str) -> None:
    setup = await start()
    _, chat, _ = await setup.post(CHAT)
    status, answer, headers = await setup.post(CHAT, path)
    assert (status, answer["object"], answer["choices"]) == (200, "chat.completion", chat["choices"])
    assert headers["x-fairlead-replica"] == "engine-0"
    _, answer, _ = await setup.post({"model": "fake", "prompt": "Say", "max_tokens": 2}, path)
    assert (answer["object"], answer["choices"][0]["text"]) == ("text_completion", "Hello,")
    async with setup.http.post(setup.url + path, json=CHAT | {"stream": True}) as response:
        events = await response.text()
    assert response.content_type == "text/event-stream" and events.endswith("data: [DONE]\n\n")
    assert [request.path for request in setup.engines[0].requests] == [
        "/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/v1/chat/completions",
    ]  # fmt: skip
    status, document, _ = await setup.post({"model": "fake"}, path)
    assert (status, document["error"]["param"]) == (400, "messages")
    status, document, _ = await setup.post({**CHAT, "model": "other"}, path)
    assert status == 404 and "other" in json.dumps(document)
