"""LLMDeployments, engine pods and gateways' signals, for tests of what is made of them."""

from typing import Any

from fairlead.api.signals_message import ModelSignals, ReplicaSignals, SignalsLine, count_seconds, no_seconds
from fairlead.demand.readings import GatewayWindow, Readings
from fairlead_common.wire.messages import StepCost

MODEL = "default/dinghy"
"""The LLMDeployment that all of this is about."""
SENTENCE = "2 replicas: 1 would leave 9 requests waiting (queueDepth 4)"


def stored(name: str = "dinghy", namespace: str = "ns", **spec: Any) -> dict[str, Any]:
    """An LLMDeployment as an API server has it."""
    metadata = {
        "name": name, "namespace": namespace, "uid": "u-1", "generation": 1, "resourceVersion": "5",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return {"metadata": metadata, "spec": {"model": {"source": "demo://dinghy"}} | spec}


def deployment(name: str = "dinghy", **status: Any) -> dict[str, Any]:
    """One with this status."""
    return {"metadata": {"namespace": "default", "name": name}, "spec": {}, "status": status}


def scaled(name: str = "dinghy", **signals: Any) -> dict[str, Any]:
    """One that the autoscaler has spoken of."""
    return deployment(name, desiredReplicas=2, scaling={"reason": SENTENCE, "signals": signals})


def pod(name: str, stage: str = "ready", owner: str = "dinghy") -> dict[str, Any]:
    """An engine pod; `stage`: ready, starting or draining."""
    metadata: dict[str, Any] = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
    metadata["labels"] = {"fairlead.dev/llmdeployment": owner, "app.kubernetes.io/component": "engine"}
    if stage == "draining":
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ready = "False" if stage == "starting" else "True"
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    return {"metadata": metadata, "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions}}


def load(name: str, age: float = 0.1, **values: Any) -> ReplicaSignals:
    """A replica's load, heard `age` seconds ago."""
    fields: dict[str, Any] = {
        "running": 3, "waiting": 1, "queued_prefill_tokens": 0, "kv_blocks_free": 75, "kv_blocks_total": 100,
        "kv_tokens": 1000, "token_budget": 512, "max_num_seqs": 4, "draining": False,
        "step_cost": StepCost(base=0.002, decode_seq=0.0001, kv_token=0.000001), **values,
    }  # fmt: skip
    return ReplicaSignals(name=name, age_seconds=age, **fields)


def line(gateway: str, uptime: float, model: ModelSignals | None = None) -> SignalsLine:
    """What a gateway says `uptime` seconds after its start."""
    return SignalsLine(gateway=gateway, uptime_seconds=uptime, models={} if model is None else {MODEL: model})


def model(arrivals: int = 0, *, ttft: tuple[float, ...] = (), **values: Any) -> ModelSignals:
    """One gateway's word on `MODEL`; `ttft`: each first token that was measured."""
    buckets = no_seconds()
    for seconds in ttft:
        count_seconds(buckets, seconds)
    return ModelSignals(num_arrivals=arrivals, ttft=buckets, **values)


def readings(*gateways: tuple[SignalsLine, ...], now: float = 100.0, missing: int = 0) -> Readings:
    """Each gateway's lines, the last of them at `now`."""
    windows = []
    for lines in gateways:
        window = GatewayWindow()
        for each in lines:
            window = window.hear(each, now - lines[-1].uptime_seconds + each.uptime_seconds)
        windows.append(window)
    return Readings(now, tuple(windows), missing)
