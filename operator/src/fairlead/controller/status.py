"""Status: what an LLMDeployment's `status` should say. Pure.

Five conditions, always all of them. Ready speaks for the requests, Degraded for whoever has to act, Progressing for
whoever waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import Condition, ConditionStatus, ConditionType, Reason, find_condition, merge_conditions
from fairlead.api.llmdeployment import LLMDeployment, ScalingMode
from fairlead.autoscaler.policy import fewest_replicas, most_replicas
from fairlead.autoscaler.words import counted
from fairlead.controller.desired import Desired, Problem
from fairlead.controller.observe import Observed
from fairlead.controller.plan import is_owned
from fairlead.controller.pod_diagnosis import Diagnosis, Stage
from fairlead.controller.victims import is_rolling, is_seen
from fairlead.kube.client import JsonObject
from fairlead.operator_settings import OperatorSettings

_TRYING = (Stage.READY, Stage.STARTING, Stage.FAILING)
"""Stages in which a replica has loaded its model, or may."""
_NO_REPLICA_TRIED = (Reason.SOURCE_NOT_SUPPORTED, Reason.MODEL_SOURCE_NOT_FOUND)
"""Why a model is not available before there is any replica."""

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything the conditions are made from."""

    deployment: LLMDeployment | None
    """None where the object cannot be understood."""
    num_desired: int
    pods: tuple[Diagnosis, ...]
    obstacle: Problem | None
    """Why there are no children to apply."""
    problems: tuple[Problem, ...]
    """What the API refused, and objects that are not ours."""
    waiting_for: str
    """What has to go before children can be made; empty = nothing."""
    conflict: Problem | None
    """A name that an older LLMDeployment has."""
    refused: str
    """Why the ReplicaSet cannot create pods; empty = it can."""
    last_failure: Problem | None
    """Why the model could not be loaded when a replica last tried, while there is none that could try again."""
    scaling: Mapping[str, Any] | None
    """`status.scaling`, where the autoscaler says what it sees; None before it has looked."""
    done_without: tuple[str, ...]
    """A sentence for each kind of child that this API server does not let us have."""
    is_rolling: bool
    """Whether pods of an earlier configuration are still being replaced, or the Deployment has not been acted upon
    yet."""
    paused: str = ""
    """The command that resumes the rollout of the engine's Deployment, where somebody has paused it."""

    def of(self, *stages: Stage) -> list[Diagnosis]:
        """The pods in these stages."""
        return [pod for pod in self.pods if pod.stage in stages]

    @property
    def num_ready(self) -> int:
        """Replicas that answer requests."""
        return len(self.of(Stage.READY))


def situation(
    observed: Observed,
    wanted: Desired,
    problems: Sequence[Problem],
    *,
    is_applying: bool,
    is_configuring: bool = False,
) -> Situation:
    """`problems`: what became of the plan. `is_applying`: whether something was just written. `is_configuring`: whether
    that was another configuration of the engine, about which nothing is known from the one before."""
    engine = observed.deployment
    if engine is not None and not is_owned(engine, observed.body["metadata"]["uid"]):
        engine = None
    return Situation(
        deployment=wanted.deployment,
        num_desired=wanted.deployment.desired_replicas if wanted.deployment else _num_running(observed.body, engine),
        pods=observed.diagnoses,
        obstacle=wanted.obstacle,
        problems=tuple(problem for problem in problems if problem.reason != Reason.RECONCILING),
        waiting_for=next((problem.message for problem in problems if problem.reason == Reason.RECONCILING), ""),
        conflict=_conflict(observed),
        refused=_replica_failure(engine),
        last_failure=None if is_configuring else _last_failure(observed.body),
        scaling=(observed.body.get("status") or {}).get("scaling"),
        done_without=wanted.done_without,
        is_rolling=is_applying or (engine is not None and (not is_seen(engine) or is_rolling(engine))),
        paused=_resume_command(engine),
    )


def status(observed: Observed, now: Situation, settings: OperatorSettings, *, time: str) -> dict[str, Any]:
    """The fields of `status` that the operator writes. `time`: RFC 3339, for conditions that change."""
    metadata = observed.body["metadata"]
    before = (observed.body.get("status") or {}).get("conditions") or []
    generation = int(metadata.get("generation") or 0)
    name, namespace = metadata["name"], metadata["namespace"]
    return {
        "observedGeneration": generation,
        "desiredReplicas": now.num_desired,
        "replicas": len(now.of(Stage.READY, Stage.STARTING, Stage.FAILING)),
        "readyReplicas": now.num_ready,
        "drainingReplicas": len(now.of(Stage.DRAINING)),
        "selector": f"{names.LABEL_LLMDEPLOYMENT}={name},{names.LABEL_COMPONENT}={names.ENGINE_COMPONENT}",
        "url": f"{settings.gateway_url.rstrip('/')}/{namespace}/{name}/v1",
        "conditions": merge_conditions(before, conditions(now), generation=generation, time=time),
    }


def conditions(now: Situation) -> list[Condition]:
    """All of them, in the order in which people want to read them."""
    trouble = _trouble(now)
    return [
        _ready(now, trouble),
        _progressing(now, trouble),
        _model_available(now),
        _scaling_active(now),
        _degraded(now, trouble),
    ]


def _trouble(now: Situation) -> Problem | None:
    """The one thing to tell people first; None = nothing is wrong."""
    if now.obstacle is not None:
        return now.obstacle
    if now.problems:
        return now.problems[0]
    if now.refused:
        return Problem(Reason.PODS_REFUSED, f"pods cannot be created: {now.refused}")
    if _is_asleep_after_failure(now):
        return now.last_failure
    failing = now.of(Stage.FAILING)
    if failing:
        # An engine's own words say more than the kubelet's about another pod.
        worst = next((pod for pod in failing if pod.model_failed), failing[0])
        return Problem(worst.reason, worst.sentence)
    return None


def _ready(now: Situation, trouble: Problem | None) -> Condition:
    ready = f"{now.num_ready}/{counted(now.num_desired, 'replica')} ready"
    if now.obstacle is not None:
        still = f"{counted(now.num_ready, 'replica')} still serving as configured before; " if now.num_ready else ""
        return Condition(ConditionType.READY, FALSE, now.obstacle.reason, still + now.obstacle.message)
    if now.num_desired and now.num_ready >= now.num_desired:
        return Condition(ConditionType.READY, TRUE, Reason.REPLICAS_READY, ready)
    if trouble is not None and trouble is now.last_failure:
        message = f"scaled to zero, and the model could not be loaded: {trouble.message}"
        return Condition(ConditionType.READY, FALSE, trouble.reason, message)
    if trouble is not None:
        return Condition(ConditionType.READY, FALSE, trouble.reason, f"{ready}; {trouble.message}")
    if not now.num_desired:
        return _ready_at_zero(now)
    starting = now.of(Stage.STARTING)
    if starting:
        return Condition(ConditionType.READY, FALSE, starting[0].reason, f"{ready}; {starting[0].sentence}")
    message = f"{ready}; {now.waiting_for or 'replicas are being created'}"
    return Condition(ConditionType.READY, FALSE, Reason.RECONCILING, message)


def _ready_at_zero(now: Situation) -> Condition:
    """True where the next request starts a replica: as with Knative, what is asleep is not broken, and nobody should be
    called for it."""
    autoscaling = now.deployment.spec.autoscaling if now.deployment else None
    if autoscaling is not None and autoscaling.mode is ScalingMode.FAIRLEAD:
        message = "scaled to zero: the next request starts a replica and waits for it"
        return Condition(ConditionType.READY, TRUE, Reason.SCALED_TO_ZERO, message)
    message = "scaled to zero: requests are answered once spec.replicas is above 0"
    if autoscaling is not None:
        message = "scaled to zero: requests wait for as long as routing.coldStartTimeout says, until the external "
        message += "autoscaler or a person raises spec.replicas"
    return Condition(ConditionType.READY, FALSE, Reason.SCALED_TO_ZERO, message)


def _progressing(now: Situation, trouble: Problem | None) -> Condition:
    starting, draining = now.of(Stage.STARTING), now.of(Stage.DRAINING)
    leaving = "".join(f"; {pod.sentence}" for pod in draining if pod.message)
    if now.paused and now.is_rolling:
        # Before what goes on or goes wrong: it is the pods of before that do, and nothing will replace them.
        message = f"the rollout is paused, so pods stay as configured before; {now.paused} lets it go on"
        return Condition(ConditionType.PROGRESSING, FALSE, Reason.PAUSED, message)
    if starting:
        first = starting[0]
        return Condition(ConditionType.PROGRESSING, TRUE, first.reason, first.sentence + leaving)
    if trouble is not None:
        return Condition(ConditionType.PROGRESSING, FALSE, trouble.reason, trouble.message)
    if now.waiting_for:
        return Condition(ConditionType.PROGRESSING, TRUE, Reason.RECONCILING, now.waiting_for)
    if draining:
        message = f"{counted(len(draining), 'replica')} draining: finishing the requests they have"
        return Condition(ConditionType.PROGRESSING, TRUE, Reason.SCALING, message + leaving)
    if now.is_rolling:
        message = "the engine's Deployment is being brought to what is desired"
        return Condition(ConditionType.PROGRESSING, TRUE, Reason.ROLLING_OUT, message)
    if now.num_ready < now.num_desired:
        message = f"{counted(now.num_desired - now.num_ready, 'replica')} still to be created"
        return Condition(ConditionType.PROGRESSING, TRUE, Reason.RECONCILING, message)
    if now.paused:
        message = f"everything is as desired, but the rollout is paused, so changes will wait; {now.paused} ends that"
        return Condition(ConditionType.PROGRESSING, FALSE, Reason.PAUSED, message)
    return Condition(ConditionType.PROGRESSING, FALSE, Reason.COMPLETE, "everything is as desired")


def _model_available(now: Situation) -> Condition:
    kind = ConditionType.MODEL_AVAILABLE
    if now.obstacle is not None and now.obstacle.reason in _NO_REPLICA_TRIED:
        return Condition(kind, FALSE, now.obstacle.reason, now.obstacle.message)
    failed = next((pod for pod in now.of(Stage.FAILING) if pod.model_failed), None)
    if failed is not None:
        return Condition(kind, FALSE, failed.reason, failed.sentence)
    if now.num_ready:
        return Condition(kind, TRUE, Reason.MODEL_LOADED, "the model is loaded and answers")
    if now.last_failure is not None and _is_asleep_after_failure(now):
        return Condition(kind, FALSE, now.last_failure.reason, now.last_failure.message)
    if not now.num_desired and now.obstacle is None:
        return Condition(kind, UNKNOWN, Reason.SCALED_TO_ZERO, "no engine runs that could load the model")
    return Condition(kind, UNKNOWN, Reason.NOT_LOADED_YET, "no engine has loaded the model yet")


def _scaling_active(now: Situation) -> Condition:
    kind = ConditionType.SCALING_ACTIVE
    autoscaling = now.deployment.spec.autoscaling if now.deployment else None
    if autoscaling is None:
        message = "autoscaling is not asked for: spec.replicas stays as it is set"
        return Condition(kind, FALSE, Reason.AUTOSCALING_NOT_CONFIGURED, message)
    if autoscaling.mode is ScalingMode.EXTERNAL:
        message = "an external autoscaler may write spec.replicas through the scale subresource; Fairlead does not"
        return Condition(kind, FALSE, Reason.EXTERNAL_AUTOSCALER, message)
    if now.scaling is None:
        return Condition(kind, UNKNOWN, Reason.SIGNALS_MISSING, "the autoscaler has not looked at the gateways yet")
    signals = now.scaling.get("signals")
    if signals is None:
        message = "no gateway says anything, so replicas stay as they are: check that a gateway is ready"
        return Condition(kind, FALSE, Reason.SIGNALS_MISSING, message)
    if missing := signals.get("missingGateways"):
        silent = f"{counted(missing, 'gateway')} {'says' if missing == 1 else 'say'} nothing"
        message = f"{silent}, so replicas may be added, but none are taken away"
        return Condition(kind, TRUE, Reason.SIGNALS_MISSING, message)
    fewest, most = fewest_replicas(autoscaling), most_replicas(autoscaling)
    message = f"spec.replicas is adjusted to the load, between {fewest} and {most}"
    return Condition(kind, TRUE, Reason.SCALING_ACTIVE, message)


def _degraded(now: Situation, trouble: Problem | None) -> Condition:
    problem = trouble or _hang(now) or now.conflict
    if problem is None:
        message = " ".join(("Nothing is wrong.", *now.done_without)) if now.done_without else "nothing is wrong"
        return Condition(ConditionType.DEGRADED, FALSE, Reason.AS_EXPECTED, message)
    return Condition(ConditionType.DEGRADED, TRUE, problem.reason, problem.message)


def _hang(now: Situation) -> Problem | None:
    """Of those that hang, the one to tell of; the others by name. One whose /ready has begun to fail for that, and that
    the kubelet is going to restart, is still told of."""
    reasons = (Reason.REPLICA_HANGS, Reason.ENGINE_NOT_READY)
    hanging = [pod for pod in now.of(Stage.READY, Stage.STARTING) if pod.reason in reasons]
    if not hanging:
        return None
    first, *others = hanging
    also = f". So does {', '.join(pod.pod for pod in others)}" if others else ""
    return Problem(Reason(first.reason), first.sentence + also)


def _is_asleep_after_failure(now: Situation) -> bool:
    """Whether a replica would most likely fail again: nothing has changed since the last one did, but that it went."""
    return now.last_failure is not None and not now.num_desired and not now.of(*_TRYING) and now.obstacle is None


def _last_failure(body: JsonObject) -> Problem | None:
    """As the condition ModelAvailable has it: written while a replica failed, and again for as long as none tries."""
    known = find_condition(body.get("status") or {}, ConditionType.MODEL_AVAILABLE) or {}
    if known.get("status") != FALSE or known.get("reason") in _NO_REPLICA_TRIED:
        return None
    return Problem(str(known.get("reason")), str(known.get("message") or ""))


def _conflict(observed: Observed) -> Problem | None:
    if not observed.rivals:
        return None
    metadata, model = observed.body["metadata"], (observed.body.get("spec") or {}).get("model") or {}
    own, served_name = f"{metadata['namespace']}/{metadata['name']}", model.get("servedName") or metadata["name"]
    with_namespace = f"{metadata['namespace']}/{served_name}"
    lost = {claim.name: claim for claim in sorted(observed.rivals, key=lambda claim: claim.name)}
    names_wanted = (served_name, *(model.get("aliases") or ()), with_namespace, own)
    kept = [name for name in dict.fromkeys(names_wanted) if name not in lost]
    advice = []
    if served_name in lost or with_namespace in lost:
        advice.append(f"choose another model.servedName than {served_name!r}")
    if aliases := [repr(name) for name in lost if name not in (served_name, with_namespace)]:
        advice.append(f"take {', '.join(aliases)} out of model.aliases")
    losses = [
        f"requests for the model {name!r} go to {'the older' if claim.created else 'the'} "
        f"{names.KIND} {'/'.join(claim.key)}"
        for name, claim in lost.items()
    ]
    ways = ", ".join([*map(repr, kept), f"or the path /{own}/v1"])
    message = f"{'; '.join(losses)}. This one is reached by {ways}: {', and '.join(advice)}"
    return Problem(Reason.NAME_CONFLICT, message)


def _replica_failure(engine: JsonObject | None) -> str:
    """Why the ReplicaSet cannot create pods (quota, admission), in the API server's words."""
    for condition in ((engine or {}).get("status") or {}).get("conditions") or []:
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason") or "no reason was given")
    return ""


def _resume_command(engine: JsonObject | None) -> str:
    """How to let a paused Deployment go on; empty where it does."""
    if engine is None or not (engine.get("spec") or {}).get("paused"):
        return ""
    metadata = engine["metadata"]
    return f"kubectl rollout resume deployment/{metadata['name']} -n {metadata['namespace']}"


def _num_running(body: JsonObject, engine: JsonObject | None) -> int:
    """What an object that cannot be understood is taken to want: what it had."""
    return int(((engine or {}).get("spec") or {}).get("replicas") or (body.get("status") or {}).get("replicas") or 0)
