"""Nothing that was accepted is dropped: replicas, gateways and operators come and go under steady streaming load.

In every scenario: no request failed, no stream was cut, and each answer is, in float32, the text of an undisturbed run.
"""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from streaming_load import Load, steady_load, stream, undisturbed, wait_for_answers

SYSTEM = ("-n", "fairlead-system")
ENGINE = {"dtype": "float32", "maxNumSeqs": 8}


@pytest.fixture
def model(fleet, deployed: Callable[..., str], name: str) -> str:
    """Two replicas that compute in float32."""
    deployed(name, engine=ENGINE, replicas=2, routing={"maxQueueTime": "120s"})
    fleet.wait_ready(name, 2)
    return name


@pytest.fixture
def load(fleet, model: str) -> Iterator[Load]:
    """Runs through the test's body; what it saw is judged when the body is over."""
    with steady_load(fleet.gateway, model) as running:
        wait_for_answers(fleet, running)
        yield running
        wait_for_answers(fleet, running)
    assert running.verdict == (0, 0, 0), running.problems


def pods(fleet, name: str) -> dict[str, dict]:
    listing = fleet.get("pods", "", "-l", f"fairlead.dev/llmdeployment={name}")
    return {pod["metadata"]["name"]: pod for pod in listing["items"]}


def test_a_scale_down_drops_nothing(fleet, model: str, load: Load) -> None:
    fleet.kubectl("scale", "llm", model, "--replicas=1")
    fleet.wait("one pod to be left", lambda: len(pods(fleet, model)) == 1)
    fleet.wait_ready(model, 1)


def test_a_scale_down_under_way_that_is_taken_back_drops_nothing(fleet, model: str, load: Load) -> None:
    fleet.kubectl("scale", "llm", model, "--replicas=1")
    fleet.wait("a victim to drain", lambda: fleet.get("llm", model)["status"].get("drainingReplicas") == 1)
    fleet.kubectl("scale", "llm", model, "--replicas=2")
    fleet.wait("nothing to be draining", lambda: not fleet.get("llm", model)["status"].get("drainingReplicas"))
    fleet.wait_ready(model, 2)


def test_a_changed_engine_rolls_out_and_drops_nothing(fleet, model: str, load: Load) -> None:
    before = set(pods(fleet, model))
    fleet.kubectl("patch", "llm", model, "--type=merge", "-p", '{"spec": {"engine": {"maxNumSeqs": 6}}}')
    fleet.wait("every old pod to be gone", lambda: not before & set(pods(fleet, model)))
    fleet.wait_ready(model, 2)


def test_gateways_that_are_replaced_drop_nothing(fleet, model: str, load: Load) -> None:
    before = gateways(fleet)
    fleet.kubectl("rollout", "restart", "deployment/fairlead-gateway", *SYSTEM)
    fleet.kubectl("rollout", "status", "deployment/fairlead-gateway", *SYSTEM, "--timeout=90s")
    fleet.wait("the old gateways to be gone", lambda: not before & gateways(fleet))


def gateways(fleet) -> set[str]:
    listing = fleet.get("pods", "", *SYSTEM, "-l", "app.kubernetes.io/component=gateway")
    return {pod["metadata"]["name"] for pod in listing["items"]}


def test_an_operator_that_is_replaced_drops_nothing_and_scales_nothing(fleet, model: str, load: Load) -> None:
    before = set(pods(fleet, model))
    fleet.kubectl("rollout", "restart", "deployment/fairlead-operator", *SYSTEM)
    fleet.kubectl("rollout", "status", "deployment/fairlead-operator", *SYSTEM, "--timeout=90s")
    fleet.kubectl("label", "llm", model, "seen=yes")
    wait_for_answers(fleet, load)
    assert set(pods(fleet, model)) == before


def test_streams_outlive_the_llmdeployment_that_is_deleted(fleet, model: str) -> None:
    expected = undisturbed(fleet.gateway, model)
    prompt = next(iter(expected))
    whole = stream(fleet.gateway, model, prompt, 1500)
    answers = []
    clients = [
        threading.Thread(target=lambda: answers.append(stream(fleet.gateway, model, prompt, 1500))) for _ in range(4)
    ]
    for client in clients:
        client.start()
    fleet.wait("the streams to run", lambda: _num_running(fleet, model) > 0)
    fleet.kubectl("delete", "llm", model, "--wait=false")
    for client in clients:
        client.join()
    assert [answer.detail for answer in answers if not answer.complete] == []
    assert {answer.text for answer in answers} == {whole.text}
    assert stream(fleet.gateway, model, prompt).status == 404
    fleet.wait("its pods to go", lambda: not pods(fleet, model))


def _num_running(fleet, name: str) -> int:
    total = 0
    for pod in pods(fleet, name).values():
        with closing(http.client.HTTPConnection(pod["status"]["podIP"], 8000, timeout=10)) as connection:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        total += sum(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:num_requests_running"))
    return total
