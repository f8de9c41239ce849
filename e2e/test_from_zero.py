"""A deployment at zero: requests wait for its first replica and are served; one that cannot start says why."""

from collections.abc import Callable

import pytest
from homes.fleet import in_threads
from hopeless import NO_SUCH_DEMO, NO_SUCH_DEMO_SENTENCE
from streaming_load import PROMPTS, stream

NUM_REQUESTS = 10


def autoscaling(**more: object) -> dict[str, object]:
    return {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": "600s", **more}


def test_ten_requests_to_a_deployment_at_zero_are_all_answered(fleet, deployed: Callable[..., str], name: str) -> None:
    deployed(name, replicas=0, autoscaling=autoscaling())
    fleet.wait("the deployment to be known at zero", lambda: fleet.condition(name, "Ready"))
    assert not fleet.pods(name)
    answers = []

    def ask(number: int) -> None:
        answers.append(stream(fleet.endpoint(name), PROMPTS[number % len(PROMPTS)], 16))

    for client in in_threads(NUM_REQUESTS, ask):
        client.join()
    assert [answer.detail for answer in answers if not answer.complete] == []
    assert len(answers) == NUM_REQUESTS
    scaling = fleet.get("llm", name)["status"]["scaling"]
    assert (scaling["history"][-1]["from"], scaling["history"][-1]["to"] > 0) == (0, True)


@pytest.mark.cluster_suffices
def test_a_deployment_without_requests_goes_to_zero_and_says_so(fleet, deployed: Callable[..., str], name: str) -> None:
    deployed(
        name,
        replicas=1,
        autoscaling=autoscaling(scaleToZeroAfter="3s", scaleDown={"stabilizationWindow": "3s"}),
    )
    fleet.wait_ready(name)
    fleet.wait("its replica to go", lambda: fleet.get("llm", name)["spec"]["replicas"] == 0 and not fleet.pods(name))
    [change] = fleet.get("llm", name)["status"]["scaling"]["history"]
    assert (change["from"], change["to"]) == (1, 0)
    assert "no request" in change["reason"]
    assert stream(fleet.endpoint(name), PROMPTS[0], 16).complete, "and it comes back for the next one"


@pytest.mark.cluster_suffices
def test_a_model_that_cannot_start_is_refused_with_the_condition_s_sentence_and_not_waited_for(
    fleet, deployed: Callable[..., str], name: str
) -> None:
    deployed(name, NO_SUCH_DEMO, replicas=0, autoscaling=autoscaling(), routing={"coldStartTimeout": "1h"})
    fleet.wait("the deployment to be known at zero", lambda: fleet.condition(name, "Ready"))
    status, body, headers = fleet.refusal("/v1/completions", {"model": name, "prompt": "Hello", "max_tokens": 4})
    assert (status, headers["x-should-retry"]) == (503, "false")
    message = str(body["error"]["message"])
    assert message.startswith(f"Nothing serves the model '{name}'. ")
    assert NO_SUCH_DEMO_SENTENCE in message
    assert NO_SUCH_DEMO_SENTENCE in fleet.condition(name, "Ready")["message"]
