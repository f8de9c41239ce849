"""Things die; nothing is lost, nobody waits for ever, and the fleet heals."""

import http.client
import itertools
import json
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest


@pytest.fixture
def model(fleet, deployed_for_all: Callable[..., str], shared_name: str) -> str:
    """One replica, as the scenario before has left it, or a new one."""
    if not fleet.exists("llm", shared_name):
        deployed_for_all(shared_name)
    fleet.kubectl("scale", "llm", shared_name, "--replicas=1")
    fleet.wait_ready(shared_name)
    return shared_name


def stream(fleet, model: str, num_tokens: int) -> Generator[str, None, None]:
    """The `data:` payloads of a long completion, as they come: one for each token that has a text."""
    address = urlsplit(fleet.gateway)
    body = {
        "model": model, "prompt": "The log says", "stream": True, "max_tokens": num_tokens, "ignore_eos": True,
        "skip_special_tokens": False,
    }  # fmt: skip
    with closing(http.client.HTTPConnection(address.hostname, address.port, timeout=60)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), fleet.headers)
        with connection.getresponse() as reply:
            assert reply.status == 200, reply.read()
            for line in reply:
                if line.startswith(b"data: "):
                    yield line[6:].decode().strip()


def answers(fleet, model: str) -> bool:
    """Whether a short stream begins."""
    with closing(stream(fleet, model, 4)) as payloads:
        return bool(json.loads(next(payloads))["choices"])


@pytest.mark.cluster_suffices
def test_an_engine_killed_in_the_middle_of_a_stream_is_reported_and_replaced(fleet, model: str) -> None:
    [pod] = fleet.pods(model)
    before = fleet.num_restarts(pod)
    payloads = stream(fleet, model, 1800)
    first = json.loads(next(payloads))
    assert first["choices"]
    fleet.kill(fleet.get("pod", pod))
    rest = list(payloads)
    assert "[DONE]" not in rest
    assert json.loads(rest[-1])["error"]["message"]
    fleet.wait("the container to be restarted", lambda: fleet.num_restarts(pod) > before)
    fleet.wait_ready(model)
    assert answers(fleet, model)


@contextmanager
def stopped(fleet, pod: str) -> Iterator[None]:
    """The core of the pod's engine does nothing, while its server answers and tells its load."""
    found = fleet.processes(fleet.get("pod", pod))
    cores = [process for process in found if "fairlead_engine.core" in process.cmdline()]
    if not cores:
        pytest.skip("the node's processes are not visible from here, so none of them can be stopped")
    for core in cores:
        core.suspend()
    try:
        yield
    finally:
        for core in cores:
            core.resume()


@pytest.mark.cluster_suffices
def test_an_engine_that_hangs_is_named_while_it_does_and_its_stream_goes_on_after(fleet, model: str) -> None:
    [pod] = fleet.pods(model)
    before = fleet.num_restarts(pod)
    with closing(stream(fleet, model, 1800)) as payloads:
        assert json.loads(next(payloads))["choices"]
        with stopped(fleet, pod):
            condition = fleet.wait_condition(model, "Degraded", "True", "ReplicaHangs")
            assert condition["message"].startswith(f"{pod}: its engine has been in one step since ")
        fleet.wait_condition(model, "Degraded", "False", "AsExpected")
        for payload in itertools.islice(payloads, 200):
            assert json.loads(payload)["choices"]
    assert fleet.num_restarts(pod) == before


def test_a_client_that_leaves_frees_the_engine(fleet, model: str) -> None:
    payloads = stream(fleet, model, 1800)
    next(payloads)
    payloads.close()
    fleet.wait("the engine to run nothing", lambda: fleet.engine_running(model) == 0)


@pytest.mark.cluster_suffices
def test_uninstalling_the_operator_leaves_no_stuck_object(fleet, manifest, name: str) -> None:
    fleet.apply(manifest(name))
    fleet.wait_ready(name)
    system = ("-n", fleet.system_namespace)
    fleet.kubectl("scale", "deployment", "fairlead-operator", "--replicas=0", *system)
    try:
        fleet.wait("the operator to be gone", lambda: not fleet.system_pods("operator"))
        assert answers(fleet, name), "it still serves"
        fleet.kubectl("delete", "llm", name, "--timeout=30s")
        fleet.wait("its children to go", lambda: not fleet.children(name))
    finally:
        fleet.kubectl("scale", "deployment", "fairlead-operator", "--replicas=1", *system)
