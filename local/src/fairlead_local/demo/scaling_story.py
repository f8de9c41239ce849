"""The part of the demo with the load: steps of ScalingStory, in the order of `Demo.play`.

1 → 2 or more → 1 → 0: each step changes the load and waits until the fleet has followed, and records observations.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from fairlead.api.llmdeployment import Autoscaling
from fairlead.api.names import SYSTEM_NAMESPACE
from fairlead.api.signals_message import ReplicaSignals
from fairlead.cli.fleet_view import ModelView, ReplicaStage
from fairlead.cli.report_table import short
from fairlead.cli.top import GATEWAY_SELECTOR, FleetWatch
from fairlead.client.load_generator import LoadGenerator, LoadSample
from fairlead.client.openai import OpenAIClient
from fairlead.client.report import percentile, report
from fairlead.client.workload import WorkloadKind, WorkloadShape, conversations
from fairlead.demand.buckets import Buckets
from fairlead.fleet.pods import control_url, ready_since
from fairlead.kube.client import KubeClient
from fairlead.kube.resources import PODS
from fairlead_local.demo.load_plan import ANSWER_TOKENS, AdjustableLoad, Crowd, Speed, few, many
from fairlead_local.demo.recorder import QUIET_SECONDS, FleetRecorder, Patience, shifted
from fairlead_local.demo.summary import RunFigures

HOLD_ROUNDS = 3
"""Answers per client under constant high load, after the added replicas have worked off the queue."""
GOVERN_SECONDS = 2.0
"""Interval at which the load is adjusted."""
SHAPE = WorkloadShape(num_prefixes=4, prefix_tokens=400, output_tokens=ANSWER_TOKENS, ignore_eos=True)
"""Long shared prefixes and long answers: decode holds slots and costs little else."""
CALIBRATION_ROUNDS = 3
"""Requests per slot from which the engine learns step costs before they are read."""
PATH_METRICS = "/metrics"
TTFT_ERROR = "fairlead_gateway_ttft_prediction_error_ratio"
_METRICS_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


class StepFailed(Exception):
    """A step did not hold; the text tells the observation."""


class ScalingStory:
    """`async with` it: the fleet is watched, and the load runs, until the end of the context."""

    def __init__(
        self,
        console: Console,
        kube: KubeClient,
        gateway: OpenAIClient,
        *,
        namespace: str,
        name: str,
        spec: Autoscaling,
    ) -> None:
        self._spec = spec
        self._kube = kube
        self._gateway = gateway
        self._key = f"{namespace}/{name}"
        self._name = name
        self._watch = FleetWatch(kube, namespace=namespace, name=name)
        self._recorder = FleetRecorder(self._watch.view, self._key, console)
        self._tasks: list[asyncio.Task[None]] = []
        self._prompt_tokens = self._uncached_tokens = 0.0
        """Of a request's prompt, as measured."""
        self._loads: list[ReplicaSignals] = []
        """Last loads of replicas with a known step cost."""
        self._fewest = 0
        """Lowest number of clients that the rule called too many. A replica that just started may underestimate its
        steps, and the rule then asks for more clients for a moment."""
        self._spare, self._round_ends = 0, 0
        """Clients beyond the rule, and the number of answers at which one more is added."""
        self._load: AdjustableLoad | None = None
        self._loading: asyncio.Task[None] | None = None
        self._load_began = 0.0
        self._steady = (0.0, 0.0)
        """Begin and end of the steady high load, in seconds since the load began."""
        self._ttft_errors = Buckets((), ())

    async def __aenter__(self) -> Self:
        self._start(self._watch.run())
        await self._watch.synced()
        self._start(self._recorder.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def samples(self) -> list[LoadSample]:
        """Every request of the load."""
        return self._load.samples if self._load is not None else []

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return asyncio.get_running_loop().time() - self._load_began

    def num_ready(self) -> int:
        """Replicas that are ready now."""
        model = self._recorder.model
        return model.num(ReplicaStage.READY) if model is not None else 0

    async def measure(self) -> str:
        """A little load of the same kind teaches the engine; then step costs, and clients for the high load."""
        model = await self._until(
            "a first word on the replica", lambda model: any(each.load for each in model.replicas)
        )
        slots = next(each.load.max_num_seqs for each in model.replicas if each.load is not None)
        taste = LoadGenerator(self._gateway, self._name, max_requests=CALIBRATION_ROUNDS * slots)
        await taste.closed_loop(conversations(WorkloadKind.SHARED_PREFIX, SHAPE), concurrency=slots)
        seen = report(taste.samples, taste.seconds)
        if seen.errors:
            raise StepFailed(f"requests failed already now: {seen.errors}")
        answers = [sample.completion for sample in taste.samples]
        self._prompt_tokens = sum(answer.num_prompt_tokens for answer in answers) / len(answers)
        self._uncached_tokens = percentile([each.num_prompt_tokens - each.num_cached_tokens for each in answers], 50)
        await self._until("the engine's word on what a step costs", lambda model: bool(_learnt(model)))
        speed = self._speed()
        return f"{speed}: {many(speed, self._spec).clients} clients at a time are too many here"

    async def up(self) -> str:
        """More clients than one replica has slots for, until there are more replicas."""
        crowd = many(self._speed(), self._spec)
        self._fewest, self._round_ends = crowd.clients, crowd.clients
        self._load = load = AdjustableLoad(self._gateway, self._name, crowd)
        self._load_began = asyncio.get_running_loop().time()
        self._loading = self._start(load.run(conversations(WorkloadKind.SHARED_PREFIX, SHAPE, seed=1)))
        governing = self._start(self._govern(load, self._still_many))
        model = await self._until("a second replica to be ready", lambda model: model.num(ReplicaStage.READY) >= 2)
        governing.cancel()
        return f"{model.num(ReplicaStage.READY)} replicas after {load.seconds:.0f} s; {model.sentence}"

    async def hold(self) -> str:
        """The same load for a while, on more replicas."""
        load = self._load
        assert load is not None
        clients = self._fewest
        load.crowd = replace(load.crowd, clients=clients)
        await self._until(
            "only those to wait for whom there is no slot",
            lambda model: (
                model.waiting is not None
                and model.waiting <= max(0, clients - sum(load.max_num_seqs for load in _learnt(model)))
            ),
        )
        before, began, enough = await self._read_ttft_errors(), load.seconds, load.num_answered + HOLD_ROUNDS * clients
        await self._until(f"{enough} answers", lambda _: load.num_answered >= enough)
        self._ttft_errors = (await self._read_ttft_errors()).since(before)
        self._steady = began, load.seconds
        figures = self.figures()
        assert figures is not None
        ttft = figures.steady.ttft
        if ttft is None:
            raise StepFailed("no request that began meanwhile had a first token")
        rate = HOLD_ROUNDS * clients / (load.seconds - began)
        seen = f"TTFT p50 {short(ttft.p50)}, p90 {short(ttft.p90)}"
        return f"{clients} clients, {rate:.1f} answers/s for {load.seconds - began:.0f} s: {seen}"

    async def down(self) -> str:
        """Few requests, until one replica is left."""
        load = self._load
        assert load is not None
        load.crowd = few(self._speed(), self._spec)
        governing = self._start(self._govern(load, lambda _: few(self._speed(), self._spec)))
        model = await self._until("one replica to be left", lambda model: _is_exactly(model, 1))
        governing.cancel()
        return model.sentence

    async def all_answered(self) -> str:
        """Ends the load and checks every request."""
        assert self._load is not None and self._loading is not None
        self._load.stop()
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
        """Figures of the load so far; None before the load began."""
        if self._load is None:
            return None
        began, ended = self._steady
        steady = [sample for sample in self.samples if began <= sample.due < ended]
        moments = shifted(self._recorder.moments, self._load_began)
        whole = report(self.samples, self._load.seconds)
        return RunFigures(whole, report(steady, ended - began), self._ttft_errors, moments)

    async def _govern(self, load: AdjustableLoad, rule: Callable[[Crowd], Crowd]) -> None:
        """Adjusts the load to the present speed of the engines."""
        while True:
            await asyncio.sleep(GOVERN_SECONDS)
            load.crowd = rule(load.crowd)

    def _still_many(self, crowd: Crowd) -> Crowd:
        """The crowd that the rule asks for now, plus one client for each round of answers without effect."""
        assert self._load is not None
        asked = many(self._speed(), self._spec)
        self._fewest = min(self._fewest, asked.clients)
        if self._load.num_answered >= self._round_ends:
            self._spare, self._round_ends = self._spare + 1, self._load.num_answered + crowd.clients
        return replace(asked, clients=asked.clients + self._spare)

    def _speed(self) -> Speed:
        """Speed by the newest loads of ready replicas, or by earlier loads where no replica reports."""
        model = self._recorder.model
        self._loads = _learnt(model) if model is not None and _learnt(model) else self._loads
        return Speed(loads=self._loads, prompt_tokens=self._prompt_tokens, uncached_tokens=self._uncached_tokens)

    async def _read_ttft_errors(self) -> Buckets:
        pods = (await self._kube.list(PODS, SYSTEM_NAMESPACE, label_selector=GATEWAY_SELECTOR))["items"]
        urls = [control_url(pod, PATH_METRICS) for pod in pods if ready_since(pod)]
        try:
            return await read_ttft_errors(urls, self._key)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StepFailed(f"the gateways' metrics cannot be read: {error}") from error

    async def _until(self, what: str, holds: Callable[[ModelView], bool]) -> ModelView:
        """Looks until `holds`. Raises StepFailed when nothing moves any more."""
        clock = asyncio.get_running_loop().time
        patience = Patience(clock())
        while True:
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()  # raises what ended it: nothing would be seen any more
            model = self._recorder.model
            if model is not None and holds(model):
                return model
            num_answered = self._load.num_answered if self._load is not None else 0
            moving: Hashable = None
            if model is not None:
                moving = model.desired, model.progress, tuple((each.name, each.stage) for each in model.replicas)
            if patience.is_over(clock(), moving, num_answered):
                sentence = model.sentence if model is not None else "there is no such LLMDeployment"
                raise StepFailed(f"waited for {what}, and nothing moved for {QUIET_SECONDS:.0f} s: {sentence}")
            await asyncio.sleep(0.1)

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task


def _is_exactly(model: ModelView, number: int) -> bool:
    """Whether exactly `number` replicas are ready, and no pod is starting or draining."""
    return model.num(ReplicaStage.READY) == number and len(model.replicas) == number


def _learnt(model: ModelView) -> list[ReplicaSignals]:
    """Newest loads of ready replicas with a known step cost."""
    loads = (replica.load for replica in model.replicas if replica.stage is ReplicaStage.READY)
    return [load for load in loads if load is not None and load.step_cost.is_known]


async def read_ttft_errors(urls: list[str], model: str) -> Buckets:
    """Prediction errors of times to first token of `namespace/name` in all gateways together. Gateways measure from
    arrival, without the network, which clients include. `urls`: of metrics of gateways. Raises ClientError or
    TimeoutError."""
    found = Buckets((), ())
    async with aiohttp.ClientSession(timeout=_METRICS_TIMEOUT) as session:
        for url in urls:
            async with session.get(url) as response:
                response.raise_for_status()
                found = found.plus(ttft_errors(await response.text(), model))
    return found


def ttft_errors(text: str, model: str) -> Buckets:
    """Relative errors |predicted - actual| / actual since the start of the gateway; empty without predictions."""
    cumulative = {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        if family.name == TTFT_ERROR
        for sample in family.samples
        if sample.name.endswith("_bucket") and sample.labels.get("model") == model
    }
    bounds = sorted(cumulative)
    below = [0.0, *(cumulative[bound] for bound in bounds)]
    counts = [int(now - before) for before, now in pairwise(below)]
    return Buckets(tuple(bound for bound in bounds if bound != math.inf), tuple(counts))
