"""How count and status of an LLMDeployment are written, and what the autoscaler writes there.

`scaling_status` is pure; SubresourceWriter does the I/O, for the controller too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.api import names
from fairlead.autoscaler.recommendation import Recommendation, rounded, seconds_in_words
from fairlead.autoscaler.signals import Demand, Signals
from fairlead.kube.client import JsonObject, KubeClient
from fairlead.kube.resources import LLMDEPLOYMENTS


class SubresourceWriter:
    """Writes the count and the status of LLMDeployments, under the name of one field manager."""

    def __init__(self, client: KubeClient, manager: str = names.FIELD_MANAGER_AUTOSCALER) -> None:
        self._client = client
        self._manager = manager

    async def scale(self, body: JsonObject, replicas: int) -> None:
        """Only if nobody has written the object since it was seen: KubeError with status 409 otherwise."""
        metadata = body["metadata"]
        await self._client.patch(
            LLMDEPLOYMENTS,
            metadata["name"],
            {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": {"replicas": replicas}},
            metadata["namespace"],
            subresource="scale",
            params={"fieldManager": self._manager},
        )

    async def write_status(self, body: JsonObject, status: Mapping[str, Any]) -> None:
        """The manager's part of the status. Raises KubeError; with status 404 or 409 the object is gone."""
        metadata = {key: body["metadata"][key] for key in ("name", "namespace", "uid")}
        obj = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "status": status}
        await self._client.apply(LLMDEPLOYMENTS, obj, self._manager, force=True, subresource="status")


def scaling_status(
    signals: Signals, percentile: float, recommendation: Recommendation, history: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """`status.scaling`, with rounded figures. `percentile`: of the times to first token, in percent. `history`: changes
    of the count, newest first."""
    scaling: dict[str, Any] = {"desired": recommendation.replicas, "reason": recommendation.reason}
    if history:
        scaling |= {"lastScaleTime": history[0]["time"], "history": list(history[: names.SCALING_HISTORY_LENGTH])}
    if signals.cold_start_seconds is not None:
        scaling["coldStart"] = seconds_in_words(signals.cold_start_seconds)
    return scaling | seen_status(signals.demand, percentile, num_ready=signals.ready)


def seen_status(demand: Demand, percentile: float, *, num_ready: int) -> dict[str, Any]:
    """`status.scaling` where nothing is decided: what gateways report; empty while none can be read. Where no replica
    is ready, what was measured on those before is no news of this fleet."""
    if not demand.num_gateways:
        return {}
    seen: dict[str, Any] = {"queue": int(rounded(demand.waiting)), "running": int(rounded(demand.running))}
    ttft = demand.ttft.percentile(percentile)
    if ttft is not None and num_ready:
        seen["ttft"] = seconds_in_words(ttft)
    if missing := demand.num_missing + demand.num_stale:
        seen["missingGateways"] = missing
    return {"signals": seen}
