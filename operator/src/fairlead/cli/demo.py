"""`fairlead demo`: a local fleet from apply to an answer, scaled to two, and down again. `Demo.play` is the story."""

import argparse
import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import yaml
from rich.console import Console
from rich.table import Table

from fairlead.api.names import LABEL_LLMDEPLOYMENT
from fairlead.cli.demo_fleet import DemoFleet, FleetFailed
from fairlead.client.load import LoadReport, closed_loop
from fairlead.client.openai import ApiError, OpenAIClient
from fairlead.kube.apply import server_side_apply
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.config import KubeConfigError, load
from fairlead.kube.resources import DEPLOYMENTS, LLMDEPLOYMENTS, PODS

NAMESPACE = "default"
NUM_REQUESTS = 50
PATIENCE_SECONDS = 180.0
"""How long a step may wait before it has failed."""
QUESTION, ANSWER = "What is 7 plus 5?", "12"
"""In the dinghy's repertoire: an engine that computes wrongly fails the demo."""
ASKING = [{"role": "user", "content": QUESTION}]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file", type=Path, default=Path("examples/01-dinghy.yaml"), help="the LLMDeployment (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0 only if every step held; 130 after Ctrl-C. What was started is stopped in every case."""
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _interrupt)
    steps: list[Step] = []
    try:
        manifest = yaml.safe_load(args.file.read_text())
        with DemoFleet() as fleet:
            asyncio.run(Demo(console, fleet, manifest, steps).play())
    except KeyboardInterrupt:
        console.print("Interrupted; everything that was started has been stopped.")
        return 130
    except (OSError, yaml.YAMLError, FleetFailed, KubeConfigError, StepFailed) as error:
        console.print(f"error: {error}", markup=False)
    else:
        steps.append(Step("Everything stopped", "`fairlead local down` found the end of every process", True, 0.0))
    console.print(table(steps))
    return 0 if steps and all(step.held for step in steps) and steps[-1].title == "Everything stopped" else 1


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


class StepFailed(Exception):
    """A step did not hold; the text says what was seen instead."""


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the closing table."""

    title: str
    detail: str
    held: bool
    seconds: float


def table(steps: list[Step]) -> Table:
    """What happened, step by step."""
    rows = Table(title="The demo, step by step", title_justify="left")
    for column in ("step", "held", "seconds", "what was seen"):
        rows.add_column(column, justify="right" if column == "seconds" else "left")
    for step in steps:
        rows.add_row(step.title, "yes" if step.held else "NO", f"{step.seconds:.1f}", step.detail)
    return rows


class Demo:
    """The steps, and what they share. Each returns what it saw or raises StepFailed."""

    def __init__(self, console: Console, fleet: DemoFleet, manifest: dict[str, Any], steps: list[Step]) -> None:
        self.console = console
        self.fleet = fleet
        self.manifest = manifest
        self.name = manifest["metadata"]["name"]
        self.steps = steps

    async def play(self) -> None:
        """The whole story. Raises StepFailed at the first step that does not hold."""
        async with (
            KubeClient(load(self.fleet.kubeconfig)) as self.kube,
            OpenAIClient(f"{self.fleet.gateway}/v1") as self.gateway,
        ):
            await self.step("Apply the LLMDeployment", self.apply)
            await self.step("Wait until it is Ready", partial(self.ready, 1))
            await self.step("Ask the dinghy", self.ask)
            await self.step(f"{NUM_REQUESTS} requests at once", self.load)
            await self.step("Scale to two by /scale", self.scale)
            await self.step("Both replicas answer", self.both_answer)
            await self.step("Delete the LLMDeployment", self.delete)

    async def step(self, title: str, action: Callable[[], Awaitable[str]]) -> None:
        self.console.rule(title, align="left")
        started = time.monotonic()
        try:
            detail, failure = await action(), None
        except (StepFailed, KubeError, ApiError) as error:
            detail, failure = str(error), error
        self.steps.append(Step(title, detail, failure is None, time.monotonic() - started))
        if failure is not None:
            raise StepFailed(f"{title}: {detail}") from failure
        self.console.print(detail, markup=False)

    async def apply(self) -> str:
        manifest = {**self.manifest, "metadata": {**self.manifest["metadata"], "namespace": NAMESPACE}}
        await server_side_apply(self.kube, LLMDEPLOYMENTS, manifest, "fairlead-demo")
        return f"llmdeployment/{self.name}: the same object that `kubectl apply -f` would make"

    async def ready(self, num_replicas: int) -> str:
        """Waits for so many ready replicas, and says what it waits for whenever that changes."""
        said = None
        started = time.monotonic()
        while True:
            status = (await self.kube.get(LLMDEPLOYMENTS, self.name, NAMESPACE)).get("status", {})
            conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
            ready = conditions.get("Ready", {"status": "Unknown", "message": "waiting for the operator to see it"})
            if ready["status"] == "True" and status.get("readyReplicas") == num_replicas:
                return str(ready["message"])
            if ready["message"] != said:
                said = ready["message"]
                self.console.print(f"  waiting: {said}", markup=False)
            if time.monotonic() - started > PATIENCE_SECONDS:
                raise StepFailed(f"not ready after {PATIENCE_SECONDS:.0f} s: {said}")
            await asyncio.sleep(0.1)

    async def ask(self) -> str:
        answer = await self.gateway.chat(self.name, ASKING, temperature=0, max_tokens=32)
        ttft = (answer.ttft_seconds or 0.0) * 1000
        seen = f"{QUESTION} → {answer.text.strip()}   (TTFT {ttft:.0f} ms, replica {answer.replica})"
        if answer.text.strip() != ANSWER:
            raise StepFailed(f"{seen}; it should be {ANSWER}")
        return seen

    async def load(self) -> str:
        report = await self.send(NUM_REQUESTS, concurrency=NUM_REQUESTS)
        return (
            f"{len(report.completions)} answered, TTFT p50 {report.ttft_percentile(50) * 1000:.0f} ms, "
            f"p90 {report.ttft_percentile(90) * 1000:.0f} ms, {report.output_tokens_per_second:.0f} tokens/s"
        )

    async def scale(self) -> str:
        path = f"{LLMDEPLOYMENTS.path(NAMESPACE, self.name)}/scale"
        await self.kube.request(
            "PATCH", path, body={"spec": {"replicas": 2}}, content_type="application/merge-patch+json"
        )
        return await self.ready(2)

    async def both_answer(self) -> str:
        """Sends rounds of requests until both have answered; a replica joins the gateway a moment after it is ready."""
        started = time.monotonic()
        while time.monotonic() - started < PATIENCE_SECONDS:
            answers = (await self.send(NUM_REQUESTS, concurrency=8)).by_replica
            if len(answers) == 2:
                return ", ".join(f"{replica}: {number}" for replica, number in sorted(answers.items()))
        raise StepFailed(f"only {', '.join(answers)} answered")

    async def delete(self) -> str:
        await self.kube.delete(LLMDEPLOYMENTS, self.name, NAMESPACE)
        started = time.monotonic()
        selector = f"{LABEL_LLMDEPLOYMENT}={self.name}"
        while left := [
            item["metadata"]["name"]
            for resource in (DEPLOYMENTS, PODS)
            for item in (await self.kube.list(resource, NAMESPACE, label_selector=selector))["items"]
        ]:
            if time.monotonic() - started > PATIENCE_SECONDS:
                raise StepFailed(f"still there: {', '.join(left)}")
            await asyncio.sleep(0.1)
        return "its Deployment, pods, ConfigMap and Service went with it"

    async def send(self, number: int, *, concurrency: int) -> LoadReport:
        """So many chats, all of which must be answered."""
        ask = partial(self.gateway.chat, self.name, ASKING, temperature=0, max_tokens=32)
        report = await closed_loop([ask] * number, concurrency=concurrency)
        if report.errors:
            raise StepFailed(f"{len(report.errors)} of {number} requests failed, the first: {report.errors[0]}")
        return report
