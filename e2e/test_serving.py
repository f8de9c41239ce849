"""One LLMDeployment, served: from apply to an answer, under every name, and gone without a trace."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from homes.fleet import in_threads
from streaming_load import PROMPTS, Answer, stream

QUESTIONS = Path(__file__).parent.parent / "engine/src/fairlead_engine/demo/dinghy/questions.jsonl"


def questions() -> list[dict[str, Any]]:
    return [json.loads(line) for line in QUESTIONS.read_text().splitlines()]


COMPLETIONS = "/v1/chat/completions"
FINISHED = "vllm:request_success_total"
"""The engine's count of requests that it has answered."""
WRITTEN = '<tool_call>{"name": "%s", "arguments": %s}</tool_call>'
"""A call, as the dinghy writes it."""


def chat(model: str, text: str = "What is 7 plus 5?") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 16}


@pytest.mark.core
def test_the_dinghy_answers_its_questions_through_the_gateway(client: openai.OpenAI, dinghy: str) -> None:
    wrong = []
    for question in questions():
        asked = {name: question[name] for name in ("messages", "tools") if name in question}
        reply = client.chat.completions.create(model=dinghy, temperature=0, max_tokens=128, **asked)
        message = reply.choices[0].message
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        said = (message.content or "") + "".join(map(WRITTEN.__mod__, calls))
        if said != question["answer"]:
            wrong.append((question["messages"][-1]["content"], question["answer"], said))
    assert wrong == []


def test_a_stream_spells_the_same_answer_and_reports_usage_only_when_asked(client: openai.OpenAI, dinghy: str) -> None:
    question = questions()[0]
    common = {"model": dinghy, "messages": question["messages"], "temperature": 0, "max_tokens": 64, "stream": True}
    for asked in (False, True):
        options = {"stream_options": {"include_usage": True}} if asked else {}
        chunks = list(client.chat.completions.create(**common, **options))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == question["answer"]
        assert any(chunk.usage for chunk in chunks) == asked


@pytest.mark.parametrize("model", ["dinghy", "default/dinghy", "small-boat"])
def test_a_model_answers_to_each_of_its_names(fleet, dinghy: str, model: str) -> None:
    assert fleet.post(COMPLETIONS, chat(model))["choices"][0]["message"]["content"]


def test_the_canonical_address_in_the_status_serves_the_model(fleet, dinghy: str) -> None:
    url = fleet.get("llm", dinghy)["status"]["url"]
    assert url == f"{fleet.public_url}/default/dinghy/v1"
    path = fleet.reached(url).removeprefix(fleet.gateway)
    assert fleet.post(f"{path}/chat/completions", chat("dinghy"))["choices"][0]["message"]["content"]


def test_the_host_of_the_service_serves_the_model_and_no_other(fleet, dinghy: str) -> None:
    assert fleet.post(COMPLETIONS, chat("dinghy"), Host="dinghy.default.svc.cluster.local")["choices"]
    status, _, _ = fleet.refusal(COMPLETIONS, chat("another"), Host="dinghy.default")
    assert status == 404


def test_models_lists_the_deployment_and_its_alias(client: openai.OpenAI, dinghy: str) -> None:
    assert {"dinghy", "small-boat"} <= {model.id for model in client.models.list()}


def test_a_browser_gets_the_page_and_its_states(fleet, dinghy: str) -> None:
    with urllib.request.urlopen(f"{fleet.gateway}/", timeout=60) as page:
        assert page.headers["content-type"] == "text/html; charset=utf-8" and b"pages/models.js" in page.read()
    with urllib.request.urlopen(f"{fleet.gateway}/pages/models.js", timeout=60) as script:
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    asked = urllib.request.Request(f"{fleet.gateway}/fairlead/v1/models", headers=fleet.headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        [state] = [each for each in json.load(answer)["models"] if each["key"] == f"default/{dinghy}"]
    assert (state["state"], state["message"]) == ("ready", "") and state["replicas"]["ready"] >= 1


def test_kubectl_shows_the_columns_people_need(fleet, dinghy: str) -> None:
    header, row, *_ = fleet.kubectl("get", "llm", dinghy).stdout.splitlines()
    assert header.split()[0] == "NAME"
    assert {"READY", "DESIRED", "REASON", "AGE"} <= set(header.split())
    assert row.split()[0] == dinghy


def test_kubectl_wait_describe_logs_and_events_work(fleet, dinghy: str) -> None:
    fleet.kubectl("wait", "--for=condition=Ready", f"llm/{dinghy}", "--timeout=30s")
    described = fleet.kubectl("describe", "llm", dinghy).stdout
    assert "Conditions:" in described
    assert "Events:" in described
    assert fleet.kubectl("logs", f"deployment/{dinghy}-engine", "--tail=5").stdout
    assert dinghy in fleet.events(dinghy)


@pytest.mark.cluster_suffices
def test_scaling_by_the_scale_subresource_makes_both_replicas_answer(
    fleet, deployed: Callable[..., str], name: str
) -> None:
    deployed(name, routing={"policy": "RoundRobin"})
    fleet.wait_ready(name)
    fleet.kubectl("scale", "llm", name, "--replicas=2")
    fleet.wait_ready(name, 2)
    replicas = set()
    for _ in range(20):
        request = fleet.request(fleet.gateway + COMPLETIONS, chat(name))
        with urllib.request.urlopen(request, timeout=60) as reply:
            replicas.add(reply.headers["x-fairlead-replica"])
    assert replicas == set(fleet.pods(name))
    assert len(replicas) == 2


@pytest.mark.local_only(reason="what processes an engine has is nothing of the cluster's, and each takes memory")
def test_an_engine_of_two_http_processes_answers_as_one(fleet, deployed: Callable[..., str], name: str) -> None:
    deployed(name, engine={"apiServers": 2})
    fleet.wait_ready(name)
    [pod] = fleet.pods(name).values()
    [_] = [each for each in fleet.processes(pod) if any("peer_process" in word for word in each.cmdline())]
    answers: list[Answer] = []
    for client in in_threads(6, lambda number: answers.append(stream(fleet.endpoint(name), PROMPTS[number % 3], 32))):
        client.join()
    assert [answer.detail for answer in answers if not answer.complete] == []
    assert len(answers) == 6 and len({answer.text for answer in answers}) <= 3, "one text for each prompt"
    done = [line for line in fleet.engine_get(pod, "/metrics").splitlines() if line.startswith(FINISHED)]
    assert sum(float(line.split()[-1]) for line in done) >= 6, "whichever process is asked tells of both"


@pytest.mark.cluster_suffices
def test_a_model_on_a_claim_is_served_once_the_claim_holds_it(fleet, deployed: Callable[..., str], name: str) -> None:
    deployed(name, f"pvc://{name}/models/dinghy")
    fleet.wait_condition(name, "ModelAvailable", "False", "ModelSourceNotFound")
    fleet.fill_claim(name, "models/dinghy")
    fleet.wait_ready(name)
    assert fleet.post(COMPLETIONS, chat(name))["choices"][0]["message"]["content"]
    fleet.kubectl("delete", "llm", name)
    fleet.wait("its engine to go", lambda: not fleet.pods(name))
    fleet.remove_claim(name)


def test_deleting_the_deployment_leaves_nothing_behind(fleet, manifest, name: str) -> None:
    fleet.apply(manifest(name))
    fleet.wait_ready(name)
    assert fleet.children(name)
    fleet.kubectl("delete", "llm", name)
    fleet.wait("its children to go", lambda: not fleet.children(name))
    status, _, _ = fleet.refusal(COMPLETIONS, chat(name))
    assert status == 404
