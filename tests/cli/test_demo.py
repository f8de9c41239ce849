"""The demo's pure parts: how much load, what is recorded, what the table says. `make demo` runs all of it."""

import argparse
import asyncio
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fairlead.cli.fleet_view import FleetView, fleet_view
from fairlead.cli.options import UsageError
from fairlead.client.load_generator import LoadSample
from fairlead.client.openai import ChatAnswer, RequestFailed
from fairlead.client.report import report
from fairlead.client.workload import WorkloadKind, conversations
from fairlead.demand.buckets import Buckets
from fairlead_local.demo import story
from fairlead_local.demo.load_plan import ANSWER_TOKENS, AdjustableLoad, Crowd
from fairlead_local.demo.recorder import FleetRecorder, Moment, replicas_over_time, shifted, stretches
from fairlead_local.demo.scaling_story import StepFailed, ttft_errors
from fairlead_local.demo.story import ANSWER, Demo, read_manifest, ttft_target
from fairlead_local.demo.summary import DemoStep, RunFigures, demo_table, load_rows
from fairlead_local.detaching import OwnedFleet
from fairlead_testing.clock import in_virtual_time
from fairlead_testing.fleet_objects import MODEL, SENTENCE, line, model, pod, readings, scaled

MANIFEST = (
    "kind: LLMDeployment\nmetadata: {{name: m}}\n"
    "spec: {{model: {{source: 'demo://dinghy'}}, autoscaling: {autoscaling}}}"
)
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "02-autoscaling.yaml"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: [", "no LLMDeployment that can be read"),
        ("just words", "no LLMDeployment that can be read"),
        ("kind: LLMDeployment", "no LLMDeployment that can be read"),
        ("kind: Pod\nmetadata: {name: dinghy}\nspec: {model: {source: 'demo://dinghy'}}", "not scaled by Fairlead"),
        (MANIFEST.format(autoscaling="null"), "not scaled by Fairlead, down to zero"),
        (MANIFEST.format(autoscaling="{mode: External}"), "not scaled by Fairlead, down to zero"),
        (MANIFEST.format(autoscaling="{minReplicas: 1, maxReplicas: 2}"), "not scaled by Fairlead, down to zero"),
        (MANIFEST.format(autoscaling="{minReplicas: 0, maxReplicas: 1}"), "maxReplicas is below 2"),
    ],
)
def test_what_it_cannot_play_is_refused_before_anything_starts(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_manifest(path)


async def test_a_file_that_is_not_there_is_wrong_usage(fairlead, tmp_path: Path) -> None:
    ended = await fairlead("demo", "--file", str(tmp_path / "none.yaml"))
    assert (ended.status, ended.out) == (2, "")
    assert "none.yaml" in ended.err and "hint: the demo needs one with autoscaling" in ended.err


def test_the_fleet_can_be_kept_until_it_is_interrupted(monkeypatch, capsys, tmp_path: Path) -> None:
    up: list[bool] = []

    @contextmanager
    def fleet(*_: object, **__: object) -> Iterator[OwnedFleet]:
        up.append(True)
        yield OwnedFleet("http://127.0.0.1:1", tmp_path / "kubeconfig")
        up.clear()

    async def play(self: Demo, *, keeps: bool) -> None:
        assert up and keeps, "with a model to talk to"

    def interrupted() -> None:
        assert up, "the fleet runs while the demo waits"
        raise KeyboardInterrupt

    monkeypatch.setattr(story, "temporary_fleet", fleet)
    monkeypatch.setattr(Demo, "play", play)
    monkeypatch.setattr(story.signal, "pause", interrupted)
    args = argparse.Namespace(file=EXAMPLE, plot=tmp_path / "demo.png", keep=True)
    assert story.run(args) == 0
    said = capsys.readouterr().out
    assert "in a browser: http://127.0.0.1:1/" in said and f"KUBECONFIG={tmp_path / 'kubeconfig'}" in said
    assert not up


@in_virtual_time
async def test_a_load_is_turned_up_down_and_off_while_it_runs() -> None:
    asked: list[object] = []

    class Lasting:
        """Answers after a second."""

        async def chat(
            self, model: str, messages: object, *, completion: ChatAnswer, max_tokens: int, **_: object
        ) -> None:
            asked.append(max_tokens)
            await asyncio.sleep(1.0)

    load = AdjustableLoad(Lasting(), "m", Crowd(clients=3))
    running, counts = asyncio.create_task(load.run(conversations(WorkloadKind.FIXED))), list[int]()
    for crowd in (Crowd(clients=9), Crowd(clients=1, output_tokens=16, every_seconds=5.0), Crowd(clients=1)):
        before = len(load.samples)
        await asyncio.sleep(100.0)
        counts.append(len(load.samples) - before)
        load.crowd = crowd
    load.stop()
    await running
    first, second, third = counts
    assert first == pytest.approx(300, abs=6)
    assert second == pytest.approx(900, abs=18)
    assert third == pytest.approx(20, abs=9), "those under way are answered to their end"
    assert load.num_answered == len(load.samples)
    assert load.seconds == pytest.approx(300, abs=2), "it does not wait for the next one to ask"
    assert (asked[0], asked[-1]) == (ANSWER_TOKENS, 16)


@in_virtual_time
async def test_what_is_recorded_and_said_without_a_terminal() -> None:
    pods = [pod("one")]
    console = Console(file=io.StringIO(), width=80)

    def view() -> FleetView:
        return fleet_view([scaled()], pods, readings((line("a", 9.0, model(90, waiting=3, running=4)),)))

    recorder = FleetRecorder(view, MODEL, console)
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(2.1)
    pods.append(pod("two", "starting"))
    await asyncio.sleep(2.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    moments = recorder.moments
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(moments) > 10
    assert (moments[0].ready, moments[0].starting, moments[0].waiting, moments[0].running) == (1, 0, 3, 4)
    assert (moments[-1].ready, moments[-1].starting, moments[-1].wanted) == (1, 1, 2)
    assert [text.strip()[:17] for text in said if "ready" in text] == ["1 ready, 2 wanted", "1 ready, 1 starti"]
    assert sum(SENTENCE in text for text in said) == 1, "a sentence is said once"


class Story:
    """Stands in for ScalingStory once the fleet is at zero, and for the gateway that answers from there."""

    def __init__(self, text: str) -> None:
        self.now = 121.8
        self._text = text

    def num_ready(self) -> int:
        return 0

    async def chat(self, model: str, messages: object, **parameters: object) -> ChatAnswer:
        self.now += 3.5
        return ChatAnswer(text=self._text, ttft_seconds=3.2, replica="one")


@pytest.mark.parametrize("text", ["12", "13"])
async def test_the_request_from_zero_and_the_target_are_in_the_picture(text: str) -> None:
    manifest = read_manifest(EXAMPLE)
    demo = Demo(Console(file=io.StringIO()), OwnedFleet("http://nowhere", Path("none")), manifest)
    demo.scaling = demo.gateway = Story(text)  # type: ignore[assignment]
    if text == ANSWER:
        assert "TTFT 3200 ms" in await demo.ask_from_zero()
    else:
        with pytest.raises(StepFailed, match="it should be 12"):
            await demo.ask_from_zero()
    scene = demo.scene([], [])
    assert scene.target_seconds == ttft_target(manifest) == 2.0
    assert scene.from_zero is not None
    assert (scene.from_zero.due, scene.from_zero.ttft_seconds, scene.from_zero.ended) == (121.8, 3.2, 125.3)


def test_without_a_target_there_is_no_line() -> None:
    assert ttft_target({"metadata": {"name": "m"}, "spec": {"model": {"source": "demo://dinghy"}}}) is None
    autoscaling = {"minReplicas": 0, "maxReplicas": 2}
    spec = {"model": {"source": "demo://dinghy"}, "autoscaling": autoscaling}
    assert ttft_target({"metadata": {"name": "m"}, "spec": spec}) is None


def test_replicas_over_time_in_words() -> None:
    moments = [Moment(time=float(time), ready=ready) for time, ready in enumerate([1, 1, 2, 2, 2, 1, 0])]
    assert list(stretches(moments)) == [(1, 0.0, 2.0), (2, 2.0, 5.0), (1, 5.0, 6.0), (0, 6.0, 6.0)]
    assert replicas_over_time(shifted(moments, 2.0)).startswith("1 (-2–0 s) → 2 (0–3 s) → 1")
    assert replicas_over_time([]) == ""


METRICS = """\
# HELP fairlead_gateway_ttft_prediction_error_ratio errors
# TYPE fairlead_gateway_ttft_prediction_error_ratio histogram
fairlead_gateway_ttft_prediction_error_ratio_bucket{le="0.1",model="default/dinghy"} 6.0
fairlead_gateway_ttft_prediction_error_ratio_bucket{le="0.3",model="default/dinghy"} 10.0
fairlead_gateway_ttft_prediction_error_ratio_bucket{le="+Inf",model="default/dinghy"} 12.0
fairlead_gateway_ttft_prediction_error_ratio_bucket{le="0.1",model="default/other"} 1.0
fairlead_gateway_ttft_prediction_error_ratio_bucket{le="+Inf",model="default/other"} 1.0
fairlead_gateway_ttft_prediction_error_ratio_count{model="default/dinghy"} 12.0
fairlead_gateway_ttft_prediction_error_ratio_sum{model="default/dinghy"} 2.0
"""


def test_prediction_errors_as_gateways_measured_them() -> None:
    found = ttft_errors(METRICS, MODEL)
    assert found == Buckets((0.1, 0.3), (6, 4, 2))
    assert found.percentile(50) == pytest.approx(0.1)
    assert ttft_errors(METRICS, "default/none").total == 0


def figures(*samples: LoadSample, errors: Buckets = Buckets((), ())) -> RunFigures:  # noqa: B008 - frozen
    seen = report(samples, 10.0)
    return RunFigures(seen, seen, errors, [Moment(time=0.0, ready=1), Moment(time=5.0, ready=2)])


def test_the_table_has_every_step_and_the_load() -> None:
    answer = ChatAnswer(
        ttft_seconds=0.1, duration_seconds=1.0, num_prompt_tokens=100, num_cached_tokens=96, num_completion_tokens=50,
        predicted_cached_tokens=96, predicted_ttft_seconds=0.08, replica="one",
    )  # fmt: skip
    load = figures(
        LoadSample(0.0, ended=1.0, completion=answer), LoadSample(1.0, ended=1.1, error=RequestFailed(500, "no"))
    )
    steps = [DemoStep("Ask", "12", True, 1.0), DemoStep("Scale", "waited too long", False, 180.0)]
    console = Console(file=io.StringIO(), width=120)
    console.print(demo_table(steps, load))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("Ask", "NO", "180.0", "1 failed, 0 rejected", "96.0 %", "100.0 % within one block, of 1", "one: 1"):
        assert words in text
    rows = dict(load_rows(load))
    assert rows["predicted TTFT"] == "median error 20.0 % under steady load, of 1, as clients see it"
    assert rows["replicas over time"] == "1 (0–5 s) → 2 (5–5 s)"
    measured = dict(load_rows(replace(load, ttft_errors=ttft_errors(METRICS, MODEL))))
    assert measured["predicted TTFT"] == "median error 10.0 % under steady load, of 12"


def test_without_load_there_are_only_steps() -> None:
    assert demo_table([DemoStep("Ask", "12", True, 1.0)], None).row_count == 1
    assert dict(load_rows(figures()))["predicted cached tokens"] == "the gateway made none"
