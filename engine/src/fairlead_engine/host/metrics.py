"""`/metrics`: figures of this engine, under our names and, for figures that vLLM has, too, under vLLM's names.

A scrape reads figures of the core from the newest load; figures of requests are observed here, and added to the
observations of the engine's other HTTP processes. Every metric of `SHARED` exists as `fairlead_engine_NAME` and as
`vllm:NAME` with the same samples.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fairlead_common.http.connections import CutReason
from fairlead_engine.core.client import EngineClient
from fairlead_engine.host.engine_stream import EngineStream
from fairlead_engine.host.peer_link import MetricSample
from fairlead_engine.host.refusals import Outcome
from fairlead_engine.types import EngineInfo, EngineLoad, FinishReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OURS = "fairlead_engine_"
VLLM = "vllm:"

SHARED: dict[str, str] = {
    "num_requests_waiting": "Requests in the engine that have not begun to run.",
    "num_requests_running": "Requests that the engine is computing.",
    "kv_cache_usage_perc": "Share of KV-cache blocks in use by running requests, from 0 to 1.",
    "prompt_tokens": "Prompt tokens prefilled, cached ones included.",
    "generation_tokens": "Tokens generated.",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "num_preemptions": "Times a running request was put back to make room for another.",
    "cache_config_info": "The KV cache's shape, in labels; the value is always 1.",
    "spec_decode_num_drafts": "Times that a sequence had drafts in a step.",
    "spec_decode_num_draft_tokens": "Tokens that were guessed.",
    "spec_decode_num_accepted_tokens": "Guessed tokens that stood.",
    "spec_decode_num_accepted_tokens_per_pos": "Guessed tokens that stood, by position in their draft.",
    "time_to_first_token_seconds": "From a request's arrival to its first token, or to its vector.",
    "inter_token_latency_seconds": "Between two tokens of a request.",
    "e2e_request_latency_seconds": "From a request's arrival to its end.",
    "request_queue_time_seconds": "From a request's arrival to the first step that computed some of it.",
    "request_success": "Sequences that ended, by the reason they ended for.",
}
"""Help texts of metrics under both prefixes."""

OWN: dict[str, str] = {
    "http_requests": "HTTP requests answered, by outcome.",
    "queued_prefill_tokens": "Prompt tokens of waiting and running requests that are still to be computed.",
    "kv_blocks_free": "KV-cache blocks that a new request could take.",
    "kv_blocks_saved": "KV-cache blocks copied to the host's memory when the device had no room for them.",
    "kv_blocks_loaded": "KV-cache blocks copied back from the host's memory.",
    "steps": "Steps the engine has run.",
    "constrained_tokens": "Tokens that were chosen under a grammar.",
    "mask_seconds": "Time it took to find the tokens that grammars allow.",
    "adapters": "Adapters that requests may ask for.",
    "adapters_on_device": "Adapters that have a place on the device.",
    "adapter_placements": "Times an adapter was brought to a place on the device.",
    "adapter_reads": "Times an adapter was read from its folder.",
    "adapter_read_seconds": "How long reading adapters took, until they could be placed.",
    "last_step_seconds": "How long the newest step took.",
    "step_age_seconds": "How long the running step has been running; 0 when idle.",
    "step_cost_seconds": "Coefficients of the step-cost model, by name.",
    "start_seconds": "What the core took to start, by stage: import, load, cache, compile, warm_up.",
    "connections_cut": "Connections that were ended without an answer, by reason.",
    "open_connections": "Connections that are open, idle ones included.",
    "draining": "1 while the engine drains, else 0.",
    "kv_followers": "Readers of the stream of block changes and loads.",
    "kv_followers_cut_off": "Readers of that stream that were too slow and were cut off.",
    "kv_events": "Changes of the reusable blocks that were told to the readers.",
    "kv_blocks_reusable": "Different KV-cache blocks that requests can share.",
    "failed_checks": "Times the idle engine found its books of KV blocks wrong and emptied its prefix cache: a bug.",
    "malformed_dispatches": "Requests whose x-fairlead-dispatch header could not be read and was ignored.",
}
"""Help texts of metrics under our prefix only."""

_LATENCIES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_TOKEN_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """The metrics of one served model, labelled `model_name`."""

    def __init__(self, model_name: str) -> None:
        self.elsewhere: Callable[[], Iterable[MetricSample]] = tuple
        """Observations of the other HTTP processes."""
        self._labels = {"model_name": model_name}
        self._registry = CollectorRegistry()
        """Metrics of requests and connections, to be added up over processes."""
        self._first_token = self._histogram("time_to_first_token_seconds", _LATENCIES)
        self._inter_token = _TokenHistogram("inter_token_latency_seconds", _TOKEN_LATENCIES, self._labels)
        self._registry.register(self._inter_token)
        self._e2e = self._histogram("e2e_request_latency_seconds", _LATENCIES)
        self._queue = self._histogram("request_queue_time_seconds", _LATENCIES)
        self._finished = self._counter("request_success", "finished_reason")
        self._http = self._counter("http_requests", "outcome")
        self._cut = self._counter("connections_cut", "reason")
        for reason in CutReason:
            self._cut.labels(**self._labels, reason=reason)
        self._connections = Gauge(
            OURS + "open_connections", OWN["open_connections"], ("model_name",), registry=self._registry
        )
        self.watch_connections(())
        self._engine = CollectorRegistry()
        """Metrics of the core and of the whole server."""
        self._draining = Gauge(OURS + "draining", OWN["draining"], ("model_name",), registry=self._engine)
        self.show_draining(False)
        self._published = CollectorRegistry()
        self._published.register(_WithAliases(self._engine.collect))
        self._published.register(_WithAliases(self._everywhere))

    def watch(self, client: EngineClient, stream: EngineStream, info: EngineInfo) -> None:
        """Adds the figures of a started core, and of its followers."""
        self._engine.register(_CoreFigures(client, stream, info, self._labels))

    def watch_connections(self, connections: Sized) -> None:
        """Sets the collection of open connections, counted at each scrape."""
        self._connections.labels(**self._labels).set_function(lambda: len(connections))

    def show_draining(self, is_draining: bool) -> None:
        self._draining.labels(**self._labels).set(float(is_draining))

    def queued(self, seconds: float) -> None:
        """Time from a sequence's arrival to the first step."""
        self._queue.observe(max(0.0, seconds))

    def first_token(self, seconds: float) -> None:
        """Time from a request's arrival to a sequence's first token."""
        self._first_token.observe(max(0.0, seconds))

    def tokens(self, num_tokens: int, seconds: float) -> None:
        """`num_tokens` tokens of a sequence came together, `seconds` after the previous token."""
        self._inter_token.observe(max(0.0, seconds) / num_tokens, num_tokens)

    def finished(self, reason: FinishReason, seconds: float) -> None:
        """`seconds`: from the request's arrival to a sequence's end."""
        self._finished.labels(**self._labels, finished_reason=reason).inc()
        self._e2e.observe(max(0.0, seconds))

    def answered(self, outcome: Outcome) -> None:
        self._http.labels(**self._labels, outcome=outcome).inc()

    def cut(self, reason: CutReason) -> None:
        self._cut.labels(**self._labels, reason=reason).inc()

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._published)

    def observed(self) -> list[MetricSample]:
        """This process's observations of requests and connections."""
        return [
            MetricSample(metric.name, sample.name, dict(sample.labels), sample.value, metric.type == "gauge")
            for metric in self._registry.collect()
            for sample in metric.samples
        ]

    def _everywhere(self) -> Iterator[Metric]:
        """Observations of all processes, added up."""
        others: dict[str, list[MetricSample]] = {}
        for sample in self.elsewhere():
            others.setdefault(sample.family, []).append(sample)
        for metric in self._registry.collect():
            _add(metric, others.get(metric.name, []))
            yield metric

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(OURS + name, SHARED[name], ("model_name",), buckets=buckets, registry=self._registry)
        return family.labels(**self._labels)

    def _counter(self, name: str, label: str) -> Counter:
        text = SHARED.get(name) or OWN[name]
        return Counter(OURS + name, text, ("model_name", label), registry=self._registry)


class _TokenHistogram(Collector):
    """A histogram for observations per token: prometheus-client's histogram takes three times as long as making the
    token's text. Belongs to one event loop."""

    def __init__(self, name: str, bounds: tuple[float, ...], labels: dict[str, str]) -> None:
        self._name = name
        self._bounds = bounds
        self._labels = labels
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(OURS + self._name, SHARED[self._name], labels=list(self._labels))
        buckets = zip([*map(floatToGoString, self._bounds), "+Inf"], accumulate(self._counts), strict=True)
        family.add_metric(list(self._labels.values()), [*buckets], self._sum)
        yield family


@dataclass(eq=False)
class _CoreFigures(Collector):
    """The core's newest load, and the followers, as metrics."""

    client: EngineClient
    stream: EngineStream
    info: EngineInfo
    labels: dict[str, str]

    def collect(self) -> Iterator[Metric]:
        load, info, gauge, counter = self.client.load, self.info, GaugeMetricFamily, CounterMetricFamily
        yield from (self._family(gauge, name, [((), value)]) for name, value in self._gauges(load).items())
        yield from (self._family(counter, name, [((), value)]) for name, value in self._counters(load).items())
        shape = [((str(info.block_size), str(info.num_kv_blocks)), 1.0)]
        yield self._family(gauge, "cache_config_info", shape, "block_size", "num_gpu_blocks")
        told = {**load.step_cost.seconds, "residual": load.step_cost.residual} if load.step_cost.is_known else {}
        yield self._family(gauge, "step_cost_seconds", [((term,), value) for term, value in told.items()], "term")
        stages = [((stage,), seconds) for stage, seconds in info.start_seconds.items()]
        yield self._family(gauge, "start_seconds", stages, "stage")
        accepted = [((str(position),), number) for position, number in enumerate(load.num_accepted_per_position)]
        yield self._family(counter, "spec_decode_num_accepted_tokens_per_pos", accepted, "position")

    def _gauges(self, load: EngineLoad) -> dict[str, float]:
        used = load.kv_blocks_total - load.kv_blocks_free
        return {
            "num_requests_waiting": load.waiting + load.held_back,
            "num_requests_running": load.running,
            "kv_cache_usage_perc": used / load.kv_blocks_total if load.kv_blocks_total else 0.0,
            "queued_prefill_tokens": load.queued_prefill_tokens,
            "kv_blocks_free": load.kv_blocks_free,
            "adapters": len(load.adapters),
            "adapters_on_device": load.num_adapters_on_device,
            "last_step_seconds": load.last_step_seconds,
            "step_age_seconds": self.client.step_age_seconds,
            "kv_followers": len(self.stream.followers),
            "kv_blocks_reusable": len(self.stream.mirror),
        }

    def _counters(self, load: EngineLoad) -> dict[str, float]:
        return {
            "prompt_tokens": load.prompt_tokens,
            "generation_tokens": load.generation_tokens,
            "prefix_cache_queries": load.prefix_query_tokens,
            "prefix_cache_hits": load.prefix_hit_tokens,
            "num_preemptions": load.num_preemptions,
            "spec_decode_num_drafts": load.num_drafts,
            "spec_decode_num_draft_tokens": load.num_draft_tokens,
            "spec_decode_num_accepted_tokens": sum(load.num_accepted_per_position),
            "kv_blocks_saved": load.num_blocks_saved,
            "kv_blocks_loaded": load.num_blocks_loaded,
            "steps": load.num_steps,
            "constrained_tokens": load.num_masks,
            "mask_seconds": load.mask_seconds,
            "adapter_placements": load.num_adapters_placed,
            "adapter_reads": load.num_adapters_read,
            "adapter_read_seconds": load.adapter_read_seconds,
            "failed_checks": load.num_failed_checks,
            "kv_events": self.stream.mirror.seq,
            "kv_followers_cut_off": self.stream.followers.num_cut_off,
            "malformed_dispatches": self.stream.dispatches.num_malformed,
        }

    def _family(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        values: Iterable[tuple[tuple[str, ...], float]],
        *more_labels: str,
    ) -> Metric:
        """`values`: each behind the values of `more_labels`."""
        family = kind(OURS + name, SHARED.get(name) or OWN[name], labels=[*self.labels, *more_labels])
        for labels, value in values:
            family.add_metric([*self.labels.values(), *labels], value)
        return family


def _add(metric: Metric, others: list[MetricSample]) -> None:
    """Adds samples of the same family to a metric's."""
    if not others:
        return
    values = {(each.name, frozenset(each.labels.items())): each.value for each in metric.samples}
    for other in others:
        key = (other.name, frozenset(other.labels.items()))
        values[key] = values.get(key, 0.0) + other.value
    metric.samples = []
    for (name, labels), value in values.items():
        metric.add_sample(name, dict(labels), value)


class _WithAliases(Collector):
    """Metrics, with both prefixes for `SHARED`; without prometheus-client's `_created` series."""

    def __init__(self, source: Callable[[], Iterable[Metric]]) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        for metric in self._source():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
            if (name := metric.name.removeprefix(OURS)) in SHARED:
                alias = Metric(VLLM + name, metric.documentation, metric.type)
                alias.samples = [each._replace(name=VLLM + each.name.removeprefix(OURS)) for each in metric.samples]
                yield alias
