"""A gateway's `/metrics` → what the autoscaler needs of it, by model. Pure. `gateway/metrics.py` writes these names."""

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from fairlead.autoscaler.demand import ModelReading
from fairlead.autoscaler.histogram import Histogram

WAITING = "fairlead_gateway_queue_requests"
RUNNING = "fairlead_gateway_in_flight_requests"
ENDED = "fairlead_gateway_requests_total"
TTFT_BUCKET = "fairlead_gateway_time_to_first_token_seconds_bucket"


def model_readings(text: str) -> Mapping[str, ModelReading]:
    """By `namespace/name`. Raises ValueError for what is not Prometheus' text format."""
    sums: dict[str, dict[str, float]] = {name: defaultdict(float) for name in (WAITING, RUNNING, ENDED)}
    buckets: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            model = sample.labels.get("model")
            if not model:
                continue  # not about a model, or about requests for one that does not exist
            if sample.name in sums:
                sums[sample.name][model] += sample.value  # over replicas, outcomes, statuses
            elif sample.name == TTFT_BUCKET:
                buckets[model].append((float(sample.labels["le"]), sample.value))
    models = {*sums[WAITING], *sums[RUNNING], *sums[ENDED], *buckets}
    return {
        model: ModelReading(
            waiting=round(sums[WAITING][model]),
            running=round(sums[RUNNING][model]),
            num_ended=sums[ENDED][model],
            ttft=Histogram(tuple(sorted(buckets[model]))),
        )
        for model in models
    }
