"""Nothing that was accepted is dropped: replicas, gateways, operators and nodes come and go under streaming load.

In every scenario: no request failed, no stream was cut, and each answer is, in float32, the text of an undisturbed run.
`--times N` repeats each disturbance N times in a row, on one deployment and under one load that never pauses.

One deployment lives through all scenarios, as a user's does: each finds it as the one before has left it, once it has
two ready replicas again.
"""

import threading
import time
from collections.abc import Callable

import pytest
from homes import Load
from homes.fleet import in_threads
from streaming_load import PROMPTS, stream

ENGINE = {"dtype": "float32", "maxNumSeqs": 8}

Disturbance = Callable[[int], None]
"""Does it once, to its end. Argument: how often it was done before."""


@pytest.fixture
def model(fleet, deployed_for_all: Callable[..., str], shared_name: str) -> str:
    """Two replicas that compute in float32."""
    if not fleet.exists("llm", shared_name):
        deployed_for_all(shared_name, engine=ENGINE, replicas=2, routing={"maxQueueTime": "120s"})
    fleet.kubectl("scale", "llm", shared_name, "--replicas=2")
    fleet.wait_ready(shared_name, 2)
    return shared_name


@pytest.fixture
def under_load(fleet, model: str, say: Callable[[str], None], request: pytest.FixtureRequest):
    """Runs a disturbance while the load runs, as often as `--times` says; then judges everything that the load saw."""
    times = request.config.getoption("--times")

    def run(disturb: Disturbance) -> None:
        with fleet.steady_load(model) as load:
            for done in range(times):
                before, started = (load.num_answers, *load.verdict), time.monotonic()
                fleet.wait_for_answers(load)
                disturb(done)
                fleet.wait_for_answers(load)
                if times > 1:
                    seen = [now - then for now, then in zip((load.num_answers, *load.verdict), before, strict=True)]
                    say(f"{done + 1}/{times}: {figures(*seen)}, {time.monotonic() - started:.0f} s")
                assert load.verdict == (0, 0, 0), load.problems
        say(f"{times} times in a row: {figures(load.num_answers, *load.verdict)}")
        assert load.verdict == (0, 0, 0), load.problems

    return run


def figures(requests: int, failed: int, truncated: int, different: int) -> str:
    return f"{requests} requests, {failed} failed, {truncated} truncated, {different} different"


@pytest.mark.cluster_suffices
def test_a_scale_down_drops_nothing(fleet, model: str, under_load: Callable[[Disturbance], None]) -> None:
    def down(done: int) -> None:
        if done:
            fleet.kubectl("scale", "llm", model, "--replicas=2")
            fleet.wait_ready(model, 2)
        fleet.kubectl("scale", "llm", model, "--replicas=1")
        fleet.wait("one pod to be left", lambda: len(fleet.pods(model)) == 1)
        fleet.wait_ready(model, 1)

    under_load(down)


@pytest.mark.long
@pytest.mark.cluster_suffices
def test_a_scale_down_under_way_that_is_taken_back_drops_nothing(
    fleet, model: str, under_load: Callable[[Disturbance], None]
) -> None:
    def down_and_back(_: int) -> None:
        fleet.kubectl("scale", "llm", model, "--replicas=1")
        # ReplicaSets before Kubernetes 1.22 know no cost of deletion: they may choose another one, and both drain.
        fleet.wait("a victim to drain", lambda: fleet.get("llm", model)["status"].get("drainingReplicas"))
        fleet.kubectl("scale", "llm", model, "--replicas=2")
        fleet.wait("nothing to be draining", lambda: not fleet.get("llm", model)["status"].get("drainingReplicas"))
        fleet.wait_ready(model, 2)

    under_load(down_and_back)


@pytest.mark.cluster_suffices
@pytest.mark.core
def test_a_changed_engine_rolls_out_and_drops_nothing(
    fleet, model: str, under_load: Callable[[Disturbance], None]
) -> None:
    def change(_: int) -> None:
        before = set(fleet.pods(model))
        slots = 6 if fleet.get("llm", model)["spec"]["engine"]["maxNumSeqs"] == 8 else 8
        fleet.merge(model, {"engine": {"maxNumSeqs": slots}})
        fleet.wait("every old pod to be gone", lambda: not before & set(fleet.pods(model)))
        fleet.wait_ready(model, 2)

    under_load(change)


@pytest.mark.long
def test_gateways_that_are_replaced_drop_nothing(fleet, model: str, under_load: Callable[[Disturbance], None]) -> None:
    under_load(lambda _: fleet.roll_gateways())


@pytest.mark.long
def test_an_operator_that_is_replaced_drops_nothing_and_scales_nothing(
    fleet, model: str, under_load: Callable[[Disturbance], None]
) -> None:
    before = set(fleet.pods(model))

    def restart(done: int) -> None:
        fleet.restart_operator()
        fleet.kubectl("label", "llm", model, f"seen={done}", "--overwrite")
        assert set(fleet.pods(model)) == before

    under_load(restart)
    assert set(fleet.pods(model)) == before


@pytest.mark.kubernetes_only(reason="local mode serves no eviction; deleting a pod there is the scale-down's scenario")
def test_an_evicted_pod_drops_nothing_and_is_replaced(
    fleet, model: str, under_load: Callable[[Disturbance], None]
) -> None:
    def evict(_: int) -> None:
        victim, pod = min(fleet.pods(model).items())
        fleet.evict(pod)
        fleet.wait("the victim to be gone", lambda: victim not in fleet.pods(model))
        fleet.wait_ready(model, 2)

    under_load(evict)


@pytest.mark.long
@pytest.mark.kubernetes_only(reason="local mode serves no eviction, and its gateways are no pods that could be evicted")
def test_an_evicted_gateway_drops_nothing_and_is_replaced(
    fleet, model: str, under_load: Callable[[Disturbance], None]
) -> None:
    def evict(_: int) -> None:
        victim, pod = min(fleet.system_pods("gateway").items())
        fleet.evict(pod)
        fleet.wait("the victim to be gone", lambda: victim not in fleet.system_pods("gateway"))
        fleet.wait_rolled_out("gateway")

    under_load(evict)


@pytest.mark.kubernetes_only(reason="local mode is not installed by Helm")
def test_a_helm_upgrade_that_replaces_operator_and_gateways_drops_nothing(
    fleet, model: str, under_load: Callable[[Disturbance], None]
) -> None:
    before = set(fleet.pods(model))
    under_load(lambda _: fleet.upgrade())
    assert set(fleet.pods(model)) == before


@pytest.mark.kubernetes_only(reason="local mode has one node and no taints")
def test_nodes_that_are_about_to_go_drain_and_requests_wait_for_the_next_ones(
    fleet, model: str, under_load: Callable[[Disturbance], None]
) -> None:
    def taint(_: int) -> None:
        before = fleet.pods(model)
        with fleet.tainted({pod["spec"]["nodeName"] for pod in before.values()}):
            fleet.wait("every pod of before to be gone", lambda: not set(before) & set(fleet.pods(model)))
        fleet.wait_ready(model, 2)

    under_load(taint)


@pytest.mark.long
def test_the_judge_sees_what_was_dropped(fleet, model: str) -> None:
    """A load whose engines are killed must not be found without fault: else the zeros above would mean nothing."""
    pods = fleet.pods(model)
    with fleet.steady_load(model) as load:
        fleet.wait_for_answers(load)
        # Clients that share an engine begin and end together. What has no token yet is sent anew, and nothing is lost.
        fleet.wait_for_a_stream(load)
        for pod in pods.values():
            fleet.kill(pod)
        fleet.wait("the load to meet it", lambda: load.verdict != (0, 0, 0))
    assert_faulty(load)
    fleet.wait("both to be started again", lambda: all(fleet.num_restarts(pod) for pod in fleet.pods(model)))


def assert_faulty(load: Load) -> None:
    failed, truncated, _ = load.verdict
    assert failed + truncated > 0
    assert load.problems


@pytest.mark.cluster_suffices
def test_streams_outlive_the_llmdeployment_that_is_deleted(fleet, model: str, say: Callable[[str], None]) -> None:
    endpoint = fleet.endpoint(model)
    prompt = PROMPTS[0]
    whole = stream(endpoint, prompt, 1500)
    answers, num_begun = [], threading.Semaphore(0)
    clients = in_threads(4, lambda _: answers.append(stream(endpoint, prompt, 1500, begun=num_begun.release)))
    for _ in clients:
        assert num_begun.acquire(timeout=fleet.patience), answers
    fleet.kubectl("delete", "llm", model, "--wait=false")
    for client in clients:
        client.join()
    failed = [answer for answer in answers if answer.status != 200]
    truncated = [answer for answer in answers if not answer.complete]
    different = [answer for answer in answers if answer.text != whole.text]
    say(figures(len(answers), len(failed), len(truncated), len(different)))
    assert [answer.detail for answer in truncated] == []
    assert {answer.text for answer in answers} == {whole.text}
    assert stream(endpoint, prompt).status == 404
    fleet.wait("its pods to go", lambda: not fleet.pods(model))
