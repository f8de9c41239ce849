"""The page of metrics, from scrapes of an engine, a gateway and an operator that have done a little of all."""

from typing import cast

import msgspec
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.controller.observe import Cluster
from fairlead.controller.operator_metrics import OperatorMetrics
from fairlead.controller.pod_starts import StartStage
from fairlead.controller.reconcile import ReconcileOutcome
from fairlead.gateway.dispatch.admission import Shared
from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.gateway_metrics import GatewayMetrics
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.observation import Observation
from fairlead.gateway.openai.errors import RequestOutcome
from fairlead.gateway.openai.sse import Usage
from fairlead.gateway.prompts.reader import PromptReader, ReadPrompt, Tokenizers
from fairlead.kube.client import KubeClient
from fairlead.routing.datastore import Datastore
from fairlead.routing.queue import Ticket
from fairlead.routing.replica import Decision, Replica
from fairlead.routing.sessions import SessionPlace
from fairlead_common.http.client import HttpClient
from fairlead_common.http.lanes import Pacer
from fairlead_common.wire.downloads import DownloadProgress, DownloadStage
from fairlead_common.wire.messages import StepCost
from fairlead_engine.host.engine_stream import EngineStream
from fairlead_engine.host.lifecycle import Lifecycle
from fairlead_engine.host.metrics import OURS, VLLM
from fairlead_engine.host.metrics import Metrics as EngineMetrics
from fairlead_engine.host.refusals import Outcome
from fairlead_engine.types import NO_LOAD, FinishReason
from fairlead_engine_testing.scripted_engine import ScriptedEngine
from fairlead_testing.gateways import make_pool
from fairlead_testing.static_fleet import StaticFleet
from reference_pages.tables import Undocumented, documented, table


async def metrics() -> str:
    """The page of metrics: what scrapes of three busy programs show."""
    engine = series(engine_scrape())
    ours = [family for family in engine if not family[0].startswith(VLLM)]
    aliases = {family[0].removeprefix(VLLM) for family in engine} & {family[0].removeprefix(OURS) for family in ours}
    rows = [[*family, f"`{VLLM}{family[0].removeprefix(OURS)}`" if family[0].removeprefix(OURS) in aliases else ""]
            for family in ours]  # fmt: skip
    head = ["Metric", "Type", "Labels", "Meaning"]
    return "\n\n".join((
        "Prometheus' text format at `/metrics`: port 8000 of an engine, the control port of a gateway, the operator's "
        "port. Histograms have `_bucket`, `_sum` and `_count`. On Linux gateway and operator also tell what their "
        "processes cost, as `fairlead_gateway_process_…` and `fairlead_operator_process_…`: `cpu_seconds_total`, "
        "`resident_memory_bytes`, `open_fds` and what else Prometheus' clients tell of a process.",
        "## Engine", "The same figures under vLLM's names serve dashboards that know those.",
        table([*head, "vLLM's name"], [[f"`{row[0]}`", *row[1:]] for row in rows]),
        "## Gateway", table(head, [[f"`{name}`", *rest] for name, *rest in series(gateway_scrape())]),
        "## Operator", table(head, [[f"`{name}`", *rest] for name, *rest in series(operator_scrape())]),
    ))  # fmt: skip


def engine_scrape() -> str:
    load = msgspec.structs.replace(NO_LOAD, step_cost=StepCost(base=0.001), num_accepted_per_position=(1,))
    engine = ScriptedEngine(load=load)
    seen = EngineMetrics("model")
    seen.watch(engine, EngineStream(engine, Lifecycle()), engine.info)
    seen.queued(0.0)
    seen.first_token(0.0)
    seen.tokens(1, 0.0)
    seen.finished(FinishReason.STOP, 0.0)
    seen.answered(Outcome.OK)
    return seen.render().decode()


def gateway_scrape() -> str:
    limits = GatewaySettings()
    replica = Replica(uid="uid", name="replica", host="127.0.0.1", port=8000, digest="digest")
    datastore, tokenizers = Datastore(), Tokenizers()
    reader = PromptReader(tokenizers, Pacer())
    shared = Shared(limits, "gateway", datastore, tokenizers, reader)
    pools = Pools(lambda *_: StaticFleet([make_pool([replica])]), shared, HttpClient())
    seen = GatewayMetrics(pools, datastore, reader)
    request = Observation("id", "/v1/completions", observers=(seen,), client="client", stream=True, usage=Usage())
    decision = Decision(
        replica, "", cached_tokens=0, uncached_tokens=0, predicted_ttft_seconds=0.0, session=SessionPlace.NEW
    )
    request.ticket = Ticket(1, 0)
    request.ticket.foresee(0.0, request.arrived)
    request.routed(decision, ReadPrompt())
    request.first_token()
    request.num_generated, request.outcome = 2, RequestOutcome.COMPLETED
    request.ended(200)
    seen.gauges["open_connections"].labels("clients")
    datastore.distrusted(replica.uid, 0)
    tokenizers.fail(replica.digest, b"", "it takes too long")
    seen.attempt_failed(request, "engine_full")
    seen.injected(200)
    seen.batch_line("completed")
    seen.batch_ended("completed")
    return seen.exposition().decode()


def operator_scrape() -> str:
    seen = OperatorMetrics()
    seen.observe(ReconcileOutcome(next(iter(ReconcileOutcome))), 0.0)
    seen.recommended("namespace/name", desired=1, wanted=1)
    seen.scaled("namespace/name", 0, 1)
    seen.watch_fleet(_cluster_of_one())
    return generate_latest(seen.registry).decode()


def _cluster_of_one() -> Cluster:
    """One LLMDeployment of which everything is known."""
    targets = {"queueDepth": 1, "timeToFirstToken": "1s", "timePerOutputToken": "1s"}
    body = {
        "metadata": {"name": "name", "namespace": "namespace", "uid": "uid", "generation": 1,
                     "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"model": {"source": "demo://dinghy"}, "autoscaling": {"maxReplicas": 1, "targets": targets}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "ReplicasReady"}],
                   "startup": dict.fromkeys(StartStage, "1s"),
                   "scaling": {"signals": {"ttft": "1s", "tpot": "1s"}, "coldStart": "1s"}},
    }  # fmt: skip
    pod = {"metadata": {"name": "pod", "uid": "pod"}}
    progress = DownloadProgress(source="hf://org/name", stage=DownloadStage.DOWNLOADING, bytes=1, total_bytes=2)
    nobody = cast(KubeClient, None)  # what is bound is all that is read
    cluster = Cluster(nobody, downloads=lambda: {"pod": progress})
    key = ("namespace", "name")
    cluster.bind({"llmdeployments": {key: [body]}, "children": {}, "pods": {key: [pod]}, "name_claims": {}})
    return cluster


def series(scrape: str) -> list[list[str]]:
    """Name, type, labels and help of every metric of a scrape, by name."""
    found = []
    for family in sorted(text_string_to_metric_families(scrape), key=lambda family: family.name):
        if family.name.endswith("_created") or "_process_" in family.name:
            continue
        if not family.samples:
            raise Undocumented(f"{family.name} has no sample here, so its labels cannot be told")
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        name = family.name + ("_total" if family.type == "counter" else "")
        text = documented(family.documentation, name)
        found.append([name, family.type, ", ".join(f"`{label}`" for label in labels), text.rstrip(".") + "."])
    return found
