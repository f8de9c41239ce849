"""The gateway's metrics, `fairlead_gateway_…`. Labels are bounded: `model` is an LLMDeployment's `namespace/name`, or
empty; `client` is the name of an API key's owner.

Counters and histograms are updated with requests; gauges are read from the pools at a scrape, so gauges cost the data
path nothing and vanish with their object.
"""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.observation import Observation, Observer
from fairlead.gateway.prompts.reader import PromptReader
from fairlead.routing.datastore import Datastore
from fairlead.routing.replica_state import is_hanging
from fairlead_common.http.connections import CutReason

_SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_RATIOS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0)
_TOKENS = (0.0, 1.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_SELECTABLE = ("model", "llmdeployment_namespace", "llmdeployment")
"""Labels of what HPA and KEDA scale by. An HPA cannot select `model`: Kubernetes' label values have no slash."""
_PREFIX = "fairlead_gateway_"
_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "requests_total": (
        "Requests that ended, by outcome and the HTTP status the client got (0: it went away before it got one)",
        ("model", "outcome", "status"),
    ),
    "decisions_total": ("Attempts that were routed to a replica, by the policy that chose it", ("model", "policy")),
    "session_decisions_total": (
        "Attempts of requests whose client names a session; replica is last (the one that served the session last), "
        "other, or new where no replica is known to have served it",
        ("model", "replica"),
    ),
    "tokens_total": (
        "Tokens of requests as engines counted them; kind is prompt, cached (of those), predicted_cached (those as "
        "foreseen) or completion. Of streams that broke or whose client left: the prompt as the gateway counts it, "
        "and the events with tokens that had passed",
        ("model", "kind"),
    ),
    "tokenized_tokens_total": (
        "Prompt tokens of dispatched requests; source is text_cache (their text was seen before) or tokenizer",
        ("model", "source"),
    ),
    "injections_total": (
        "Results of tools for answers under way, by the HTTP status that their sender got (0: it went away first)",
        ("status",),
    ),
    "failed_attempts_total": (
        "Attempts that a replica did not serve, by what was wrong; engine_full is a refusal, not a fault",
        ("model", "failure"),
    ),
    "client_requests_total": (
        "Requests that ended, by the client whose API key came with them; nothing where no keys are asked for",
        ("client", "outcome"),
    ),
    "client_tokens_total": (
        "Tokens of those requests, counted as in tokens_total; kind is prompt or completion",
        ("client", "kind"),
    ),
    "batches_total": ("Batches that ended at this gateway, by how", ("status",)),
    "batch_lines_total": (
        "Lines of batches; result is completed or failed (an answer was stored), or retried (a try without an answer)",
        ("result",),
    ),
    "connections_cut_total": ("Connections that were ended without an answer, by reason", ("reason",)),
}
"""Name without prefix → help, labels."""
_HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": (
        "From a request's arrival to its first token, or to its vectors; not of text that is not streamed",
        _SECONDS,
    ),
    "time_per_output_token_seconds": (
        "Mean time between two tokens of an answer; of streams of one sequence that ended well",
        _SHORT_SECONDS,
    ),
    "request_duration_seconds": ("From a request's arrival to its end", _SECONDS),
    "queue_wait_seconds": ("Time a request waited in the gateway for a replica, also in vain", _SECONDS),
    "predicted_time_to_first_token_seconds": (
        "From a request's arrival to its first token, the wait for a replica included, as foreseen on arrival; of "
        "streams and vectors that got one",
        _SECONDS,
    ),
    "ttft_prediction_error_ratio": (
        "How far the time from arrival to first token that was foreseen on arrival was off, as a part of the "
        "actual; of streams and vectors",
        _RATIOS,
    ),
    "cached_tokens_prediction_error_tokens": (
        "How far the predicted number of prompt tokens in the replica's cache was off, in either direction",
        _TOKENS,
    ),
    "tokenizing_seconds": ("Time to tokenise a request's prompts in the gateway", _SHORT_SECONDS),
}
"""Name without prefix → help, buckets. The label is `model`."""
_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ready": ("1 while clients should be sent to this gateway; 0 before it knows the models, and while it drains", ()),
    "api_keys_current": (
        "1 while the API keys that are checked are those configured; 0: these cannot be read, and older ones hold",
        (),
    ),
    "batches_running": ("Batches that this gateway runs", ()),
    "stored_files": ("Files of clients in the store that gateways share, as of the last ten minutes", ()),
    "stored_file_bytes": ("Bytes of those files", ()),
    "open_connections": (
        "Connections that are open, idle ones included; port is clients or control (metrics, signals and probes)",
        ("port",),
    ),
}
"""Name without prefix → help, labels."""
_OF_POOLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "queue_requests": (
        "Requests that wait in the gateway for a replica, without lines of batches unless scaleForBatches is set",
        _SELECTABLE,
    ),
    "queue_batch_lines": ("Lines of batches that wait in the gateway for spare capacity", ("model",)),
    "queue_bytes": ("Bytes of the bodies of those requests", ("model",)),
    "queue_oldest_wait_seconds": ("How long the first in line has waited", ("model",)),
    "ready_replicas": ("Replicas that may be sent requests", ("model",)),
    "stale_replicas": ("Replicas among them whose load is unknown, or too old to go by", ("model",)),
    "hanging_replicas": ("Replicas among them whose step takes so long that it will hardly end", ("model",)),
    "kv_index_replicas": ("Replicas whose KV-cache blocks are known", ("model",)),
    "approximated_replicas": (
        "1 for each replica that told of more KV-cache blocks than it may have: its stream is not followed any "
        "more, and what it holds is approximated until it restarts",
        ("model", "replica"),
    ),
    "untokenized_models": (
        "1 for each model whose prompts its engines tokenise, since its tokenizer or chat template takes more than "
        "it may in a gateway, or cannot be used there: what its replicas' caches hold of a prompt is not known",
        ("model",),
    ),
    "in_flight_requests": ("Requests sent to a replica and not finished", (*_SELECTABLE, "replica")),
    "kv_index_blocks": ("Different KV-cache blocks that some replica is known to hold", ()),
}
"""Gauges read at a scrape: name without prefix → help, labels."""


class GatewayMetrics(Observer, Collector):
    """A registry per gateway, so several gateways fit into a process."""

    def __init__(self, pools: Pools, datastore: Datastore, reader: PromptReader) -> None:
        self.registry = CollectorRegistry()
        self._pools = pools
        self._datastore = datastore
        self._reader = reader
        self._counters = {
            name: Counter(_PREFIX + name, text, labels, registry=self.registry)
            for name, (text, labels) in _COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(_PREFIX + name, text, ["model"], buckets=buckets, registry=self.registry)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self.gauges = {
            name: Gauge(_PREFIX + name, text, labels, registry=self.registry)
            for name, (text, labels) in _GAUGES.items()
        }
        for reason in CutReason:
            self._counters["connections_cut_total"].labels(reason)
        self.registry.register(self)
        ProcessCollector(namespace=_PREFIX.rstrip("_"), registry=self.registry)

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._counters[name].labels(*labels).inc(by)

    def _observe(self, name: str, model: str, value: float) -> None:
        self._histograms[name].labels(model).observe(value)

    def cut(self, reason: CutReason) -> None:
        """A connection was ended without an answer."""
        self._count("connections_cut_total", reason)

    def dispatched(self, seen: Observation) -> None:
        """Counts a decision; with the first attempt also tokenising."""
        model = seen.model
        self._count("decisions_total", model, seen.policy)
        if seen.decision is not None and seen.decision.session is not None:
            self._count("session_decisions_total", model, seen.decision.session)
        if seen.num_attempts == 1:
            self._observe("tokenizing_seconds", model, seen.tokenizing_seconds)
            known = seen.num_tokens_from_text_cache
            self._count("tokenized_tokens_total", model, "text_cache", by=known)
            self._count("tokenized_tokens_total", model, "tokenizer", by=max(0, seen.num_prompt_tokens - known))

    def first_token(self, seen: Observation) -> None:
        """Counts a first token at its arrival, and the prediction's error."""
        if seen.ttft_seconds is None or not seen.shows_ttft or seen.is_spare:
            return
        self._observe("time_to_first_token_seconds", seen.model, seen.ttft_seconds)
        if (predicted := seen.predicted_ttft_seconds) is not None:
            self._observe("predicted_time_to_first_token_seconds", seen.model, predicted)
        if (error := seen.ttft_error_ratio) is not None:
            self._observe("ttft_prediction_error_ratio", seen.model, error)

    def ended(self, seen: Observation) -> None:
        """Counts a request that is over."""
        model = seen.model
        self._count("requests_total", model, str(seen.outcome), str(seen.status))
        if not seen.is_spare:
            self._observe("request_duration_seconds", model, seen.duration_seconds)
            if seen.tpot_seconds is not None:
                self._observe("time_per_output_token_seconds", model, seen.tpot_seconds)
        if (seen.num_attempts or seen.queue_seconds) and not seen.is_spare:  # who waited in vain waited longest
            self._observe("queue_wait_seconds", model, seen.queue_seconds)
        if seen.client is not None:
            self._count("client_requests_total", seen.client, str(seen.outcome))
        if (usage := seen.usage or seen.partial_usage) is None:
            return
        counts = {"prompt": usage.prompt_tokens, "completion": usage.completion_tokens or 0}
        for kind, number in counts.items():
            self._count("tokens_total", model, kind, by=number)
            if seen.client is not None:
                self._count("client_tokens_total", seen.client, kind, by=number)
        if seen.usage is None:
            return
        self._count("tokens_total", model, "cached", by=usage.cached_tokens)
        if seen.decision is not None and (error := seen.cached_tokens_error) is not None:
            self._count("tokens_total", model, "predicted_cached", by=seen.decision.cached_tokens or 0)
            self._observe("cached_tokens_prediction_error_tokens", model, error)

    def injected(self, status: int) -> None:
        """Counts an injection into an answer."""
        self._count("injections_total", str(status))

    def batch_line(self, result: str) -> None:
        """Counts a line of a batch."""
        self._count("batch_lines_total", result)

    def batch_ended(self, status: str) -> None:
        """Counts a batch that is over."""
        self._count("batches_total", status)

    def attempt_failed(self, seen: Observation, failure: str) -> None:
        """Counts an attempt without success."""
        self._count("failed_attempts_total", seen.model, failure)

    def collect(self) -> Iterable[Metric]:
        """The state of pools, datastore and reader at a scrape."""
        families = {
            name: GaugeMetricFamily(_PREFIX + name, text, labels=labels) for name, (text, labels) in _OF_POOLS.items()
        }
        index = self._datastore.index
        families["kv_index_blocks"].add_metric([], len(index))
        for pool in self._pools:
            label, queue, now = pool.model.key, pool.queue, pool.now()
            replicas, selectable = pool.router.replicas, [label, pool.model.namespace, pool.model.name]
            loads = [self._datastore.load(replica.uid, now) for replica in replicas]
            doubted = {each.uid for each in replicas if self._datastore.approximates(each.uid)}
            known = {each.uid for each in replicas if index.seq(each.uid) is not None}
            families["queue_requests"].add_metric(selectable, pool.num_waiting)
            families["queue_batch_lines"].add_metric([label], queue.num_spare)
            figures = {
                "queue_bytes": queue.num_bytes,
                "queue_oldest_wait_seconds": queue.oldest_wait_seconds(now),
                "ready_replicas": pool.num_ready,
                "stale_replicas": sum(load is None for load in loads),
                "hanging_replicas": sum(load is not None and is_hanging(load) for load in loads),
                "kv_index_replicas": len(known - doubted),
            } | ({} if pool.tokenizer_problem is None else {"untokenized_models": 1})
            for name, value in figures.items():
                families[name].add_metric([label], value)
            for replica in replicas:
                if replica.uid in doubted:
                    families["approximated_replicas"].add_metric([label, replica.name], 1)
                in_flight = pool.router.in_flight.count(replica.uid)
                families["in_flight_requests"].add_metric([*selectable, replica.name], in_flight)
        left = CounterMetricFamily(
            "fairlead_gateway_untokenized_requests",
            "Requests left to their engines to tokenise: too long, too many at once, or of an untokenized model",
            value=self._reader.num_left,
        )
        return [*families.values(), left]

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
