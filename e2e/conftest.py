"""One fleet for all scenarios, in the home that `--home` names, driven by kubectl and HTTP."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cluster import kubectl
from homes import Fleet
from homes.contexts import VARIABLE, NotForTests
from homes.genuine import Genuine
from homes.kubectl import Kubectl
from homes.local import fairlead, local_fleet
from hopeless import TOO_LARGE

from fairlead_testing.collection import lies_below

HERE = Path(__file__).parent
OUT = HERE.parent / "e2e-out"
"""Where failures leave pods, events and logs."""
SCENARIO_SECONDS = 900
"""Longest time for one scenario on a cluster; repetitions come on top of it."""
CLUSTER = pytest.StashKey[tuple[str, str]]()
"""The API server's version and the nodes' container runtime, once there is a fleet on a cluster."""
OTHER_HOME = {"local": "kubernetes", "kubernetes": "local"}


def llm(name: str, source: str = "demo://dinghy", **spec: Any) -> dict[str, Any]:
    """An LLMDeployment as a person would write it."""
    model = {"source": source, **spec.pop("model", {})}
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": {"model": model, "resources": {"profile": "cpu-small"}, "replicas": 1, **spec},
    }


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet, shared by all scenarios of this process."""
    folder = tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack:
        if request.config.getoption("--home") == "local":
            program = kubectl.find()
            if program is None:
                pytest.skip(f"{kubectl.EXPLAINED} The end-to-end scenarios need it")
            yield stack.enter_context(local_fleet(folder, program))
            return
        from homes.kubernetes import kubernetes_fleet

        try:
            keep = request.config.getoption("--keep-fleet")
            fleet = stack.enter_context(kubernetes_fleet(folder, os.environ, OUT, keep=keep))
        except (NotForTests, kubectl.NoKubectl) as refusal:
            pytest.exit(f"refused: {refusal}", returncode=3)
        request.config.stash[CLUSTER] = fleet.server_and_runtime()
        yield fleet


def fresh_name() -> str:
    return f"boat-{uuid.uuid4().hex[:6]}"


@contextmanager
def deploying(server: Kubectl) -> Iterator[Callable[..., str]]:
    """Applies LLMDeployments and deletes them at the end of the block."""
    names: set[str] = set()

    def deploy(name: str, *args: Any, **spec: Any) -> str:
        names.add(name)
        server.apply(llm(name, *args, **spec))
        return name

    yield deploy
    for name in names:
        server.delete("llm", name)
    if isinstance(server, Fleet) and server.home == "kubernetes":  # slow ends would take the next scenario's cores
        server.wait("its engines to end", lambda: not any(server.num_running(name) for name in names))


@pytest.fixture
def name() -> str:
    """A fresh LLMDeployment name, so that scenarios do not meet."""
    return fresh_name()


@pytest.fixture
def deployed(fleet: Fleet) -> Iterator[Callable[..., str]]:
    """Applies LLMDeployments that are gone when the scenario is over."""
    with deploying(fleet) as deploy:
        yield deploy


@pytest.fixture(scope="module")
def shared_name() -> str:
    """The name of an LLMDeployment that the scenarios of a module share."""
    return fresh_name()


@pytest.fixture(scope="module")
def deployed_for_all(fleet: Fleet) -> Iterator[Callable[..., str]]:
    """Applies LLMDeployments that are gone when the module's scenarios are over."""
    with deploying(fleet) as deploy:
        yield deploy


@pytest.fixture(scope="session")
def genuine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Genuine]:
    """A genuine API server: the fleet's, KUBECONFIG's, or a control plane that is started here; the first there is.

    A worker of its own has no fleet, and so a control plane beside the one of the fleet's node.
    """
    if request.config.getoption("--home") == "kubernetes" and not is_shared_out(request.config):
        fleet = request.getfixturevalue("fleet")
        yield Genuine(fleet.kubeconfig, fleet.program, has_fleet=True)
        return
    from homes.control_plane import own_control_plane
    from homes.kubernetes import own_kubeconfig

    kubeconfig = tmp_path_factory.mktemp("genuine") / "kubeconfig"
    with ExitStack() as stack:
        source = None if os.environ.get("KUBECONFIG") else stack.enter_context(own_control_plane())
        try:
            program = kubectl.require(of_node=source is not None)
            own_kubeconfig(program, source, None if source else os.environ.get(VARIABLE), kubeconfig)
        except (NotForTests, kubectl.NoKubectl) as refusal:
            pytest.exit(f"refused: {refusal}", returncode=3)
        yield Genuine(kubeconfig, program, has_fleet=False)


@pytest.fixture
def own_node(fleet: Fleet) -> Any:
    """The node that the suite itself runs, whose components may be stopped and replaced."""
    node = getattr(fleet, "node", None)
    if node is None:
        pytest.skip("needs the suite's own node: this cluster was started by somebody else")
    return node


@pytest.fixture(scope="module")
def plane(genuine: Genuine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A genuine API server with an operator that leads: a `homes.control_plane.ControlPlane`."""
    pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")
    from homes.control_plane import control_plane

    folder = tmp_path_factory.mktemp("control-plane")
    with control_plane(genuine.kubeconfig, folder, genuine.program, with_crd=not genuine.has_fleet) as plane:
        yield plane


@pytest.fixture
def applied(plane: Any) -> Iterator[Callable[..., str]]:
    """Applies LLMDeployments to the control plane, and deletes them when the test is over."""
    with deploying(plane) as apply:
        yield apply


@pytest.fixture
def pending(plane: Any, applied: Callable[..., str], name: str) -> str:
    """An LLMDeployment on the control plane with one replica that no node takes."""
    applied(name, resources=TOO_LARGE)
    plane.wait_condition(name, "Ready", "False", "Unschedulable")
    return name


@pytest.fixture(scope="session")
def manifest() -> Callable[..., dict[str, Any]]:
    return llm


@pytest.fixture(scope="session")
def command() -> Callable[..., Any]:
    return fairlead


@pytest.fixture
def say(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> Callable[[str], None]:
    """Tells a figure to whoever watches, at once and again in the summary."""

    def tell(line: str) -> None:
        record_property("said", f"{request.node.name}: {line}")
        with capsys.disabled():
            print(f"\n  {request.node.name}: {line}", flush=True)

    return tell


# -- pytest --


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fairlead", "end-to-end scenarios")
    group.addoption(
        "--home", choices=sorted(OTHER_HOME), default="local",
        help="where the scenarios' fleet lives: local mode, or the test cluster of KUBECONFIG (default: local)",
    )  # fmt: skip
    group.addoption(
        "--all-scenarios", action="store_true",
        help="in local mode, also run the scenarios that say nothing of it which a cluster does not say too",
    )  # fmt: skip
    group.addoption(
        "--times", type=int, default=1,
        help="how many times in a row each zero-drop disturbance happens to one deployment (default: 1)",
    )  # fmt: skip
    group.addoption(
        "--keep-fleet", action="store_true",
        help="leave the chart installed on the cluster; the next run upgrades it",
    )  # fmt: skip
    group.addoption(
        "--verified", type=Path, metavar="FILE",
        help="a document whose table of verified versions gets a row when every scenario on the cluster passes",
    )  # fmt: skip
    group.addoption(
        "--control-plane", action="store_true",
        help="also run what needs a genuine API server but no node, without a fleet: on KUBECONFIG's test cluster, or "
        "on a control plane that is built and started here (implied by --home kubernetes)",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "core: runs on every supported version of Kubernetes, not only on the newest")
    config.addinivalue_line("markers", "last: runs after all others, because the cluster is another one afterwards")
    for home in OTHER_HOME:
        config.addinivalue_line("markers", f"{home}_only(reason): needs --home {home}; the reason says why")
    config.addinivalue_line("markers", "cluster_suffices: in local mode only --all-scenarios runs it")
    config.addinivalue_line("markers", "control_plane: needs a genuine API server and no node; --control-plane runs it")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Scenarios share one fleet, so they share one worker. What needs no fleet has another, where there are several.
    What needs the other home says so and is skipped. What needs a genuine API server is left out without one:
    --control-plane starts one, `make e2e-control-plane` does it all."""
    home = config.getoption("--home")
    left_out = [item for item in items if home == "local" and is_left_out(config, item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        missing = set(left_out)
        items[:] = [item for item in items if item not in missing]
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
    for item in items:
        if not lies_below(item, HERE):
            continue
        item.add_marker(pytest.mark.e2e)
        is_beside = home == "kubernetes" and "fleet" not in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("control plane" if is_beside else "fleet"))
        if home == "kubernetes" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SCENARIO_SECONDS * max(1, config.getoption("--times"))))
        for only in item.iter_markers(f"{OTHER_HOME[home]}_only"):
            reason = only.kwargs.get("reason") or (only.args[0] if only.args else "")
            if not reason:
                raise pytest.UsageError(f"{item.nodeid}: the marker {only.name} needs a reason")
            item.add_marker(pytest.mark.skip(reason=f"{only.name}: {reason}"))


def is_left_out(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether local mode does without this one."""
    if item.get_closest_marker("cluster_suffices") is not None and not config.getoption("--all-scenarios"):
        return True
    callspec = getattr(item, "callspec", None)
    is_of_local_mode = callspec is not None and callspec.params.get("home") == "local"  # of test_crd.py
    needs_server = item.get_closest_marker("control_plane") is not None and not is_of_local_mode
    return needs_server and not config.getoption("--control-plane")


def is_shared_out(config: pytest.Config) -> bool:
    """Whether several processes run the scenarios."""
    return hasattr(config, "workerinput")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The process that has the fleet tells the one that has asked for it about the cluster."""
    cluster = session.config.stash.get(CLUSTER, None)
    if cluster is not None and is_shared_out(session.config):
        session.config.workeroutput["cluster"] = list(cluster)  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What `pytest_sessionfinish` told in a worker."""
    if "cluster" in (told := getattr(node, "workeroutput", {})):
        node.config.stash[CLUSTER] = tuple(told["cluster"])


@pytest.fixture(scope="session")
def client(fleet) -> Iterator[Any]:
    """OpenAI's own client of the gateway."""
    import openai

    with openai.OpenAI(base_url=f"{fleet.gateway}/v1", api_key=fleet.api_key or "none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def dinghy(fleet, manifest) -> Iterator[str]:
    """One deployment for the scenarios that only ask."""
    fleet.apply(manifest("dinghy", model={"aliases": ["small-boat"]}))
    fleet.wait_ready("dinghy")
    yield "dinghy"
    fleet.kubectl("delete", "llm", "dinghy", "--wait=false")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed scenario leaves the state of the fleet as the failure found it."""
    report = yield
    fleet = getattr(item, "funcargs", {}).get("fleet")
    if report.when == "call" and report.failed and isinstance(fleet, Fleet) and fleet.home == "kubernetes":
        folder = OUT / "".join(c if c.isalnum() else "-" for c in item.name)[:80]
        fleet.dump(folder)
        report.sections.append(("state of the fleet", f"pods, events and logs are in {folder}"))
    return report


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """The figures that scenarios told; the row of a run on a cluster in which nothing failed."""
    document, cluster = config.getoption("--verified"), config.stash.get(CLUSTER, None)
    if document and cluster and exitstatus == pytest.ExitCode.OK and config.getoption("--again") is None:
        from helm_python import EXPECTED_HELM_SDK_VERSION
        from homes.verified import Verified, record

        scenarios = "core" if config.getoption("markexpr").startswith("core") else "all"
        counts = [len(terminalreporter.stats.get(outcome, [])) for outcome in ("passed", "skipped")]
        record(
            document,
            Verified(*cluster, EXPECTED_HELM_SDK_VERSION.removeprefix("v"), scenarios, *counts, on=date.today()),
        )
    lines = [
        text
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if report.when == "call"
        for name, text in report.user_properties
        if name == "said"
    ]
    if lines:
        terminalreporter.section("zero drop")
        for line in lines:
            terminalreporter.write_line(str(line))


os.environ.setdefault("OMP_NUM_THREADS", "1")
