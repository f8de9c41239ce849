"""A deployment at zero: requests wait for its first replica and are served; one that cannot start says why."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from streaming_load import PROMPTS, stream

NUM_REQUESTS = 10


def autoscaling(**more: object) -> dict[str, object]:
    return {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": "600s", **more}


def pods(fleet, name: str) -> list[dict]:
    return fleet.get("pods", "", "-l", f"fairlead.dev/llmdeployment={name}")["items"]


def test_ten_requests_to_a_deployment_at_zero_are_all_answered(fleet, deployed: Callable[..., str], name: str) -> None:
    deployed(name, replicas=0, autoscaling=autoscaling())
    fleet.wait("the deployment to be known at zero", lambda: fleet.condition(name, "Ready"))
    assert pods(fleet, name) == []
    answers = []

    def ask(number: int) -> None:
        answers.append(stream(fleet.gateway, name, PROMPTS[number % len(PROMPTS)], 16))

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(NUM_REQUESTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert [answer.detail for answer in answers if not answer.complete] == []
    assert len(answers) == NUM_REQUESTS
    scaling = fleet.get("llm", name)["status"]["scaling"]
    assert (scaling["history"][-1]["from"], scaling["history"][-1]["to"] > 0) == (0, True)


def test_a_deployment_without_requests_goes_to_zero_and_says_so(fleet, deployed: Callable[..., str], name: str) -> None:
    deployed(
        name,
        replicas=1,
        autoscaling=autoscaling(scaleToZeroAfter="3s", scaleDown={"stabilizationWindow": "3s"}),
    )
    fleet.wait_ready(name)
    fleet.wait("its replica to go", lambda: fleet.get("llm", name)["spec"]["replicas"] == 0 and not pods(fleet, name))
    [change] = fleet.get("llm", name)["status"]["scaling"]["history"]
    assert (change["from"], change["to"]) == (1, 0)
    assert "no request" in change["reason"]
    assert stream(fleet.gateway, name, PROMPTS[0], 16).complete, "and it comes back for the next one"


def test_a_model_that_cannot_start_answers_503_with_the_condition_s_sentence_after_cold_start_timeout(
    fleet, deployed: Callable[..., str], name: str
) -> None:
    timeout = 6
    deployed(
        name,
        "file:///no-such-model",
        replicas=0,
        autoscaling=autoscaling(),
        routing={"coldStartTimeout": f"{timeout}s"},
    )
    fleet.wait("the deployment to be known at zero", lambda: fleet.condition(name, "Ready"))
    request = urllib.request.Request(
        f"{fleet.gateway}/v1/completions",
        json.dumps({"model": name, "prompt": "Hello", "max_tokens": 4}).encode(),
        {"content-type": "application/json"},
    )
    started = time.monotonic()
    try:
        urllib.request.urlopen(request, timeout=120)
        raise AssertionError("it was answered")
    except urllib.error.HTTPError as reply:
        waited = time.monotonic() - started
        error = json.load(reply)["error"]
        assert reply.code == 503
        assert int(reply.headers["retry-after"]) > 0
    assert waited >= timeout
    assert f"No replica of the model '{name}' became ready within {timeout} seconds" in error["message"]
    said = fleet.condition(name, "Ready")["message"]
    sentence = "/no-such-model does not exist or is not a folder"
    assert sentence in said
    assert sentence in error["message"]
