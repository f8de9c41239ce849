"""The part of the demo with the load: ScalingStory's steps, in the order in which `Demo.play` takes them.

1 → 2 or more → 1 → 0: each step changes the load and waits until the fleet has followed. What is seen meanwhile is
recorded for the table and the plot.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import aiohttp
from rich.console import Console

from fairlead.api.names import SYSTEM_NAMESPACE
from fairlead.autoscaler.buckets import Buckets
from fairlead.cli.fleet_state import ModelView, Stage
from fairlead.cli.report_table import short
from fairlead.cli.top import GATEWAY_SELECTOR, FleetWatch
from fairlead.client.load_generator import LoadGenerator, Sample
from fairlead.client.openai import OpenAIClient
from fairlead.client.report import percentile, report
from fairlead.client.workload import Kind, Shape, conversations
from fairlead.fleet.pods import control_url, ready_since
from fairlead.kube.client import KubeClient
from fairlead.kube.resources import PODS
from fairlead_local.demo.load_plan import AdjustableLoad, LoadPlan, correction, plan_load
from fairlead_local.demo.prediction_metrics import PATH_METRICS, read_ttft_errors
from fairlead_local.demo.recorder import Recorder, shifted
from fairlead_local.demo.summary import RunFigures
from fairlead_protocol.messages import StepCost

PATIENCE_SECONDS = 180.0
"""How long a step may wait before it has failed."""
HOLD_SECONDS = 20.0
"""How long the high load stays as it is once the replicas that were added have worked off what waited."""
GOVERN_SECONDS = 2.0
"""How often it is looked whether the high load is what it should be."""
SHAPE = Shape(num_prefixes=4, prefix_tokens=400, output_tokens=256, ignore_eos=True)
"""Long shared prefixes and long answers: decode holds slots and costs little else."""
CALIBRATION_ROUNDS = 3
"""Requests per slot that the engine learns its step costs from before they are read."""


class StepFailed(Exception):
    """A step did not hold; the text says what was seen instead."""


class ScalingStory:
    """`async with` it: the fleet is watched, and the load runs, until the end of the context."""

    def __init__(self, console: Console, kube: KubeClient, gateway: OpenAIClient, *, namespace: str, name: str) -> None:
        self._kube = kube
        self._gateway = gateway
        self._key = f"{namespace}/{name}"
        self._name = name
        self._watch = FleetWatch(kube, namespace=namespace, name=name)
        self._recorder = Recorder(self._watch.view, self._key, console)
        self._tasks: list[asyncio.Task[None]] = []
        self._plan: LoadPlan | None = None
        self._load: AdjustableLoad | None = None
        self._loading: asyncio.Task[None] | None = None
        self._load_began = 0.0
        self._steady = (0.0, 0.0)
        """From when until when the high load was steady, in seconds since the load began."""
        self._ttft_errors = Buckets((), ())

    async def __aenter__(self) -> Self:
        self._start(self._watch.run())
        await self._watch.synced()
        self._start(self._recorder.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def samples(self) -> list[Sample]:
        """Every request of the load."""
        return self._load.samples if self._load is not None else []

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return asyncio.get_running_loop().time() - self._load_began

    def num_ready(self) -> int:
        """Replicas that are ready now."""
        return self._count(Stage.READY)

    async def measure(self) -> str:
        """A little load of the same kind, from which the engine learns; then its step costs, and what follows."""
        slots = (
            (await self._until("a first word on the replica", lambda model: any(each.load for each in model.replicas)))
            .replicas[0]
            .load
        )
        assert slots is not None
        taste = LoadGenerator(self._gateway, self._name, max_requests=CALIBRATION_ROUNDS * slots.max_num_seqs)
        await taste.closed_loop(conversations(Kind.SHARED_PREFIX, SHAPE), concurrency=slots.max_num_seqs)
        seen = report(taste.samples, taste.seconds)
        if seen.errors:
            raise StepFailed(f"requests failed already now: {seen.errors}")
        prompts = [sample.completion for sample in taste.samples]
        prompt = sum(answer.num_prompt_tokens for answer in prompts) / len(prompts)
        uncached = percentile([answer.num_prompt_tokens - answer.num_cached_tokens for answer in prompts], 50)
        cost = await self._step_cost()
        self._plan = plan_load(
            cost,
            num_slots=slots.max_num_seqs,
            prompt_tokens=prompt,
            uncached_tokens=uncached,
            output_tokens=SHAPE.output_tokens,
        )
        return str(self._plan)

    async def up(self) -> str:
        """Load above what one replica's slots take, until there are more replicas."""
        assert self._plan is not None
        generator = LoadGenerator(self._gateway, self._name)
        self._load = AdjustableLoad(generator, conversations(Kind.SHARED_PREFIX, SHAPE, seed=1), self._plan.high_rate)
        self._load_began = asyncio.get_running_loop().time()
        self._loading = self._start(self._load.run())
        self._governing = self._start(self._govern(self._load, self._plan.capacity))
        model = await self._until("a second replica to be ready", lambda model: model.num(Stage.READY) >= 2)
        return f"{model.num(Stage.READY)} replicas after {self._load.seconds:.0f} s; {model.sentence}"

    async def hold(self) -> str:
        """The same load for a while: what more replicas make of it."""
        assert self._load is not None
        await self._until("nothing to wait any more", lambda model: not model.waiting)
        self._governing.cancel()
        before, began = await self._read_ttft_errors(), self._load.seconds
        await asyncio.sleep(HOLD_SECONDS)
        self._ttft_errors = (await self._read_ttft_errors()).since(before)
        self._steady = began, self._load.seconds
        figures = self.figures()
        assert figures is not None
        ttft = figures.steady.ttft
        if ttft is None:
            raise StepFailed(f"no request ended within {HOLD_SECONDS:.0f} s")
        seen = f"TTFT p50 {short(ttft.p50)}, p90 {short(ttft.p90)}"
        return f"{self._load.rate:.1f} requests/s for {HOLD_SECONDS:.0f} s: {seen}"

    async def down(self) -> str:
        """Few requests, until one replica is left."""
        assert self._load is not None and self._plan is not None
        self._load.rate = self._plan.low_rate
        model = await self._until("one replica to be left", lambda model: _is_exactly(model, 1))
        return model.sentence

    async def all_answered(self) -> str:
        """Ends the load and looks at every request of it."""
        assert self._load is not None and self._loading is not None
        self._load.end()
        await self._loading
        seen = report(self._load.samples, self._load.seconds)
        if seen.num_completed != seen.num_requests:
            first = next((str(sample.error) for sample in self._load.samples if sample.error is not None), "")
            number = seen.num_requests - seen.num_completed
            raise StepFailed(f"{number} of {seen.num_requests} were not; the first: {first}")
        return f"{seen.num_requests}, while replicas came and went"

    async def to_zero(self) -> str:
        """Nothing at all, until no replica is left."""
        return (await self._until("no replica to be left", lambda model: _is_exactly(model, 0))).sentence

    def figures(self) -> RunFigures | None:
        """What came of the load so far; None where it did not begin."""
        if self._load is None:
            return None
        began, ended = self._steady
        steady = [sample for sample in self.samples if began <= sample.due < ended]
        moments = shifted(self._recorder.moments, self._load_began)
        whole = report(self.samples, self._load.seconds)
        return RunFigures(whole, report(steady, ended - began), self._ttft_errors, moments)

    async def _govern(self, load: AdjustableLoad, capacity: float) -> None:
        waiting, num_ready = list[int](), 0
        while True:
            await asyncio.sleep(GOVERN_SECONDS)
            model = self._recorder.model
            if model is not None and model.waiting is not None:
                if num_ready != (num_ready := model.num(Stage.READY)):
                    waiting.clear()
                waiting.append(model.waiting)
                factor = correction(waiting, num_replicas=num_ready, capacity=capacity)
                load.rate *= factor
                if factor != 1.0:
                    waiting.clear()  # what comes of the new rate is to be seen first

    async def _step_cost(self) -> StepCost:
        """As the engine has learnt it by now: a load line comes every second where there is nothing to do."""
        await asyncio.sleep(1.5)
        model = self._recorder.model
        for replica in model.replicas if model is not None else ():
            if replica.load is not None and replica.load.step_cost.is_known:
                return replica.load.step_cost
        raise StepFailed("the gateways' signals do not say what a step costs")

    async def _read_ttft_errors(self) -> Buckets:
        pods = (await self._kube.list(PODS, SYSTEM_NAMESPACE, label_selector=GATEWAY_SELECTOR))["items"]
        urls = [control_url(pod, PATH_METRICS) for pod in pods if ready_since(pod)]
        try:
            return await read_ttft_errors(urls, self._key)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StepFailed(f"the gateways' metrics cannot be read: {error}") from error

    async def _until(self, what: str, holds: Callable[[ModelView], bool]) -> ModelView:
        """Looks until it is so. Raises StepFailed when that takes too long."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + PATIENCE_SECONDS
        while True:
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()  # raises what ended it: nothing would be seen any more
            model = self._recorder.model
            if model is not None and holds(model):
                return model
            if clock() > deadline:
                sentence = model.sentence if model is not None else "there is no such LLMDeployment"
                raise StepFailed(f"waited {PATIENCE_SECONDS:.0f} s for {what}: {sentence}")
            await asyncio.sleep(0.1)

    def _count(self, stage: Stage) -> int:
        model = self._recorder.model
        return model.num(stage) if model is not None else 0

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task


def _is_exactly(model: ModelView, number: int) -> bool:
    """Whether so many replicas are ready, and no other pod is coming or going."""
    return model.num(Stage.READY) == number and len(model.replicas) == number
