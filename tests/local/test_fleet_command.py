"""`fairlead local` as a person uses it: real processes, the real operator and gateway."""

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fairlead.kube.kubeconfig import load
from fairlead_local.command import _say_status
from fairlead_local.fleet_state import FleetFolder, FleetPhase, FleetState, read_state, running_fleet
from fairlead_local.kubelet.process_table import ProcessRecords
from fairlead_local.service import listening

MODEL = """
apiVersion: fairlead.dev/v1alpha1
kind: LLMDeployment
metadata: {name: tiny}
spec:
  model: {source: file:///nowhere}
  replicas: 0
"""


def local(*arguments: str, seconds: float = 90.0) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "fairlead", "local", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder; whatever runs in it afterwards is stopped."""
    folder = tmp_path / "fleet"
    yield folder
    if running_fleet(FleetFolder(folder)) or ProcessRecords(folder / "run").running():
        local("down", "--data-dir", str(folder))
    assert ProcessRecords(folder / "run").running() == []


def up_command(folder: Path, *arguments: str) -> list[str]:
    ports = ["--api-port", "0", "--gateway-port", "0"]
    return [sys.executable, "-m", "fairlead", "local", "up", "--data-dir", str(folder), *ports, *arguments]


def up(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = up_command(folder, "--detach", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=90.0, check=False)


def get(folder: Path, path: str) -> dict[str, object]:
    config = load(folder / "kubeconfig")
    request = urllib.request.Request(config.server + path, headers={"Authorization": f"Bearer {config.token}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=5) as reply:
        found: dict[str, object] = json.load(reply)
        return found


def test_a_fleet_comes_up_is_described_keeps_its_objects_and_goes_down(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(MODEL)
    assert f"error: no fleet is running in {data}" in local("logs", "--data-dir", str(data)).stderr
    started = up(data, "-f", str(file))
    assert started.returncode == 0, started.stdout + started.stderr
    for words in ("API server at http://127.0.0.1:", "fairlead-operator is ready", "fairlead-gateway is ready",
                  "KUBECONFIG", "Stop it with `fairlead local down"):  # fmt: skip
        assert words in started.stdout
    assert "applied llmdeployment/tiny" in started.stdout
    status = local("status", "--data-dir", str(data))
    assert (status.returncode, "default/tiny" in status.stdout, "fairlead-operator" in status.stdout) == (0, True, True)
    assert_described(data)
    again = up(data)
    assert again.returncode == 1
    assert "a fleet is already running" in again.stderr and "fairlead local down" in again.stderr
    assert "serving on port" in local("logs", "gateway", "--data-dir", str(data)).stdout
    assert "ready after" in local("logs", "--data-dir", str(data)).stdout
    refused = up(data, "-f", str(file), "--gateways", "2")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"error: --gateways 2: the fleet that is running in {data} has 1: leave --gateways out" in refused.stderr
    other_port = local("up", "--data-dir", str(data), "-f", str(file), "--api-port", "7")
    assert (other_port.returncode, "--api-port 7: the fleet that is running" in other_port.stderr) == (1, True)
    assert up(data, "-f", str(file), "--gateways", "1").stdout == "applied llmdeployment/tiny to the running fleet\n"
    assert "there is no pod 'nobody'" in local("logs", "nobody", "--data-dir", str(data)).stderr
    uid = get(data, "/apis/fairlead.dev/v1alpha1/namespaces/default/llmdeployments/tiny")["metadata"]["uid"]  # type: ignore[index]

    down = local("down", "--data-dir", str(data))
    assert (down.returncode, "stopped the fleet" in down.stdout) == (0, True)
    assert ProcessRecords(data / "run").running() == []
    assert (local("status", "--data-dir", str(data)).returncode, running_fleet(FleetFolder(data))) == (1, None)
    nothing = local("status", "--data-dir", str(data), "-o", "json")
    assert json.loads(nothing.stdout) == {"folder": str(data), "running": False, "message": ""}
    assert (nothing.returncode, nothing.stderr) == (1, "")
    assert "no fleet is running" in local("down", "--data-dir", str(data)).stdout

    assert up(data).returncode == 0
    kept = get(data, "/apis/fairlead.dev/v1alpha1/namespaces/default/llmdeployments/tiny")
    assert kept["metadata"]["uid"] == uid  # type: ignore[index]


def assert_described(data: Path) -> None:
    """`status -o json` says what runs, and where."""
    asked = local("status", "--data-dir", str(data), "-o", "json")
    found, state = json.loads(asked.stdout), read_state(FleetFolder(data))
    assert state is not None
    fleet = {"folder": str(data), "running": True, "message": "", "phase": "ready", "pid": state.pid, "api": state.api}
    fleet |= {"gateway": state.gateway, "kubeconfig": str(data / "kubeconfig")}
    assert {key: found[key] for key in found.keys() - {"models", "pods"}} == fleet
    (model,) = found["models"]
    assert model.keys() == {"name", "conditions"} and model["name"] == "default/tiny"
    pods = {pod["name"].rsplit("-", 2)[0]: (pod["reason"], pod["address"][:4]) for pod in found["pods"]}
    running = ("Running", "127.")
    assert pods == {"fairlead-system/fairlead-operator": running, "fairlead-system/fairlead-gateway": running}


@pytest.mark.matrix
@pytest.mark.parametrize("detach", [["--detach"], []])
@pytest.mark.parametrize("room", [0, 1, 300, 20_000])
def test_a_fleet_that_finds_the_disk_full_says_so_in_a_sentence(data: Path, room: int, detach: list[str]) -> None:
    """`room`: bytes that a file may have. It is the state, the kubeconfig or the objects that do not fit."""
    refused = subprocess.run(
        up_command(data, *detach), capture_output=True, text=True, timeout=90, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )  # fmt: skip
    said = refused.stdout + refused.stderr
    assert refused.returncode == 1
    assert f"error: cannot write to {data} (File too large)" in said
    assert "Traceback" not in said
    assert ProcessRecords(data / "run").running() == []


@pytest.mark.slow
def test_after_a_crash_of_everything_in_the_middle_down_finds_what_is_left_and_up_starts_afresh(data: Path) -> None:
    assert up(data).returncode == 0
    kill_with_keeper(data)
    left = ProcessRecords(data / "run").running()
    assert len(left) >= 2
    down = local("down", "--data-dir", str(data))
    assert (down.returncode, "processes that had lost their fleet" in down.stdout) == (0, True)
    assert not any(process.alive for process in left)

    port = str(lasting_port())
    assert up(data, "--gateway-port", port).returncode == 0
    kill_with_keeper(data)
    restarted = up(data, "--gateway-port", port)
    assert restarted.returncode == 0, restarted.stdout + restarted.stderr
    assert "that an earlier fleet left behind" in restarted.stdout


def lasting_port() -> int:
    """A free port that the system hands to nobody who asks for any: it stays free while nobody listens there."""
    for port in random.sample(range(20_000, 30_000), 100):
        with suppress(OSError), listening("127.0.0.1", port):
            return port
    raise AssertionError("no port is free")


def kill_with_keeper(data: Path) -> FleetState:
    """Kills the supervisor and what would end the rest after it; the state it leaves."""
    state = read_state(FleetFolder(data))
    assert state is not None
    keepers = [
        process
        for process in psutil.Process(state.pid).children()
        if "fairlead_local.kubelet.process_table" in process.cmdline()
    ]
    assert len(keepers) == 1
    os.kill(keepers[0].pid, signal.SIGKILL)
    os.kill(state.pid, signal.SIGKILL)
    return state


@pytest.mark.slow
def test_a_supervisor_that_is_killed_takes_everything_with_it(data: Path) -> None:
    assert up(data).returncode == 0
    state = read_state(FleetFolder(data))
    assert state is not None
    following = [sys.executable, "-m", "fairlead", "local", "logs", "--follow", "--data-dir", str(data)]
    gateway = subprocess.Popen([*following, "gateway"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    own = subprocess.Popen(following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for follower in (gateway, own):
        assert follower.stdout is not None and follower.stdout.readline()
    os.kill(state.pid, signal.SIGKILL)
    said = gateway.communicate(timeout=60)[1]
    assert (gateway.returncode, said.count("\n")) == (1, 1) and said.startswith("error: the fleet ended meanwhile")
    assert (own.communicate(timeout=60)[1], own.returncode) == ("", 0)
    wait_until_nothing_runs(data)
    assert up(data).returncode == 0, "and its folder takes the next fleet"


@pytest.fixture
def heeding_hangups() -> Iterator[None]:
    """What is started hears of its terminal's end, whether or not the tests do (`nohup`)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeding_hangups")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_up_that_is_ended_while_it_waits_leaves_nothing_behind(data: Path, number: signal.Signals) -> None:
    with subprocess.Popen(up_command(data, "--detach"), stdout=subprocess.PIPE) as waiting:
        wait_until(lambda: ProcessRecords(data / "run").running() if data.is_dir() else [])
        waiting.send_signal(number)
    wait_until_nothing_runs(data)


@pytest.mark.slow
def test_a_detached_fleet_lives_on_when_its_reader_has_read_enough(data: Path) -> None:
    with subprocess.Popen(up_command(data, "--detach"), stdout=subprocess.PIPE) as starting:
        assert starting.stdout is not None and starting.stdout.readline()
        starting.stdout.close()  # as `| head -1` does
        assert starting.wait(timeout=90) == 0
    running = running_fleet(FleetFolder(data))
    assert running is not None and running.phase is FleetPhase.READY


@pytest.mark.slow
def test_of_two_at_once_one_comes_up_and_the_other_says_so(data: Path) -> None:
    command = up_command(data, "--detach")
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [(process.communicate(timeout=90), process.returncode) for process in both]
    assert sorted(status for _, status in ended) == [0, 1]
    for (out, err), status in ended:
        assert ("ready after" in out) is (status == 0)
        assert ("a fleet is being started already" in err or "already running at http" in err) is (status == 1), err
        assert "Traceback" not in out + err
    assert local("status", "--data-dir", str(data), "-o", "json").returncode == 0
    first = subprocess.run(
        f"{sys.executable} -m fairlead local status --data-dir {data} | head -n 0", shell=True, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert first.stderr == ""


OWNER = """
import sys, time
from pathlib import Path
from fairlead_local.detaching import owned_fleet
said = []
with owned_fleet(Path(sys.argv[1]), write=said.append):
    print("hints for a person" if "Stop it with" in "".join(said) else "up", flush=True)
    time.sleep(120)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("heeding_hangups")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_fleet_ends_with_whoever_started_it_for_himself(data: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(data)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        assert ProcessRecords(data / "run").running() != []
        owner.send_signal(number)
    wait_until_nothing_runs(data)


def wait_until_nothing_runs(data: Path) -> None:
    wait_until(lambda: running_fleet(FleetFolder(data)) is None and not ProcessRecords(data / "run").running())


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


@pytest.mark.slow
def test_on_a_full_disk_a_write_is_refused_and_nothing_has_changed(data: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "model.yaml", tmp_path / "other.yaml"
    file.write_text(MODEL)
    other.write_text(MODEL.replace("tiny", "other"))
    assert up(data, "-f", str(file)).returncode == 0
    state = read_state(FleetFolder(data))
    assert state is not None

    unlimited = resource.prlimit(state.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(state.pid, resource.RLIMIT_FSIZE, (1, unlimited[1]))
    for text in (MODEL.replace("replicas: 0", "replicas: 1"), MODEL.replace("tiny", "other")):
        other.write_text(text)
        refused = up(data, "-f", str(other))
        assert (refused.returncode, "nothing was changed" in refused.stderr) == (1, True), refused.stderr
        assert "Traceback" not in refused.stderr and "File too large" in refused.stderr
        assert [(name, spec["replicas"]) for name, spec in models(data)] == [("tiny", 0)]

    resource.prlimit(state.pid, resource.RLIMIT_FSIZE, unlimited)
    assert up(data, "-f", str(other)).returncode == 0
    assert local("down", "--data-dir", str(data)).returncode == 0
    assert up(data).returncode == 0
    assert [name for name, _ in models(data)] == ["other", "tiny"]


def models(data: Path) -> list[tuple[str, dict[str, object]]]:
    found = get(data, "/apis/fairlead.dev/v1alpha1/namespaces/default/llmdeployments")
    return [(item["metadata"]["name"], item["spec"]) for item in found["items"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("flag", ["--api-port", "--gateway-port"])
def test_a_port_in_use_is_named_with_its_flag(data: Path, flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = up(data, flag, port)
    assert refused.returncode == 1
    assert f"port {port} is in use: choose another with {flag}" in refused.stdout + refused.stderr
    state = read_state(FleetFolder(data))
    assert state is not None and state.phase is FleetPhase.FAILED


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = up(tmp_path / "file" / "fleet")
    assert refused.returncode == 1
    assert f"cannot write to {tmp_path / 'file' / 'fleet'}" in refused.stderr
    assert "--data-dir" in refused.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (MODEL.replace("replicas", "replcas"), "spec.replcas"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (MODEL.replace("LLMDeployment", "LLMDeploymint"), 'no matches for kind "LLMDeploymint"'),
                (MODEL + "  autoscaling: {minReplicas: 3, maxReplicas: 1}\n", "minReplicas"),
            )
        ),
    ],
)
def test_a_file_the_api_refuses_stops_everything_and_says_why(
    data: Path, tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(text)
    refused = up(data, "-f", str(file))
    assert refused.returncode == 1
    assert str(file) in refused.stdout and sentence in refused.stdout
    assert ProcessRecords(data / "run").running() == []


@pytest.mark.parametrize(("text", "sentence"), [("a: [", "is not YAML"), ("kind: X", "needs apiVersion and kind")])
def test_a_file_that_is_no_manifest_is_refused_before_anything_starts(
    data: Path, tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(text)
    refused = up(data, "-f", str(file))
    assert (refused.returncode, sentence in refused.stderr, data.exists()) == (1, True, False)
    missing = up(data, "-f", str(tmp_path / "none.yaml"))
    assert (missing.returncode, "cannot read" in missing.stderr) == (1, True)


@pytest.mark.slow
def test_in_the_foreground_ctrl_c_stops_everything(data: Path) -> None:
    with subprocess.Popen(up_command(data), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "or Ctrl-C here." in line:
                break
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, "")
    assert ProcessRecords(data / "run").running() == []
    assert running_fleet(FleetFolder(data)) is None


def test_verbs_of_a_fleet_load_no_api_server() -> None:
    program = 'import sys, fairlead_local.command; print(*sys.modules, sep="\\n")'
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"celpy", "kubernetes", "fairlead_local.supervisor"}.isdisjoint(ended.stdout.split())


def test_status_tells_what_somebody_has_to_look_at_though_it_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "ReplicasReady", "message": "2/2 replicas ready"}
    degraded = {"type": "Degraded", "status": "True", "reason": "NameConflict", "message": "choose another name"}
    paused = {"type": "Progressing", "status": "Unknown", "reason": "Paused", "message": "resume it"}
    failed = {**ready, "status": "False", "reason": "Unschedulable", "message": "no node"}
    cases = {"a": [ready], "b": [ready, degraded, paused], "c": [ready, paused], "d": [failed, degraded], "e": []}
    models = [{"name": name, "conditions": conditions} for name, conditions in cases.items()]
    _say_status({"folder": "f", "phase": "ready", "pid": 1, "api": "", "models": models, "pods": []})
    assert [line.split(maxsplit=2)[2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "Ready=True",
        "Ready=True  NameConflict: choose another name",
        "Ready=True  Paused: resume it",
        "Ready=False  Unschedulable: no node",
        "Ready=Unknown",
    ]
