"""Requests that are wrong: an answer in OpenAI's error shape that names the field, and no work for the engine."""

import asyncio
import json
from typing import Any

import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "ahoy"}]}


def error_of(response: Any) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return dict(body["error"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"), ("temperature", True), ("temperature", -0.1), ("temperature", 101), ("top_p", [1]),
        ("top_p", -0.1), ("top_p", 1.5), ("top_k", -2), ("top_k", 1.5), ("min_p", 2), ("presence_penalty", 3),
        ("frequency_penalty", -3), ("repetition_penalty", 0), ("seed", 2**63), ("seed", "x"),
        ("max_tokens", -2), ("max_tokens", 10**400), ("max_completion_tokens", -2), ("min_tokens", -1), ("n", 0),
        ("n", 129), ("n", "2"), ("stop", [""]), ("stop", 5), ("stop", ["x"] * 17), ("stop", "x" * 2000),
        ("stop_token_ids", [-1]), ("stop_token_ids", [99999]), ("stop_token_ids", [1] * 300), ("stream", "yes"),
        ("stream", 1), ("stream_options", {"include_usage": True}), ("top_logprobs", 2), ("logprobs", 5),
        ("model", None), ("messages", None), ("messages", "ahoy"), ("messages", []), ("cache_salt", 5),
        ("best_of", 2), ("echo", True), ("prompt", "ahoy"), ("temperatur", 1), ("guided_json", 5),
        ("logit_bias", {"5": 101}), ("logit_bias", {"5": "x"}), ("logit_bias", {"fox": 1}), ("logit_bias", {"-5": 1}),
        ("logit_bias", {"512": 1}), ("logit_bias", {"9" * 5000: 1}), ("logit_bias", {"٣": 1}), ("logit_bias", [5]),
        ("logit_bias", {"9": 1, "09": 2}),
        ("logit_bias", {str(each): 1 for each in range(1025)}),
        ("allowed_token_ids", []), ("allowed_token_ids", [-1]), ("allowed_token_ids", [99999]), ("bad_words", [""]),
        ("bad_words", ["x"] * 65), ("bad_words", ["x" * 257]), ("bad_words", "fox"), ("dry_base", 0.5),
        ("dry_sequence_breakers", [""]), ("dry_sequence_breakers", ["x"] * 33), ("dry_penalty_last_n", -2),
        ("xtc_threshold", 2), ("prompt_logprobs", -1),
        ("priority", "high"), ("priority", 2**31), ("priority", -(10**30)), ("priority", 0.5),
        ("return_token_ids", "yes"), ("continue_final_message", 1),
    ],
)  # fmt: skip
async def test_a_wrong_value_in_a_chat_is_refused_by_name(start_app: Any, field: str, value: Any) -> None:
    app = start_app(unknown_fields="refuse")
    response = await app.http.post("/v1/chat/completions", content=json.dumps({**CHAT, field: value}))
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(field)
    assert field in error["message"]
    assert app.engine.requests == []


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
async def test_numbers_that_are_not_finite_are_refused_by_name(start_app: Any, field: str, text: str) -> None:
    body = json.dumps(CHAT)[:-1] + f', "{field}": {text}}}'
    response = await start_app().http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == field


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("tools", [{"type": "function", "function": {"name": "tide"}}], 'tool_choice = "required"'),
        ("functions", [{"name": "tide"}], 'tool_choice = "required"'),
        ("audio", {"voice": "x"}, "text only"),
        ("modalities", ["audio"], "text only"),
        ("chat_template_kwargs", {"messages": []}, "messages"),
    ],
)
async def test_what_would_change_the_result_and_is_not_supported_is_refused_with_advice(
    start_app: Any, field: str, value: Any, advice: str
) -> None:
    response = await start_app().chat(**{field: value})
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == field
    assert advice in error["message"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "captain", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([CHAT["messages"][0], {"role": "user"}], "messages[1].content"),  # type: ignore[index]
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]"),
        (["ahoy"], "messages[0]"),
    ],
)
async def test_a_wrong_message_is_refused_by_its_place(start_app: Any, messages: Any, param: str) -> None:
    response = await start_app().chat(messages=messages)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"), ([], "prompt"), ([[]], "prompt[0]"), ([1, "a"], "prompt"), ([[1], "a"], "prompt"),
        ([1, True], "prompt"), ([1.5], "prompt"), ([-1], "prompt"), ([512], "prompt"), ([10**30], "prompt"),
        ([[1], [512]], "prompt[1]"), (["a", ""], "prompt[1]"), (5, "prompt"), (None, "prompt"), ({}, "prompt"),
        ([1] * 256, "prompt"), (["a"] * 129, "prompt"),
    ],
)  # fmt: skip
async def test_a_wrong_prompt_is_refused_by_its_place(start_app: Any, prompt: Any, param: str) -> None:
    app = start_app()
    response = await app.complete(prompt=prompt)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert app.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"), ({"logprobs": True}, "logprobs"),
        ({"best_of": 2, "n": 3}, "best_of"), ({"best_of": 2, "stream": True}, "best_of"), ({"best_of": 129}, "best_of"),
        ({"best_of": 0}, "best_of"), ({"best_of": 2, "n": 0}, "n"), ({"best_of": 2, "n": -1}, "n"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"), ({"suffix": "x"}, "suffix"),
        ({"messages": []}, "messages"), ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x"),
    ],
)  # fmt: skip
async def test_a_wrong_value_in_a_completion_is_refused_by_name(
    start_app: Any, fields: dict[str, Any], param: str
) -> None:
    response = await start_app(unknown_fields="refuse").complete(**fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(start_app: Any) -> None:
    error = error_of(await start_app().complete(prompt=[1] * 300))
    assert error["code"] == "context_length_exceeded"
    assert "256 tokens" in error["message"]
    assert "has 300" in error["message"]
    assert "at most 255" in error["message"]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_that_has_no_room_behind_its_prompt_is_refused_with_the_numbers(
    start_app: Any, field: str
) -> None:
    app = start_app()
    prompt = (await app.chat(max_tokens=1)).json()["usage"]["prompt_tokens"]
    assert (await app.chat(**{field: 256 - prompt})).status_code == 200
    response = await app.chat(**{field: 256 - prompt + 1})
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, field, "context_length_exceeded")
    assert f"has {prompt} and {field} asks for {257 - prompt} more" in error["message"]
    assert f"at most {256 - prompt}" in error["message"]


async def test_a_completion_that_asks_for_no_length_goes_on_to_the_end_of_the_context(start_app: Any) -> None:
    app = start_app()
    assert (await app.complete(prompt=[1] * 250)).status_code == 200
    error = error_of(await app.complete(prompt=[[1] * 3, [1] * 250], max_tokens=7))
    assert error["param"] == "max_tokens"


async def test_the_longest_possible_prompt_is_taken(start_app: Any) -> None:
    assert (await start_app().complete(prompt=[65] * 255)).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b'{"model": "tiny", "messages"', b"[]", b'"text"', b"null", b"\xff\xfe", b'{"a": "\xff"}',
     b'{"model": "\\ud800"}', b'{"messages": ' + b"[" * 100_000],
)  # fmt: skip
async def test_a_body_that_is_no_json_object_is_refused(start_app: Any, body: bytes) -> None:
    response = await start_app().http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("enable_thinking", "chat_template_kwargs"), ("regex", "structured_outputs"), ("format", "response_format"),
        ("stop_sequences", "stop"), ("repeat_penalty", "repetition_penalty"), ("n_predict", "max_tokens"),
        ("temprature", "temperature"),
    ],
)  # fmt: skip
async def test_a_typo_and_a_field_of_another_server_are_told_what_it_is_here(
    start_app: Any, name: str, field: str
) -> None:
    error = error_of(await start_app(unknown_fields="refuse").chat(**{name: 1}))
    assert error["message"] == f"unknown field {name!r}; did you mean {field!r}?"


@pytest.mark.parametrize("name", ["input", "system", "intent", "features", "conversation_id"])
async def test_what_is_like_no_field_is_no_typo(start_app: Any, name: str) -> None:
    error = error_of(await start_app(unknown_fields="refuse").chat(**{name: 1}))
    assert error["message"] == f"unknown field {name!r}; leave it out"


@pytest.mark.parametrize("name", ["fairlead_prompt_token", "prompt_tokens", "fairlead_prompt_tokens_", "prompt_tokenz"])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings"])
async def test_a_field_between_gateway_and_engine_is_never_proposed(start_app: Any, path: str, name: str) -> None:
    app = start_app(unknown_fields="refuse")
    response = await app.http.post(f"/v1/{path}", json={"model": "tiny", name: 1})
    error = error_of(response)
    assert error["message"].startswith(f"unknown field '{name}'")
    assert "fairlead_" not in error["message"].removeprefix(f"unknown field '{name}'")


TIDE = {"name": "tide"}
CUSTOM = {"type": "custom", "custom": {"name": "run", "format": {"type": "text"}}}
CALLED = {"id": "1", "type": "custom", "custom": {"name": "run"}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"functions": [TIDE], "tools": [{"type": "function", "function": TIDE}]}, "functions", "one of the two"),
        ({"functions": [TIDE], "tool_choice": "auto"}, "functions", "one of the two"),
        ({"functions": [TIDE], "function_call": "required"}, "function_call", '"none", "auto"'),
        ({"functions": [TIDE], "function_call": {"name": "x"}}, "tool_choice", "none of the tools"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name", "1 to 128"),
        ({"functions": [{**TIDE, "parameters": 1}]}, "functions[0].parameters", "JSON schema"),
        ({"tools": [{"type": "custom", "custom": {"name": 1}}]}, "tools[0].custom.name", "1 to 128"),
        ({"tools": [{"type": "custom"}]}, "tools[0]", "function"),
        ({"tools": [CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice", "none of the"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALLED]}]}, "messages[0].tool_calls[0]", '"input"'),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call", '"arguments"'),
    ],
)
async def test_other_forms_of_tools_are_checked_by_their_own_names(
    start_app: Any, fields: dict[str, Any], param: str, words: str
) -> None:
    response = await start_app(tool_call_parser="hermes").chat(**fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param and words in error_of(response)["message"]


@pytest.mark.parametrize("value", [b"NaN", b"1"])
async def test_a_name_without_end_is_said_again_in_part(start_app: Any, value: bytes) -> None:
    """As the place of a number that is none, and as an unknown field."""
    body = b'{"model": "tiny", "' + b"x" * 50_000 + b'": ' + value + b"}"
    response = await start_app(unknown_fields="refuse").http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == "x" * 127 + "…" and len(error["message"]) < 200


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_body_over_the_limit_is_refused_before_it_is_parsed(start_app: Any, streamed: bool) -> None:
    app = start_app(max_body_bytes=1024)
    body = json.dumps({**CHAT, "user": "x" * 5000}).encode()

    async def chunks() -> Any:
        for start in range(0, len(body), 500):
            yield body[start : start + 500]

    response = await app.http.post("/v1/chat/completions", content=chunks() if streamed else body)
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_a_body_that_drips_is_refused_however_steadily_it_comes(start_app: Any, path: str) -> None:
    app = start_app(body_timeout=0.1)

    async def drip() -> Any:
        while True:
            yield b" "
            await asyncio.sleep(0.005)

    response = await app.http.post(path, content=drip())
    assert (response.status_code, response.headers["connection"]) == (408, "close")
    assert error_of(response)["code"] == "request_timeout"
    assert app.engine.requests == []


async def test_bodies_that_come_slowly_cannot_fill_the_memory(start_app: Any) -> None:
    app = start_app(max_body_bytes=50_000, max_partial_body_bytes=50_000)
    go_on = asyncio.Event()

    async def begun() -> Any:
        yield b"x" * 40_000
        await go_on.wait()

    slow = asyncio.create_task(app.http.post("/v1/chat/completions", content=begun()))
    while app.service.bodies.num_bytes < 40_000:
        await asyncio.sleep(0.001)
    refused = await app.http.post("/v1/chat/completions", content=begun())
    assert (refused.status_code, refused.headers["x-fairlead-reason"]) == (429, "engine-full")
    assert "more request bodies at once than it has memory for" in error_of(refused)["message"]
    assert (await app.chat()).status_code == 200, "a body that is whole at once is never too much"
    go_on.set()
    assert (await slow).status_code == 400
    assert app.service.bodies.num_bytes == 0


async def test_a_compressed_body_is_refused_as_such(start_app: Any) -> None:
    app = start_app()
    response = await app.http.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    assert error_of(response)["code"] == "unsupported_content_encoding"


async def test_an_unknown_model_is_404(start_app: Any) -> None:
    response = await start_app().chat(model="other")
    assert response.status_code == 404
    error = error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'tiny'" in error["message"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v2/nothing", 404), ("GET", "/", 404),
    ("GET", "/v1/chat/completions", 405), ("DELETE", "/v1/models", 405), ("POST", "/ready", 405),
    ("POST", "/openapi.json", 405), ("OPTIONS", "/tokenize", 405), ("GET", "/health/", 404), ("POST", "/docs", 405),
    ("GET", "/redoc", 404), ("POST", "/v1/chat/completions/", 404)])  # fmt: skip
async def test_unknown_paths_and_methods_have_the_same_error_shape(
    start_app: Any, method: str, path: str, status: int
) -> None:
    app = start_app()
    response = await app.http.request(method, path)
    assert response.status_code == status
    code = "method_not_allowed" if status == 405 else "not_found"
    assert (error_of(response)["type"], error_of(response)["code"]) == ("invalid_request_error", code)
    assert response.headers["x-request-id"]
    assert ("allow" in response.headers) == (status == 405)
    assert "http_requests_total" in app.service.metrics.render().decode()


@pytest.mark.parametrize(("path", "allowed"), [("/health", "GET, HEAD"), ("/openapi.json", "GET, HEAD"),
    ("/fairlead/v1/drain", "POST"), ("/v1/completions", "POST")])  # fmt: skip
async def test_a_405_says_which_methods_are_possible(start_app: Any, path: str, allowed: str) -> None:
    assert (await start_app().http.request("PUT", path)).headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/v1/models/tiny",
    "/openapi.json", "/docs"])  # fmt: skip
async def test_head_answers_as_get_does(start_app: Any, path: str) -> None:
    app = start_app()
    get, head = await app.http.get(path), await app.http.head(path)
    assert (head.status_code, head.headers["content-type"]) == (200, get.headers["content-type"])


async def test_a_model_without_a_chat_template_says_so(start_app: Any, tokenizer: Any) -> None:
    from fairlead_common.tokens.tokenizing import PromptTokenizer
    from fairlead_engine.api.served_model import ModelFiles

    app = start_app(ready=False)
    app.service.ready(ModelFiles(PromptTokenizer(tokenizer.tokenizer_json), {}), app.engine.info)
    error = error_of(await app.chat())
    assert "/v1/completions" in error["message"]
