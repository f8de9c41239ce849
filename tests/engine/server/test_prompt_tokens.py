"""`fairlead_prompt_tokens`: ids from a gateway replace rendering and tokenising, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine_testing import ScriptedEngine

Check = Callable[..., None]
IDS = [100, 101, 102]


def given(tokenizer: PromptTokenizer, *prompts: list[int], digest: str | None = None) -> dict[str, Any]:
    return {"digest": tokenizer.digest if digest is None else digest, "prompts": list(prompts)}


def asked(app: Any) -> list[list[int]]:
    return [list(request.prompt_token_ids) for request in app.engine.requests]


async def test_a_chats_ids_are_used(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app()
    response = await app.chat(fairlead_prompt_tokens=given(tokenizer, IDS))
    assert response.status_code == 200
    assert asked(app) == [IDS]
    assert response.json()["usage"]["prompt_tokens"] == len(IDS)


async def test_every_prompt_of_a_completion_has_its_ids(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app()
    tokens = given(tokenizer, IDS, IDS[:2])
    response = await app.complete(prompt=["a", "b"], n=2, echo=True, max_tokens=1, fairlead_prompt_tokens=tokens)
    assert response.status_code == 200
    assert sorted(asked(app)) == sorted([IDS, IDS, IDS[:2], IDS[:2]])
    assert response.json()["choices"][0]["text"].startswith(tokenizer.decode(IDS))


@pytest.mark.parametrize("prompts", [[IDS], [[999_999]], [], [IDS, IDS]])
async def test_ids_of_another_tokenizer_are_ignored(
    start_app: Any, tokenizer: PromptTokenizer, prompts: list[list[int]]
) -> None:
    app = start_app()
    response = await app.chat(fairlead_prompt_tokens=given(tokenizer, *prompts, digest="another"))
    assert response.status_code == 200
    assert asked(app) == [tokenizer.encode_chat([{"role": "user", "content": "ahoy"}])]


async def test_none_are_as_good_as_nothing(start_app: Any, tokenizer: PromptTokenizer) -> None:
    app = start_app()
    assert (await app.complete(fairlead_prompt_tokens=None)).status_code == 200
    assert asked(app) == [tokenizer.encode("ahoy")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"temperature": -1}, "temperature"),
        ({"n": 1000}, "n"),
        ({"model": "another"}, "model"),
    ],
)
async def test_everything_else_is_checked_as_ever(
    start_app: Any, tokenizer: PromptTokenizer, fields: dict[str, Any], param: str
) -> None:
    app = start_app()
    response = await app.chat(**{"fairlead_prompt_tokens": given(tokenizer, IDS), **fields})
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param
    assert asked(app) == []


@pytest.mark.parametrize("prompt", [[], ["a", 5], [[1], "a"]])
async def test_a_prompt_of_no_shape_is_refused(start_app: Any, tokenizer: PromptTokenizer, prompt: Any) -> None:
    response = await start_app().complete(prompt=prompt, fairlead_prompt_tokens=given(tokenizer, IDS))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("prompts", "param", "code"),
    [
        ([], "fairlead_prompt_tokens", None),
        ([IDS, IDS], "fairlead_prompt_tokens", None),
        ([[-1]], "messages", None),
        ([[512]], "messages", None),
        ([[2**70]], "messages", None),
        ([[]], "messages", None),
        ([[1] * 256], "messages", "context_length_exceeded"),
    ],
)
async def test_ids_that_do_not_fit_the_model_are_refused(
    start_app: Any, tokenizer: PromptTokenizer, prompts: list[list[int]], param: str, code: str | None
) -> None:
    app = start_app(ScriptedEngine())
    response = await app.chat(fairlead_prompt_tokens=given(tokenizer, *prompts))
    assert response.status_code == 400
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == (param, code)
    assert asked(app) == []


async def test_a_clients_own_wrong_ids_are_refused_by_the_name_of_its_field(
    start_app: Any, tokenizer: PromptTokenizer
) -> None:
    """A gateway sends a client's ids along as it sends its own."""
    prompt = [[1], [512]]
    response = await start_app().complete(prompt=prompt, fairlead_prompt_tokens=given(tokenizer, *prompt))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt[1]"
    assert "fairlead" not in response.text


@pytest.mark.parametrize(
    "tokens", [5, "x", [], {}, {"digest": 5, "prompts": []}, {"digest": "x", "prompts": [["a"]]}, {"digest": "x"}]
)
async def test_a_malformed_field_is_refused_by_name(start_app: Any, tokens: Any) -> None:
    response = await start_app().chat(fairlead_prompt_tokens=tokens)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("fairlead_prompt_tokens")


async def test_tokenize_knows_no_such_field(start_app: Any, tokenizer: PromptTokenizer) -> None:
    body = {"prompt": "ahoy", "fairlead_prompt_tokens": given(tokenizer, IDS)}
    response = await start_app(unknown_fields="refuse").http.post("/tokenize", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "fairlead_prompt_tokens"


async def test_the_field_is_described_as_internal(start_app: Any) -> None:
    document = (await start_app().http.get("/openapi.json")).json()
    for name in ("ChatRequest", "CompletionRequest"):
        field = document["components"]["schemas"][name]["properties"]["fairlead_prompt_tokens"]
        assert field["description"].startswith("Internal")
