"""Writing an LLMDeployment's count and status, and the autoscaler's part of the status.

`scaling_status` is pure; SubresourceWriter does the I/O, for the controller too.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.figures import rounded, seconds_in_words
from fairlead.autoscaler.recommendation import Recommendation
from fairlead.demand.signals import Demand, Signals
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import LLMDEPLOYMENTS

logger = logging.getLogger(__name__)

UNKNOWN_SECONDS = 10.0
"""How long a field unknown to the API server is left out before another attempt."""
_UNKNOWN = re.compile(r"\.(status\.\S+): field not declared in schema")
_ITEM = re.compile(r"\[[^\]]*\]")


@dataclass(eq=False)
class SubresourceWriter:
    """Writes the count and the status of LLMDeployments, under the name of one field manager."""

    client: KubeClient
    manager: str = names.FIELD_MANAGER_AUTOSCALER
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._unknown: set[str] = set()
        self._whole_at = 0.0
        """When a status is next tried with its unknown fields."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Fields such as `status.url` that the API server's older CRD does not know, and that are left out."""
        return tuple(sorted(self._unknown))

    async def scale(self, body: JsonObject, replicas: int) -> None:
        """Raises KubeError with status 409 if the object has changed since it was seen."""
        metadata = body["metadata"]
        await self.client.patch(
            LLMDEPLOYMENTS,
            metadata["name"],
            {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": {"replicas": replicas}},
            metadata["namespace"],
            subresource="scale",
            params={"fieldManager": self.manager},
        )

    async def write_status(self, body: JsonObject, status: Mapping[str, Any]) -> None:
        """The manager's part of the status. Raises KubeError; with status 404 or 409 the object is gone."""
        metadata = {key: body["metadata"][key] for key in ("name", "namespace", "uid")}
        obj = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata}
        is_whole = self.clock() >= self._whole_at
        while True:
            written = status if is_whole else without(status, self._unknown)
            try:
                await self.client.apply(
                    LLMDEPLOYMENTS, obj | {"status": written}, self.manager, force=True, subresource="status"
                )
            except KubeError as e:
                found = unknown_fields(e.message)
                if not found or (found <= self._unknown and not is_whole):
                    raise
                if found - self._unknown:
                    logger.warning("%s", crd_is_older(found))
                self._unknown |= found
                self._whole_at = self.clock() + UNKNOWN_SECONDS
                is_whole = False
                continue
            if is_whole:
                self._unknown -= {field for field in self._unknown if without(status, {field}) != status}
            return


def unknown_fields(message: str) -> set[str]:
    """Unknown fields in an API server's refusal of a status, such as `status.conditions.observedGeneration`; perhaps
    not all."""
    return {_ITEM.sub("", path) for path in _UNKNOWN.findall(message)}


def crd_is_older(left_out: Collection[str]) -> str:
    """What there is to say of such fields."""
    return (
        f"The CRD is older than this operator: {', '.join(sorted(left_out))} cannot be kept until it is applied: "
        "kubectl apply --server-side --force-conflicts -f charts/fairlead/crds/"
    )


def without(status: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """The status without these fields, also within lists."""

    def stripped(value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            kept = {key: each for key, each in value.items() if f"{path}.{key}" not in fields}
            return {key: stripped(each, f"{path}.{key}") for key, each in kept.items()}
        return [stripped(each, path) for each in value] if isinstance(value, list) else value

    left: dict[str, Any] = stripped(status, "status")
    return left


def scaling_status(
    signals: Signals, percentile: float, recommendation: Recommendation, history: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """`status.scaling`, with rounded figures. `percentile`: of the times per token, in percent. `history`: changes
    of the count, newest first."""
    scaling: dict[str, Any] = {"desired": recommendation.replicas, "reason": recommendation.reason}
    if history:
        scaling |= {"lastScaleTime": history[0]["time"], "history": list(history[: names.SCALING_HISTORY_LENGTH])}
    if signals.cold_start_seconds is not None:
        scaling["coldStart"] = seconds_in_words(signals.cold_start_seconds)
    return scaling | seen_status(signals.demand, percentile, num_ready=signals.ready)


def seen_status(demand: Demand, percentile: float, *, num_ready: int) -> dict[str, Any]:
    """`status.scaling` without a decision: the gateways' figures; empty = none can be read. Times of earlier replicas
    are left out when none is ready."""
    if not demand.num_gateways:
        return {}
    seen: dict[str, Any] = {"queue": int(rounded(demand.waiting)), "running": int(rounded(demand.running))}
    ttft = demand.ttft.percentile(percentile)
    if ttft is not None and num_ready:
        seen["ttft"] = seconds_in_words(ttft)
    tpot = demand.tpot.percentile(percentile)
    if tpot is not None and num_ready:
        seen["tpot"] = seconds_in_words(tpot)
    if missing := demand.num_missing + demand.num_stale:
        seen["missingGateways"] = missing
    return {"signals": seen}
