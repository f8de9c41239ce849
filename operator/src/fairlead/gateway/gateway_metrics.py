"""The gateway's metrics, `fairlead_gateway_…`. Labels are bounded: `model` is an LLMDeployment's `namespace/name`, or
empty; `client` is the name that an API key belongs to.

Counters and histograms are kept as requests go on and end; gauges are read from the pools when somebody scrapes, so
that they cost the data path nothing and vanish with what they describe.
"""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.observation import Observation, Observer
from fairlead.gateway.prompts.reader import PromptReader
from fairlead.routing.datastore import Datastore
from fairlead.routing.replica_state import is_hanging
from fairlead_protocol.http.connections import CutReason

_SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_RATIOS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0)
_TOKENS = (0.0, 1.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics(Observer, Collector):
    """One registry per gateway, so that several can live in one process."""

    def __init__(self, pools: Pools, datastore: Datastore, reader: PromptReader) -> None:
        self.registry = CollectorRegistry()
        self._pools = pools
        self._datastore = datastore
        self._reader = reader
        self.requests = self._counter(
            "requests_total",
            "Requests that ended, by outcome and the HTTP status the client got (0: it went away before it got one)",
            "model",
            "outcome",
            "status",
        )
        self.ttft = self._histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to its first token, or to its vectors; not of text that is not streamed",
        )
        self.duration = self._histogram("request_duration_seconds", "From a request's arrival to its end")
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "Time a request waited in the gateway for a replica, also in vain"
        )
        self.predicted_ttft = self._histogram(
            "predicted_time_to_first_token_seconds",
            "From a request's arrival to its first token, the wait for a replica included, as foreseen on arrival; of "
            "streams and vectors that got one",
        )
        self.ttft_error = self._histogram(
            "ttft_prediction_error_ratio",
            "How far the time from arrival to first token that was foreseen on arrival was off, as a part of the "
            "actual; of streams and vectors",
            buckets=_RATIOS,
        )
        self.cached_tokens_error = self._histogram(
            "cached_tokens_prediction_error_tokens",
            "How far the predicted number of prompt tokens in the replica's cache was off, in either direction",
            buckets=_TOKENS,
        )
        self.decisions = self._counter(
            "decisions_total", "Attempts that were routed to a replica, by the policy that chose it", "model", "policy"
        )
        self.tokens = self._counter(
            "tokens_total",
            "Tokens of requests as engines counted them; kind is prompt, cached (of those), predicted_cached (those as "
            "foreseen) or completion. Of streams that broke or whose client left: the prompt as the gateway counts it, "
            "and the events with tokens that had passed",
            "model",
            "kind",
        )
        self.tokenizing = self._histogram(
            "tokenizing_seconds", "Time to tokenise a request's prompts in the gateway", buckets=_SHORT_SECONDS
        )
        self.tokenized = self._counter(
            "tokenized_tokens_total",
            "Prompt tokens of dispatched requests; source is text_cache (their text was seen before) or tokenizer",
            "model",
            "source",
        )
        self.injections = self._counter(
            "injections_total",
            "Results of tools for answers under way, by the HTTP status that their sender got (0: it went away first)",
            "status",
        )
        self.failed_attempts = self._counter(
            "failed_attempts_total",
            "Attempts that a replica did not serve, by what was wrong; engine_full is a refusal, not a fault",
            "model",
            "failure",
        )
        self.ready = Gauge(
            "fairlead_gateway_ready",
            "1 while clients should be sent to this gateway; 0 before it knows the models, and while it drains",
            registry=self.registry,
        )
        self.client_requests = self._counter(
            "client_requests_total",
            "Requests that ended, by the client whose API key came with them; nothing where no keys are asked for",
            "client",
            "outcome",
        )
        self.client_tokens = self._counter(
            "client_tokens_total",
            "Tokens of those requests, counted as in tokens_total; kind is prompt or completion",
            "client",
            "kind",
        )
        self.keys_current = Gauge(
            "fairlead_gateway_api_keys_current",
            "1 while the API keys that are checked are those configured; 0: these cannot be read, and older ones hold",
            registry=self.registry,
        )
        self.connections = Gauge(
            "fairlead_gateway_open_connections",
            "Connections that are open, idle ones included; port is clients or control (metrics, signals and probes)",
            ["port"],
            registry=self.registry,
        )
        self._connections_cut = self._counter(
            "connections_cut_total", "Connections that were ended without an answer, by reason", "reason"
        )
        for reason in CutReason:
            self._connections_cut.labels(reason)
        self.registry.register(self)
        ProcessCollector(namespace="fairlead_gateway", registry=self.registry)

    def cut(self, reason: CutReason) -> None:
        """A connection was ended without an answer."""
        self._connections_cut.labels(reason).inc()

    def dispatched(self, seen: Observation) -> None:
        """Counts a decision; of the first attempt also what went before it."""
        model = seen.model
        self.decisions.labels(model, seen.policy).inc()
        if seen.num_attempts == 1:
            self.tokenizing.labels(model).observe(seen.tokenizing_seconds)
            from_text_cache = seen.num_tokens_from_text_cache
            self.tokenized.labels(model, "text_cache").inc(from_text_cache)
            self.tokenized.labels(model, "tokenizer").inc(max(0, seen.num_prompt_tokens - from_text_cache))

    def first_token(self, seen: Observation) -> None:
        """Counts a first token when it comes, however long the stream goes on, and how well it was foreseen."""
        if seen.ttft_seconds is None or not seen.shows_ttft:
            return
        self.ttft.labels(seen.model).observe(seen.ttft_seconds)
        if (predicted := seen.predicted_ttft_seconds) is not None:
            self.predicted_ttft.labels(seen.model).observe(predicted)
        if (error := seen.ttft_error_ratio) is not None:
            self.ttft_error.labels(seen.model).observe(error)

    def ended(self, seen: Observation) -> None:
        """Counts a request that is over."""
        model = seen.model
        self.requests.labels(model, str(seen.outcome), str(seen.status)).inc()
        self.duration.labels(model).observe(seen.duration_seconds)
        if seen.num_attempts or seen.queue_seconds:  # who waited in vain waited longest
            self.queue_wait.labels(model).observe(seen.queue_seconds)
        if seen.client is not None:
            self.client_requests.labels(seen.client, str(seen.outcome)).inc()
        if (usage := seen.usage or seen.partial_usage) is None:
            return
        counts = {"prompt": usage.prompt_tokens, "completion": usage.completion_tokens or 0}
        for kind, number in counts.items():
            self.tokens.labels(model, kind).inc(number)
            if seen.client is not None:
                self.client_tokens.labels(seen.client, kind).inc(number)
        if seen.usage is None:
            return
        self.tokens.labels(model, "cached").inc(usage.cached_tokens)
        if seen.decision is not None and (error := seen.cached_tokens_error) is not None:
            self.tokens.labels(model, "predicted_cached").inc(seen.decision.cached_tokens or 0)
            self.cached_tokens_error.labels(model).observe(error)

    def injected(self, status: int) -> None:
        """Counts what was to be put into an answer."""
        self.injections.labels(str(status)).inc()

    def attempt_failed(self, seen: Observation, failure: str) -> None:
        """Counts an attempt that a replica did not serve."""
        self.failed_attempts.labels(seen.model, failure).inc()

    def collect(self) -> Iterable[Metric]:
        """What pools, datastore and reader are at the moment of a scrape."""
        waiting = _gauge("queue_requests", "Requests that wait in the gateway for a replica", _SELECTABLE)
        waiting_bytes = _gauge("queue_bytes", "Bytes of the bodies of those requests", ["model"])
        oldest = _gauge("queue_oldest_wait_seconds", "How long the first in line has waited", ["model"])
        ready = _gauge("ready_replicas", "Replicas that may be sent requests", ["model"])
        stale = _gauge("stale_replicas", "Replicas among them whose load is unknown, or too old to go by", ["model"])
        hanging = _gauge(
            "hanging_replicas", "Replicas among them whose step takes so long that it will hardly end", ["model"]
        )
        followed = _gauge("kv_index_replicas", "Replicas whose KV-cache blocks are known", ["model"])
        approximated = _gauge(
            "approximated_replicas",
            "1 for each replica that told of more KV-cache blocks than it may have: its stream is not followed any "
            "more, and what it holds is approximated until it restarts",
            ["model", "replica"],
        )
        untokenized = _gauge(
            "untokenized_models",
            "1 for each model whose prompts its engines tokenise, since its tokenizer or chat template takes more than "
            "it may in a gateway, or cannot be used there: what its replicas' caches hold of a prompt is not known",
            ["model"],
        )
        sent = [*_SELECTABLE, "replica"]
        in_flight = _gauge("in_flight_requests", "Requests sent to a replica and not finished", sent)
        blocks = _gauge("kv_index_blocks", "Different KV-cache blocks that some replica is known to hold", [])
        index = self._datastore.index
        blocks.add_metric([], len(index))
        for pool in self._pools:
            label, queue, now = pool.model.key, pool.queue, pool.now()
            replicas = pool.router.replicas
            selectable = [label, pool.model.namespace, pool.model.name]
            waiting.add_metric(selectable, len(queue))
            waiting_bytes.add_metric([label], queue.num_bytes)
            oldest.add_metric([label], queue.oldest_wait_seconds(now))
            ready.add_metric([label], pool.num_ready)
            loads = [self._datastore.load(replica.uid, now) for replica in replicas]
            stale.add_metric([label], sum(load is None for load in loads))
            hanging.add_metric([label], sum(load is not None and is_hanging(load) for load in loads))
            doubted = {each.uid for each in replicas if self._datastore.approximates(each.uid)}
            known = (each.uid for each in replicas if index.seq(each.uid) is not None)
            followed.add_metric([label], len(set(known) - doubted))
            if pool.tokenizer_problem is not None:
                untokenized.add_metric([label], 1)
            for replica in replicas:
                if replica.uid in doubted:
                    approximated.add_metric([label, replica.name], 1)
                in_flight.add_metric([*selectable, replica.name], pool.router.in_flight.count(replica.uid))
        left = CounterMetricFamily(
            "fairlead_gateway_untokenized_requests",
            "Requests left to their engines to tokenise: too long, too many at once, or of an untokenized model",
            value=self._reader.num_left,
        )
        of_models = [waiting, waiting_bytes, oldest, ready, stale, hanging, followed, approximated, untokenized]
        return [*of_models, in_flight, blocks, left]

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fairlead_gateway_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        return Histogram(f"fairlead_gateway_{name}", text, ["model"], buckets=buckets, registry=self.registry)


_SELECTABLE = ["model", "llmdeployment_namespace", "llmdeployment"]
"""Labels of what HPA and KEDA scale by. An HPA cannot select `model`: Kubernetes' label values have no slash."""


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fairlead_gateway_{name}", text, labels=labels)
