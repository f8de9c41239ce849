"""A tool's result is put into an answer while it is streamed, which goes on as a new request behind all of it would."""

import json
from typing import Any

import httpx
import pytest

from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_engine.api.injectable_answer import InjectableAnswer, TurnsReader
from fairlead_engine.api.request_body import decode
from fairlead_engine.api.schemas import ChatRequest
from fairlead_engine.api.served_model import ModelFiles
from fairlead_engine.demo import resolve_model
from fairlead_engine.host.refusals import Gone
from fairlead_engine.types import EngineRequest, SamplingParams

TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CHAT: dict[str, Any] = {
    "model": "dinghy", "messages": [{"role": "user", "content": "Tell me the time in Paris."}], "tools": [TOOL],
    "stream": True, "injectable": True, "temperature": 0, "max_tokens": 250, "ignore_eos": True,
    "return_token_ids": True, "stream_options": {"include_usage": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def dinghy(serve_folder: Any) -> Any:
    return serve_folder("demo://dinghy", name="dinghy")


class Streamed:
    """An answer, and what was answered to what was put into it."""

    def __init__(self, url: str, contents: list[str], *, leaves: bool = False, **fields: Any) -> None:
        """`leaves`: when everything was answered."""
        self.token_ids: list[list[int]] = [[]]
        """Of each turn."""
        self.prompt: list[int] = []
        self.text = ""
        self.told: list[dict[str, Any]] = []
        self.replies: list[httpx.Response] = []
        self.calls: dict[int, dict[str, Any]] = {}
        body = {**CHAT, **fields}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as reply:
            assert reply.status_code == 200, reply.read()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    self._read(json.loads(line.removeprefix("data: ")), url, contents)
                if leaves and not contents:
                    break

    def _read(self, chunk: dict[str, Any], url: str, contents: list[str]) -> None:
        assert "error" not in chunk, chunk
        self.id = chunk["id"]
        self.prompt = chunk.get("prompt_token_ids") or self.prompt
        self.usage = chunk.get("usage")
        if "injected" in chunk:
            self.told.append(chunk["injected"])
            self.token_ids.append([])
        for choice in chunk["choices"]:
            self.token_ids[-1] += choice.get("token_ids", [])
            self.text += choice["delta"].get("content") or ""
            self.finish_reason = choice["finish_reason"]
            for call in choice["delta"].get("tool_calls", []):
                if call.get("id"):
                    self.calls[call["index"]] = {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
                self.calls[call["index"]]["arguments"] += call["function"]["arguments"]
            while self.calls and self._is_called() and contents:
                self.replies.append(inject(url, self.id, self.calls[0]["id"], contents.pop(0)))

    def _is_called(self) -> bool:
        try:
            json.loads(self.calls[0]["arguments"])
        except ValueError:
            return False
        return True


def inject(url: str, answer_id: str, call_id: str, content: str) -> httpx.Response:
    body = {"tool_call_id": call_id, "content": content}
    return httpx.post(f"{url}/v1/chat/completions/{answer_id}/inject", json=body, timeout=60)


@pytest.mark.slow
def test_an_answer_goes_on_with_a_result_as_a_new_request_would(dinghy: Any) -> None:
    answer = Streamed(dinghy.url, ['{"hour": 9}'])
    assert (answer.calls[0]["name"], json.loads(answer.calls[0]["arguments"])) == ("get_time", {"city": "Paris"})
    [reply] = answer.replies
    assert reply.status_code == 200, reply.text
    tokenizer = ModelFiles.read(resolve_model("demo://dinghy")).tokenizer
    result = tokenizer.encode('<|end|><|tool|>{"hour": 9}<|end|><|assistant|>', add_special_tokens=False)
    call_id = answer.calls[0]["id"]
    assert answer.told == [{"tool_call_id": call_id, "num_tokens": len(result)}]
    assert reply.json() == {
        "id": answer.id, "tool_call_id": call_id, "num_tokens": len(result), "object": "chat.completion.injection",
    }  # fmt: skip
    before, after = answer.token_ids
    assert len(before) + len(after) == 250 and answer.finish_reason == "length"
    fresh = httpx.post(
        f"{dinghy.url}/v1/completions",
        json={
            "model": "dinghy", "prompt": [*answer.prompt, *before, *result], "temperature": 0, "ignore_eos": True,
            "max_tokens": len(after), "return_token_ids": True,
        },
        timeout=60,
    ).json()  # fmt: skip
    assert fresh["choices"][0]["token_ids"] == after
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 250
    assert answer.usage["prompt_tokens"] == len(answer.prompt) + len(result), "a result is given, not generated"
    late = inject(dinghy.url, answer.id, call_id, "9")
    assert (late.status_code, late.json()["error"]["code"]) == (404, "answer_not_found")


def test_what_cannot_be_put_in_is_refused_in_a_sentence(dinghy: Any) -> None:
    """Answers are long enough to be there still."""
    common: dict[str, Any] = {"leaves": True, "max_tokens": 1500}
    twice = Streamed(dinghy.url, ["9", "9"], **common)
    assert [reply.status_code for reply in twice.replies] == [200, 400]
    error = twice.replies[1].json()["error"]
    assert (error["param"], error["code"]) == ("tool_call_id", "result_was_sent")
    huge = Streamed(dinghy.url, ["nine " * 2500, "9"], **common)
    assert [reply.status_code for reply in huge.replies] == [410, 200], "nothing is lost"
    assert "and the context of 2048 has room for" in huge.replies[0].json()["error"]["message"]
    plain = Streamed(dinghy.url, ["9"], injectable=False, **common)
    assert (plain.replies[0].status_code, plain.replies[0].json()["error"]["code"]) == (404, "answer_not_found")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stream": False, "stream_options": None}, "set stream to true"),
        ({"tools": None}, "there are no tools"),
        ({"tool_choice": "none"}, "there are no tools"),
        ({"n": 2}, "leave n and use_beam_search out"),
        ({"response_format": {"type": "json_object"}}, "kept to a grammar"),
        ({"tool_choice": "required"}, "kept to a grammar"),
    ],
)
def test_answers_that_nothing_can_be_put_into_are_refused_by_name(
    dinghy: Any, fields: dict[str, Any], said: str
) -> None:
    reply = httpx.post(f"{dinghy.url}/v1/chat/completions", json={**CHAT, **fields}, timeout=60)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "injectable")
    assert said in error["message"]


def test_an_answer_has_made_no_other_call_and_an_id_that_nobody_guesses(dinghy: Any) -> None:
    headers = {"x-request-id": "known"}
    with httpx.stream("POST", f"{dinghy.url}/v1/chat/completions", json=CHAT, headers=headers, timeout=60) as reply:
        lines = reply.iter_lines()  # which closes the stream when it is forgotten
        first = next(line for line in lines if line.startswith("data: {"))
        refused = inject(dinghy.url, json.loads(first.removeprefix("data: "))["id"], "call_none", "9")
        assert refused.status_code == 400, refused.text
        assert "the answer has made no call 'call_none'" in refused.json()["error"]["message"]
        assert inject(dinghy.url, "chatcmpl-known", "call_none", "9").status_code == 404


async def test_a_result_is_rendered_behind_the_answer_whatever_else_is_said(start_app: Any) -> None:
    service = start_app().service
    prompts, max_model_len = service.prompts, service.model().info.max_model_len
    for said in ("ahoy", "ANSWERSOFAR", "TURN"):
        messages = [{"role": "user", "content": said}]
        request = decode(
            json.dumps({"model": "tiny", "messages": messages}).encode(), ChatRequest, UnknownFields("refuse")
        )
        prompt = EngineRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(), arrival_time=0.0)
        answer = InjectableAnswer(request, prompt, TurnsReader(lambda _: None, [1]), None)
        [expected] = await prompts.encoded(["<|end|><|tool|>9<|end|><|assistant|>"])
        assert await answer.tokens("call_1", "9", prompts, max_model_len) == expected
        with pytest.raises(Gone, match="has room for fewer"):
            await answer.tokens("call_1", "word " * 100_000, prompts, max_model_len)
