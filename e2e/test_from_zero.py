"""A deployment at zero: requests wait for its first replica and are served; one that cannot start says why."""

import time
from collections.abc import Callable

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


def test_a_model_that_cannot_start_answers_503_with_the_condition_s_sentence_after_cold_start_timeout(
    fleet, deployed: Callable[..., str], name: str
) -> None:
    timeout = fleet.cold_start_seconds
    deployed(
        name,
        NO_SUCH_DEMO,
        replicas=0,
        autoscaling=autoscaling(),
        routing={"coldStartTimeout": f"{timeout}s"},
    )
    fleet.wait("the deployment to be known at zero", lambda: fleet.condition(name, "Ready"))
    refused = {"model": name, "prompt": "Hello", "max_tokens": 4}

    def refusal_that_says_why() -> str:
        """The first engine of all may take longer to fail than the first request waits."""
        started = time.monotonic()
        status, body, headers = fleet.refusal("/v1/completions", refused)
        assert time.monotonic() - started >= timeout, "it waited"
        assert status == 503
        assert int(headers["retry-after"]) > 0
        message = str(body["error"]["message"])
        assert f"No replica of the model '{name}' became ready within {timeout} seconds" in message
        return message if NO_SUCH_DEMO_SENTENCE in message else ""

    fleet.wait("a refusal that says why no replica started", refusal_that_says_why)
    assert NO_SUCH_DEMO_SENTENCE in fleet.condition(name, "Ready")["message"]
