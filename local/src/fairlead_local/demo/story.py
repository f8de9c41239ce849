"""`fairlead demo`: a local fleet from apply to an answer, up to several replicas under load, down to none, and one
request from zero. `Demo.play` is the story; `scaling_story.py` plays the part with the load."""

import argparse
import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from fairlead.api.llmdeployment import Autoscaling, LLMDeployment, ScalingMode
from fairlead.api.names import API_VERSION, KIND, LABEL_LLMDEPLOYMENT
from fairlead.cli.options import UsageError, tell
from fairlead.client.load_generator import LoadSample
from fairlead.client.openai import ChatAnswer, OpenAIClient, RequestFailed
from fairlead.client.plot import PlotUnavailable, draw
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.kubeconfig import KubeConfigError, load
from fairlead.kube.resources import DEPLOYMENTS, LLMDEPLOYMENTS, PODS, Resource
from fairlead_local.demo.loopback_hub import Shelf, bundled_dinghy, hub
from fairlead_local.demo.picture import Scene, panels
from fairlead_local.demo.recorder import QUIET_SECONDS, Moment, Patience
from fairlead_local.demo.scaling_story import ScalingStory, StepFailed
from fairlead_local.demo.summary import DemoStep, demo_table
from fairlead_local.detaching import OwnedFleet, temporary_fleet
from fairlead_local.fleet_state import FleetError

NAMESPACE = "default"
QUESTION, ANSWER = "What is 7 plus 5?", "12"
"""In the dinghy's repertoire: an engine that computes wrongly fails the demo."""
SOURCE, DOWNLOADED = "hf://fairlead/dinghy", "from-a-hub"
"""What is downloaded, and the LLMDeployment of it."""
SECRETS = Resource("", "v1", "secrets", "Secret")
HUB_BYTES_PER_SECOND = 1_800_000
"""Slow enough to see the 7 MB coming."""
ASKING = [{"role": "user", "content": QUESTION}]
STOPPED = "Everything stopped"
WIDTH = 120
"""Columns, where there is no terminal to say."""
_PLAYABLE = (
    "the demo needs one with autoscaling, minReplicas: 0 and maxReplicas of 2 or more: examples/02-autoscaling.yaml"
)
_AS_IF_STORED = {"namespace": NAMESPACE, "uid": "", "creationTimestamp": "1970-01-01T00:00:00Z"}
"""Metadata of a stored object that a file lacks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file",
        type=Path,
        default=Path("examples/02-autoscaling.yaml"),
        help="an autoscaled LLMDeployment with minReplicas 0 (default: %(default)s)",
    )
    parser.add_argument(
        "--plot", type=Path, default=Path("bench-out/demo.png"), help="where to draw it (default: %(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the fleet until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Returns 0 only if every step held; 130 after Ctrl-C. What was started is stopped in every case."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    logging.getLogger("fairlead").addHandler(logging.NullHandler())  # watches that break are mended without a word
    demo: Demo | None = None
    try:
        manifest = read_manifest(args.file)
        with temporary_fleet("fairlead-demo-", write=partial(print, end="", flush=True)) as fleet:
            demo = Demo(console, fleet, manifest)
            console.print(f"in a browser: {fleet.gateway}/", markup=False, soft_wrap=True)
            asyncio.run(demo.play(keeps=args.keep))
            if args.keep:
                keep(console, fleet)
    except KeyboardInterrupt:
        console.print("Interrupted; everything that was started has been stopped.")
        return 130
    except UsageError as error:
        tell(error)
        return 2
    except (OSError, FleetError, KubeConfigError, StepFailed) as error:
        console.print(f"error: {error}", markup=False, soft_wrap=not console.is_terminal)
        if demo is None:
            return 1
    else:
        demo.steps.append(DemoStep(STOPPED, "the fleet's supervisor saw the end of every process", True, 0.0))
    return finish(demo, args.plot)


def keep(console: Console, fleet: OwnedFleet) -> None:
    """Returns at Ctrl-C."""
    console.print(f"The fleet stays up until Ctrl-C: {fleet.gateway}/", markup=False, soft_wrap=True)
    console.print(f"export KUBECONFIG={fleet.kubeconfig}", markup=False, soft_wrap=True)
    with suppress(KeyboardInterrupt):
        signal.pause()


def read_manifest(path: Path) -> dict[str, Any]:
    """An LLMDeployment that the demo can play. Raises UsageError before anything is started."""
    try:
        manifest = yaml.safe_load(path.read_text())
        autoscaling = autoscaling_of(manifest) if manifest["kind"] == KIND else None
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} is no LLMDeployment that can be read: {error}", _PLAYABLE) from error
    if autoscaling is None or autoscaling.mode is not ScalingMode.FAIRLEAD or autoscaling.min_replicas != 0:
        raise UsageError(f"{path} is not scaled by Fairlead, down to zero", _PLAYABLE)
    if (autoscaling.max_replicas or 0) < 2:
        raise UsageError(f"{path} is never scaled up: autoscaling.maxReplicas is below 2", _PLAYABLE)
    return dict(manifest)


def downloaded(endpoint: str) -> list[tuple[Resource, dict[str, Any]]]:
    """An LLMDeployment of a hub's model, and the Secret that says where the hub is."""
    metadata = {"name": DOWNLOADED, "namespace": NAMESPACE}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"HF_ENDPOINT": endpoint}}
    model = {"source": SOURCE, "credentials": {"secretName": DOWNLOADED}}
    deployment = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {"model": model}}
    return [(SECRETS, secret), (LLMDEPLOYMENTS, deployment)]


def ttft_target(manifest: Mapping[str, Any]) -> float | None:
    """Seconds that the autoscaler keeps times to first token below; None = it is not asked to."""
    autoscaling = autoscaling_of(manifest)
    targets = autoscaling.targets if autoscaling is not None else None
    return targets.time_to_first_token if targets is not None else None


def autoscaling_of(manifest: Mapping[str, Any]) -> Autoscaling | None:
    """Autoscaling of an LLMDeployment; never None after `read_manifest`."""
    return LLMDeployment.from_body({**manifest, "metadata": _AS_IF_STORED | manifest["metadata"]}).spec.autoscaling


def finish(demo: "Demo", plot: Path) -> int:
    """Shows what was seen, as table and as picture; the exit status."""
    figures = demo.scaling.figures() if demo.scaling is not None else None
    demo.console.print(demo_table(demo.steps, figures))
    if demo.scaling is not None and figures is not None:
        try:
            scene = demo.scene(demo.scaling.samples, figures.moments)
            draw(plot, panels(scene), title=f"fairlead demo: {demo.name}")
            demo.console.print(f"plot: {plot}", markup=False, soft_wrap=True)
        except PlotUnavailable as error:
            demo.console.print(f"no plot: {error}", markup=False, soft_wrap=True)
        except OSError as error:
            demo.console.print(f"no plot: cannot write {plot}: {error.strerror}", markup=False, soft_wrap=True)
    held = all(step.held for step in demo.steps)
    return 0 if held and demo.steps and demo.steps[-1].title == STOPPED else 1


def _checked(answer: ChatAnswer) -> str:
    """What was seen. Raises StepFailed where the answer is not the known one."""
    ttft = (answer.ttft_seconds or 0.0) * 1000
    seen = f"{QUESTION} → {answer.text.strip()}   (TTFT {ttft:.0f} ms, replica {answer.replica})"
    if answer.text.strip() != ANSWER:
        raise StepFailed(f"{seen}; it should be {ANSWER}")
    return seen


class Demo:
    """The steps, and what they share. Each returns what it saw or raises StepFailed."""

    def __init__(self, console: Console, fleet: OwnedFleet, manifest: Mapping[str, Any]) -> None:
        self.console = console
        self.fleet = fleet
        self.manifest = manifest
        self.name = str(manifest["metadata"]["name"])
        self.steps: list[DemoStep] = []
        self.scaling: ScalingStory | None = None
        """From the measuring of step costs on."""
        self.from_zero: LoadSample | None = None
        """The request from zero replicas, with times on the clock of the load."""

    async def play(self, *, keeps: bool = False) -> None:
        """The whole story; `keeps`: and the model again. Raises StepFailed at the first step that does not hold."""
        async with AsyncExitStack() as stack:
            self.kube = await stack.enter_async_context(KubeClient(load(self.fleet.kubeconfig)))
            self.gateway = await stack.enter_async_context(OpenAIClient(f"{self.fleet.gateway}/v1"))
            await self.step("Apply the LLMDeployment", self.apply)
            await self.step("Wait until it is Ready", self.ready)
            await self.step("Ask the dinghy", self.ask)
            spec = autoscaling_of(self.manifest)
            assert spec is not None
            self.scaling = await stack.enter_async_context(
                ScalingStory(self.console, self.kube, self.gateway, namespace=NAMESPACE, name=self.name, spec=spec)
            )
            await self.step("Measure what a step costs", self.scaling.measure)
            await self.step("More requests than one replica's slots", self.scaling.up)
            await self.step("The same load on more replicas", self.scaling.hold)
            await self.step("Fewer requests: back to one", self.scaling.down)
            await self.step("Every request was answered", self.scaling.all_answered)
            await self.step("No requests: down to none", self.scaling.to_zero)
            await self.step("One request, from zero", self.ask_from_zero)
            await self.step("Delete the LLMDeployment", self.delete)
            await self.step("Download the same model from a hub", self.download)
            if keeps:
                await self.step("Apply it again, for you", self.apply)

    async def step(self, title: str, action: Callable[[], Awaitable[str]]) -> None:
        self.console.rule(title, align="left")
        started = time.monotonic()
        try:
            detail, failure = await action(), None
        except (StepFailed, KubeError, RequestFailed) as error:
            detail, failure = str(error), error
        self.steps.append(DemoStep(title, detail, failure is None, time.monotonic() - started))
        if failure is not None:
            raise StepFailed(f"{title}: {detail}") from failure
        self.console.print(detail, markup=False, soft_wrap=not self.console.is_terminal)

    async def apply(self) -> str:
        manifest = {**self.manifest, "metadata": {**self.manifest["metadata"], "namespace": NAMESPACE}}
        await self.kube.apply(LLMDEPLOYMENTS, manifest, "fairlead-demo")
        return f"llmdeployment/{self.name}: the same object that `kubectl apply -f` would make"

    async def ready(self, name: str = "") -> str:
        """Waits for the first replica of an LLMDeployment (empty = the main one), and prints reasons of waiting."""
        said = None
        patience = Patience(time.monotonic())
        while True:
            status = (await self.kube.get(LLMDEPLOYMENTS, name or self.name, NAMESPACE)).get("status", {})
            conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
            ready = conditions.get("Ready", {"status": "Unknown", "message": "waiting for the operator to see it"})
            if ready["status"] == "True":
                return str(ready["message"])
            if ready["message"] != said:
                said = ready["message"]
                self.console.print(f"  waiting: {said}", markup=False, soft_wrap=not self.console.is_terminal)
            if patience.is_over(time.monotonic(), said):
                raise StepFailed(f"not ready, and nothing moved for {QUIET_SECONDS:.0f} s: {said}")
            await asyncio.sleep(0.1)

    async def ask(self) -> str:
        """One question whose answer is known."""
        return _checked(await self._answer())

    async def download(self) -> str:
        """An LLMDeployment with a model from a hub on this machine, until the first answer."""
        shelf = Shelf(name="fairlead/dinghy", folder=bundled_dinghy(), bytes_per_second=HUB_BYTES_PER_SECOND)
        with hub(shelf) as endpoint:
            for resource, manifest in downloaded(endpoint):
                await self.kube.apply(resource, manifest, "fairlead-demo")
            await self.ready(DOWNLOADED)
            seen = _checked(await self._answer(DOWNLOADED))
            startup = (await self.kube.get(LLMDEPLOYMENTS, DOWNLOADED, NAMESPACE))["status"].get("startup", {})
            for resource, manifest in downloaded(endpoint):
                await self.kube.delete(resource, manifest["metadata"]["name"], NAMESPACE)
        return f"{SOURCE} in {startup.get('download', 'no time')}; {seen}"

    async def ask_from_zero(self) -> str:
        """The same where there is no replica to begin with."""
        assert self.scaling is not None
        if num_ready := self.scaling.num_ready():
            raise StepFailed(f"{num_ready} replicas were ready; there should be none")
        due = self.scaling.now
        answer = await self._answer()
        self.from_zero = LoadSample(due, sent=due, ended=self.scaling.now, completion=answer)
        return _checked(answer)

    async def _answer(self, name: str = "") -> ChatAnswer:
        return await self.gateway.chat(name or self.name, ASKING, temperature=0, max_tokens=32)

    def scene(self, samples: Sequence[LoadSample], moments: Sequence[Moment]) -> Scene:
        """What there is to draw."""
        return Scene(
            samples=samples, moments=moments, target_seconds=ttft_target(self.manifest), from_zero=self.from_zero
        )

    async def delete(self) -> str:
        await self.kube.delete(LLMDEPLOYMENTS, self.name, NAMESPACE)
        patience = Patience(time.monotonic())
        selector = f"{LABEL_LLMDEPLOYMENT}={self.name}"
        while left := [
            item["metadata"]["name"]
            for resource in (DEPLOYMENTS, PODS)
            for item in (await self.kube.list(resource, NAMESPACE, label_selector=selector))["items"]
        ]:
            if patience.is_over(time.monotonic(), tuple(left)):
                raise StepFailed(f"still there: {', '.join(left)}")
            await asyncio.sleep(0.1)
        return "its Deployment, pods, ConfigMap and Service went with it"
