"""How well gateways foresaw times to first token, as they measured it themselves: from arrival, without the network,
which is in what a client measures. From their metrics; pure but for one function."""

import math
from itertools import pairwise

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from fairlead.autoscaler.buckets import Buckets

PATH_METRICS = "/metrics"
TTFT_ERROR = "fairlead_gateway_ttft_prediction_error_ratio"
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


async def read_ttft_errors(urls: list[str], model: str) -> Buckets:
    """Of `namespace/name`, all gateways together; `urls`: of their metrics. Raises ClientError or TimeoutError."""
    found = Buckets((), ())
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        for url in urls:
            async with session.get(url) as response:
                response.raise_for_status()
                found = found.plus(ttft_errors(await response.text(), model))
    return found


def ttft_errors(text: str, model: str) -> Buckets:
    """Relative errors |predicted - actual| / actual, counted since the gateway's start; none where it has none."""
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
