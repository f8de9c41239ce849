"""How well gateways foresaw times to first token, as they measured it themselves: from dispatch, without the wait
before it, which a client cannot tell apart. From their `/metrics`; pure but for one function."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from fairlead.api import names
from fairlead.autoscaler.buckets import Buckets

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


def metrics_url(pod: Mapping[str, Any]) -> str:
    """Of a gateway's pod: on the port that is named for control, or the usual one."""
    address = pod["status"]["podIP"]
    host = f"[{address}]" if ":" in address else address
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or [])
    named = (port["containerPort"] for port in ports if port.get("name") == names.CONTROL_PORT_NAME)
    return f"http://{host}:{next(named, names.GATEWAY_CONTROL_PORT)}/metrics"
