"""`fairlead top`: objects, pods and signals → figures → a terminal or plain lines; and the command itself."""

import asyncio
import io
import json
import os
import pty
import re
import signal
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from fairlead.cli.fleet_view import DrawnView, FleetView, ReplicaStage, figures, fleet_view, is_measured, lines, to_json
from fairlead.cli.top import Pager, show
from fairlead.kube.client import KubeClient
from fairlead.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, LLMDEPLOYMENTS
from fairlead_local.system import crd
from fairlead_testing.clock import in_virtual_time
from fairlead_testing.fleet_objects import MODEL, SENTENCE, deployment, line, load, model, pod, readings, scaled
from fairlead_testing.operators import bare_api_server

BUSY = readings(
    (
        line("a", 50.0, model(100, prompt_tokens=1000, uncached_prompt_tokens=500, output_tokens=10)),
        line(
            "a", 60.0,
            model(140, ttft=(0.1, 0.1, 0.1, 2.0), prompt_tokens=5000, uncached_prompt_tokens=900, output_tokens=810,
                  waiting=5, running=4, replicas={"uid-one": load("one", 0.1), "uid-two": load("two", 2.0, running=0)}),
        ),
    ),
    (
        line("b", 5.0, model(0)),
        line("b", 8.0, model(30, waiting=1, running=2, replicas={"uid-two": load("two", 0.2, running=2)})),
    ),
)  # fmt: skip


def view(*bodies: dict, pods: tuple = (), seen: object = BUSY) -> FleetView:
    return fleet_view(bodies or [scaled()], pods, seen)  # type: ignore[arg-type]


def plain(shown: FleetView) -> str:
    return "\n".join(lines(shown))


def drawn(shown: FleetView) -> str:
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    console.print(DrawnView(shown))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_figures_are_sums_over_gateways_of_what_changed() -> None:
    seen = figures(BUSY, MODEL)
    assert seen is not None
    assert (seen.waiting, seen.running) == (6, 6)
    assert seen.arrivals_per_second == pytest.approx(40 / 10 + 30 / 8), "counters of a new gateway began at 0"
    assert seen.output_tokens_per_second == pytest.approx(80.0)
    assert seen.cached_ratio == pytest.approx(1 - 400 / 4000)
    assert seen.ttft_p50_seconds == pytest.approx(0.1, rel=0.3)
    assert seen.ttft_p90_seconds == pytest.approx(2.0, rel=0.3)
    assert seen.replicas["uid-two"].running == 2, "the newest word on it"


def test_a_silent_gateway_says_nothing_about_now() -> None:
    silent = readings((line("a", 60.0, model(140, waiting=5)),))
    assert figures(silent, MODEL) is not None
    later = type(silent)(silent.time + 10.0, silent.windows, 0)
    assert figures(later, MODEL) is None
    assert "cannot be reached from here" in view(seen=later).note
    assert figures(silent, "default/other") is None


def test_what_one_line_cannot_tell_is_not_shown_as_nothing() -> None:
    once = readings((line("a", 60.0, model(140, waiting=5, running=4)),))
    seen = figures(once, MODEL)
    assert seen is not None and seen.arrivals_per_second is None and seen.output_tokens_per_second is None
    assert "queue 5 · running 4 · – requests/s" in plain(view(seen=once)) and "– tokens/s" in plain(view(seen=once))
    assert "–/s" in drawn(view(seen=once))
    assert not is_measured(once) and not is_measured(readings()) and is_measured(BUSY)


def test_a_replica_that_cannot_start_is_told_of_beside_the_autoscalers_sentence() -> None:
    body, trouble = scaled(), "one: no node can take it"
    body["status"]["conditions"] = [{"type": "Degraded", "status": "True", "message": trouble}]
    assert plain(view(body)).splitlines()[1:3] == [f"  {SENTENCE}", f"  {trouble}"]
    assert trouble in drawn(view(body))
    unscaled = deployment(conditions=[
        {"type": "Ready", "status": "False", "message": f"0/1 replica ready; {trouble}"},
        {"type": "Degraded", "status": "True", "message": trouble},
    ])  # fmt: skip
    assert plain(view(unscaled)).count(trouble) == 1
    body["status"]["conditions"][0]["status"] = "False"
    assert trouble not in plain(view(body))


def test_a_download_says_how_far_it_is_beside_the_autoscalers_sentence() -> None:
    body, words = scaled(), "dinghy-1: downloading hf://org/name: 3.1 of 15.2 GB, 210 MB/s, 58 s left"
    told = {"type": "Progressing", "status": "True", "reason": "Downloading", "message": words}
    body["status"]["conditions"] = [told]
    assert plain(view(body)).splitlines()[1:3] == [f"  {SENTENCE}", f"  {words}"]
    assert words in drawn(view(body))
    assert to_json(view(body))["models"][0]["progress"] == words
    body["status"]["conditions"] = [told | {"reason": "LoadingModel"}]
    assert words not in plain(view(body))


def test_a_paused_rollout_is_told_of_until_something_is_wrong() -> None:
    body, message = scaled(), "the rollout is paused; kubectl rollout resume deployment/dinghy-engine"
    body["status"]["conditions"] = [{"type": "Progressing", "status": "False", "reason": "Paused", "message": message}]
    assert plain(view(body)).splitlines()[1:3] == [f"  {SENTENCE}", f"  {message}"]
    body["status"]["conditions"].append({"type": "Degraded", "status": "True", "message": "one: hangs"})
    assert plain(view(body)).splitlines()[2] == "  one: hangs"


def test_nothing_is_cut_off_on_a_narrow_terminal() -> None:
    body = scaled("a-name-of-forty-characters-as-it-may-be-x")
    body["status"]["scaling"]["reason"] = " ".join([SENTENCE] * 4)
    name = "a-name-of-forty-characters-as-it-may-be-x-engine-vmbzksdqjc-8zpc8"
    shown = view(body, pods=(pod(name, owner=body["metadata"]["name"]),))
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    console.print(DrawnView(shown))
    text = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]
    assert "…" not in text and "default/a-name-of-forty-characters-as-it-may-be-x" in text
    assert re.sub(r"\s+", " ", text).count("9 requests waiting (queueDepth 4)") == 4


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_figures_are_whole_at_every_width(width: int) -> None:
    shown = view(pods=(pod("one"), pod("three", "starting")))
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(DrawnView(shown))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    for figure in ("1 ready, 1 starting", "90.0 %", "3/4", "25.0 %", "3.40 ms"):
        assert figure in text
    if width < 100:
        for figure in ("queue 6", "running 6", "TTFT p50 101 ms, p90 2.27 s", "waiting 1", "full step 3.40 ms"):
            assert figure in text


def test_a_replica_whose_container_starts_again_and_again_is_red() -> None:
    stuck = pod("one", "starting")
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}
    stuck["status"]["containerStatuses"] = [{"name": "engine", **waiting}]
    shown = view(pods=(stuck, pod("two", "starting")))
    assert [replica.stage for replica in shown.models[0].replicas] == [ReplicaStage.STARTING, ReplicaStage.FAILING]
    for width in (80, 140):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
        console.print(DrawnView(shown))
        assert "\x1b[31mfailing" in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_a_terminal_has_no_room_for_is_reached_by_keys() -> None:
    shown = view(*(scaled(f"m{number:02}") for number in range(30)))
    console = Console(file=io.StringIO(), width=60, height=12, force_terminal=True, color_system=None)
    pager = Pager()

    def seen(keys: bytes) -> str:
        pager.typed(keys)
        with console.capture() as captured:
            console.print(pager.draw(shown, console))
        assert len(captured.get().splitlines()) <= 12
        return captured.get()

    first = seen(b"")
    assert "default/m00" in first and "default/m29" not in first
    total = re.search(r"lines 1 to 11 of (\d+)", first)
    assert total is not None
    assert "lines 2 to 12 of" in seen(b"\x1b[B")
    assert "lines 14 to 24 of" in seen(b"jj\x1b[6~")
    assert "lines 4 to 14 of" in seen(b"b")
    assert f"lines {int(total[1]) - 10} to {total[1]} of" in seen(b"\x1b[F")
    assert "lines 1 to 11 of" in seen(b"g")
    assert "PgUp PgDn" in seen(b"?")
    assert "lines 1 to 11 of" in seen(b"?")


def test_replicas_are_told_by_stage() -> None:
    pods = (pod("two"), pod("four", "draining"), pod("three", "starting"), pod("one"), pod("other", owner="cutter"))
    (shown,) = view(pods=pods).models
    assert [(replica.name, replica.stage) for replica in shown.replicas] == [
        ("one", ReplicaStage.READY),
        ("two", ReplicaStage.READY),
        ("three", ReplicaStage.STARTING),
        ("four", ReplicaStage.DRAINING),
    ]
    one = shown.replicas[0]
    assert one.kv_ratio == pytest.approx(0.25)
    assert one.step_seconds == pytest.approx(0.002 + 4 * 0.0001 + 1000 * 0.000001)
    assert shown.replicas[2].step_seconds is None


def test_a_replica_that_drains_by_its_own_word_is_draining() -> None:
    going = readings((line("a", 9.0, model(1, replicas={"uid-one": load("one", draining=True)})),))
    (shown,) = view(pods=(pod("one"),), seen=going).models
    assert shown.num(ReplicaStage.DRAINING) == 1


def test_a_replica_that_hangs_is_called_so_with_how_long() -> None:
    stuck = {"uid-one": load("one", 0.2, hangs=True, step_age_seconds=13.9), "uid-two": load("two")}
    stuck |= {"uid-three": load("three", hangs=True, step_age_seconds=60.0)}
    seen = readings((line("a", 9.0, model(1, replicas=stuck)),))
    pods = (pod("one"), pod("two"), pod("three", "draining"))
    shown = view(pods=pods, seen=seen)
    counts, *_, two, one, three = plain(shown).splitlines()
    assert counts.startswith("default/dinghy: 1 ready, 1 hanging, 1 draining, 2 wanted")
    assert one.startswith("  one: hanging 14s · running 3/4")
    assert two.startswith("  two: ready ·") and three.startswith("  three: draining ·")
    assert re.search(r"one\s+hanging 14s\s+3/4", drawn(shown))
    told = {replica["name"]: replica for replica in to_json(shown)["models"][0]["replicas"]}
    assert (told["one"]["stage"], told["two"]["stage"]) == ("hanging", "ready")
    assert (told["one"]["load"]["step_age_seconds"], told["one"]["load"]["hangs"]) == (13.9, True)


def test_plain_lines() -> None:
    text = plain(view(pods=(pod("one"), pod("three", "starting"))))
    assert text.splitlines() == [
        "default/dinghy: 1 ready, 1 starting, 2 wanted · queue 6 · running 6 · 7.8 requests/s · "
        "TTFT p50 101 ms, p90 2.27 s · cached 90.0 % · 80 tokens/s",
        f"  {SENTENCE}",
        "  one: ready · running 3/4 · waiting 1 · KV 25.0 % · full step 3.40 ms",
        "  three: starting",
    ]


def test_without_signals_the_status_speaks_and_it_is_said() -> None:
    body = scaled(queue=7, running=4, ttft="1.5s")
    shown = view(body, seen=readings(missing=2))
    assert plain(shown).splitlines()[0] == "default/dinghy: 0 ready, 2 wanted · queue 7 · running 4 · TTFT 1.5s"
    assert "note: the gateways' signals cannot be reached from here" in plain(shown)
    assert "1.5s" in drawn(shown) and "seconds old" in drawn(shown)
    partly = readings((line("a", 9.0, model(1)),), missing=1)
    assert view(body, seen=partly).note == "1 of 2 gateways cannot be heard: figures lack theirs"
    assert view(body, seen=readings()).note.startswith("no gateway is ready")


def test_the_terminal_shows_the_same_figures() -> None:
    text = drawn(view(scaled(), deployment("cutter"), pods=(pod("one"), pod("three", "starting"))))
    for word in (
        "default/dinghy",
        "default/cutter",
        "1 ready, 1 starting",
        "7.8/s",
        "90.0 %",
        "3/4",
        "25.0 %",
        SENTENCE,
    ):
        assert word in text
    assert "no operator has seen it yet: `fairlead status` says whether one looks after its namespace" in text
    assert re.search(r"three\s+starting\s+–\s+–", text)


def test_nothing_there_is_said() -> None:
    nothing = FleetView(())
    assert plain(nothing) == "no LLMDeployment"
    assert "kubectl apply" in drawn(nothing)


@pytest.mark.parametrize("terminal", [True, False])
@in_virtual_time
async def test_live_it_is_drawn_again_and_again(terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=140, force_terminal=terminal)
    seen = []

    def look() -> FleetView:
        seen.append(asyncio.get_running_loop().time())
        return view()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(show(look, console, 2.0), 7.0)
    assert seen == [0.0, 2.0, 4.0, 6.0]
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count(SENTENCE) >= 4
    assert ("\x1b[" in text) is terminal


async def test_one_look_as_a_process(fairlead, tmp_path: Path) -> None:
    async with bare_api_server(tmp_path) as path, await KubeClient.from_environment(path) as client:
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd())
        body = {"apiVersion": LLMDEPLOYMENTS.api_version, "kind": LLMDEPLOYMENTS.kind,
                "metadata": {"name": "dinghy", "namespace": "default"},
                "spec": {"model": {"source": "demo://dinghy"}}}  # fmt: skip
        await client.create(LLMDEPLOYMENTS, body)
        ended = await fairlead("top", "--once", "dinghy", KUBECONFIG=str(path))
        missing = await fairlead("top", "--once", "cutter", KUBECONFIG=str(path))
        told = await fairlead("top", "--once", "-o", "json", KUBECONFIG=str(path))
        await _leaves_its_terminal(path)
        await _leaves_its_terminal(path, early=True)
        await _leaves_its_terminal(path, by=signal.SIGTERM)
    assert ended.status == 0, ended.err
    assert "default/dinghy: 0 ready, – wanted" in ended.out
    (told_of,) = json.loads(told.out)["models"]
    assert (told_of["namespace"], told_of["name"], told_of["replicas"]) == ("default", "dinghy", [])
    assert "note: no gateway is ready" in ended.out
    assert (missing.status, missing.out) == (1, "")
    assert "there is no LLMDeployment 'cutter' in any namespace" in missing.err
    assert "hint: there is: dinghy" in missing.err


async def _leaves_its_terminal(kubeconfig: Path, *, early: bool = False, by: signal.Signals | None = None) -> None:
    """As it was, by q or a signal; `early`: q is typed while the command starts."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    if early:
        os.write(ours, b"q")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "top", "--kubeconfig", str(kubeconfig),
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    try:
        shown = b""
        while not early and b"default/dinghy" not in shown:
            shown += await asyncio.to_thread(os.read, ours, 4096)
        if by is not None:
            process.send_signal(by)
        elif not early:
            os.write(ours, b"jq")
        assert await asyncio.wait_for(process.wait(), 30.0) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(theirs)
        os.close(ours)


def test_figures_for_programs_are_the_same_as_for_people() -> None:
    told = json.loads(json.dumps(to_json(view(pods=(pod("one"), pod("three", "starting"))))))
    (model,) = told["models"]
    assert (model["waiting"], model["running"], model["desired"], model["sentence"]) == (6, 6, 2, SENTENCE)
    assert model["ttft_p90_seconds"] == pytest.approx(2.27, rel=0.01)
    assert [(each["name"], each["stage"]) for each in model["replicas"]] == [("one", "ready"), ("three", "starting")]
    assert model["replicas"][0]["load"]["running"] == 3 and model["replicas"][1]["load"] is None


async def test_no_api_is_an_error_with_a_hint(fairlead, tmp_path: Path) -> None:
    ended = await fairlead("top", "--kubeconfig", str(tmp_path / "none"))
    assert ended.status == 1
    assert "cannot read the kubeconfig" in ended.err and "`fairlead local up`" in ended.err
