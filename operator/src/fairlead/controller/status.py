"""Status: the contents of an LLMDeployment's `status`. Pure.

Always six conditions. Ready speaks for requests, Degraded for whoever has to act, Progressing for whoever waits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import Condition, ConditionStatus, ConditionType, Reason, find_condition, merge_conditions
from fairlead.api.figures import counted, seconds_in_words
from fairlead.api.llmdeployment import LLMDeployment, ScalingMode
from fairlead.api.scaling_policy import fewest_replicas, most_replicas
from fairlead.controller.adapter_loader import AdapterState
from fairlead.controller.desired import Desired, ModelFit, Problem
from fairlead.controller.observe import Observed
from fairlead.controller.plan import is_rolling, is_seen
from fairlead.controller.pod_diagnosis import Diagnosis, Stage
from fairlead.controller.pod_starts import start_stages
from fairlead.controller.scaling import crd_is_older
from fairlead.operator_settings import OperatorSettings

_NO_REPLICA_TRIED = (
    Reason.SOURCE_NOT_SUPPORTED,
    Reason.MODEL_SOURCE_NOT_FOUND,
    Reason.SIDECARS_NOT_SUPPORTED,
)
"""Reasons for an unavailable model before there is any replica."""

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
Said = tuple[ConditionStatus, str, str]
"""A condition's status, reason and message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything the conditions are made from."""

    deployment: LLMDeployment | None
    """None where the object cannot be understood."""
    num_desired: int
    replicas: tuple[Diagnosis, ...]
    obstacle: Problem | None
    """Why there are no children to apply."""
    problems: tuple[Problem, ...]
    """Refusals of the API, and objects that are not ours."""
    waiting_for: str
    """Objects to be gone before children can be made; empty = none."""
    conflict: Problem | None
    """A name that an older LLMDeployment has."""
    refused: str
    """Why the ReplicaSet cannot create pods (quota, admission), in the API server's words; empty = it can."""
    last_failure: Problem | None
    """Why the last replica could not load the model, while no replica can try again; taken from the earlier condition
    ModelAvailable."""
    scaling: Mapping[str, Any] | None
    """`status.scaling` with the autoscaler's view; None = no look yet."""
    done_without: tuple[str, ...]
    """A sentence for each kind of child and status field that this API server lacks."""
    is_rolling: bool
    """Whether pods are being replaced, or the Deployment has not been acted upon yet."""
    adapters: tuple[AdapterState, ...] | None = ()
    """State of each listed adapter; None = unknown."""
    paused: str = ""
    """The command that resumes a paused rollout; empty = not paused."""
    tokenizer_problem: str = ""
    """Why gateways leave prompts to the engines to tokenise; empty = they do not."""
    fit: ModelFit | None = None
    """Whether the model fits a replica, by arithmetic; None = invalid object."""

    def of(self, *stages: Stage) -> list[Diagnosis]:
        """The replicas in these stages."""
        return [each for each in self.replicas if each.stage in stages]

    @property
    def starting(self) -> list[Diagnosis]:
        """Starting replicas; at the end outdated replicas, and replicas that wait for another replica's download, which
        say least."""
        return sorted(self.of(Stage.STARTING), key=lambda pod: (pod.is_outdated, pod.waits_for_another))

    @property
    def failing(self) -> list[Diagnosis]:
        """Failing replicas, without outdated replicas."""
        return [pod for pod in self.of(Stage.FAILING) if not pod.is_outdated]

    @property
    def num_ready(self) -> int:
        """Replicas that answer requests."""
        return len(self.of(Stage.READY))

    @property
    def failure_before_sleep(self) -> Problem | None:
        """The last failure, if the next replica would most likely fail again: nothing has changed but the count."""
        tries = self.num_desired or self.of(Stage.READY, Stage.STARTING, Stage.FAILING) or self.obstacle
        return None if tries else self.last_failure

    @property
    def trouble(self) -> Problem | None:
        """The one thing to tell people first; None = nothing is wrong."""
        if found := self.obstacle or next(iter(self.problems), None):
            return found
        if self.refused:
            return Problem(Reason.PODS_REFUSED, f"pods cannot be created: {self.refused}")
        if failing := self.failing:
            # An engine's own words say more than the kubelet's about another pod.
            worst = next((pod for pod in failing if pod.model_failed), failing[0])
            return Problem(worst.reason, worst.sentence)
        return self.failure_before_sleep


def situation(
    observed: Observed,
    wanted: Desired,
    problems: Sequence[Problem],
    *,
    is_applying: bool,
    is_configuring: bool = False,
    adapters: tuple[AdapterState, ...] | None = (),
    left_out: Sequence[str] = (),
) -> Situation:
    """`problems`: of the plan. `is_applying`: whether something was just written. `is_configuring`: whether the
    engine's configuration was, which voids what is known. `adapters`: state of listed ones; None = unknown. `left_out`:
    status fields that the CRD lacks."""
    engine, before = observed.engine or {}, observed.body.get("status") or {}
    # An object that cannot be understood is taken to want what it had.
    known = int((engine.get("spec") or {}).get("replicas") or before.get("replicas") or 0)
    waiting = [problem for problem in problems if problem.reason == Reason.RECONCILING]
    refusal = find_condition(engine.get("status") or {}, "ReplicaFailure")
    refused = str(refusal.get("message") or refusal.get("reason") or "no reason was given")
    model = find_condition(before, ConditionType.MODEL_AVAILABLE)
    has_failed = model.get("status") == FALSE and model.get("reason") not in _NO_REPLICA_TRIED and not is_configuring
    paused = ""
    if (engine.get("spec") or {}).get("paused"):
        metadata = engine["metadata"]
        paused = f"kubectl rollout resume deployment/{metadata['name']} -n {metadata['namespace']}"
    return Situation(
        deployment=wanted.deployment,
        num_desired=wanted.deployment.desired_replicas if wanted.deployment else known,
        replicas=observed.diagnoses,
        obstacle=wanted.obstacle,
        problems=tuple(problem for problem in problems if problem not in waiting),
        waiting_for=waiting[0].message if waiting else "",
        conflict=_conflict(observed),
        refused=refused if refusal.get("status") == "True" else "",
        last_failure=Problem(str(model.get("reason")), str(model.get("message") or "")) if has_failed else None,
        scaling=before.get("scaling"),
        done_without=(*wanted.done_without, *([crd_is_older(left_out)] if left_out else [])),
        adapters=adapters,
        is_rolling=is_applying or bool(engine and (not is_seen(engine) or is_rolling(engine))),
        paused=paused,
        tokenizer_problem=observed.tokenizer_problem,
        fit=wanted.fit,
    )


def status(observed: Observed, now: Situation, settings: OperatorSettings, *, time: str) -> dict[str, Any]:
    """The fields of `status` that the operator writes. `time`: RFC 3339, for conditions that change."""
    metadata = observed.body["metadata"]
    before = (observed.body.get("status") or {}).get("conditions") or []
    generation = int(metadata.get("generation") or 0)
    name, namespace = metadata["name"], metadata["namespace"]
    had = (observed.body.get("status") or {}).get("adapters")
    found = had if now.adapters is None else [each.as_status for each in now.adapters]
    adapters = {"adapters": found} if found or had is not None else {}
    startup = _startup(observed) or (observed.body.get("status") or {}).get("startup")
    return {
        "observedGeneration": generation,
        "desiredReplicas": now.num_desired,
        "replicas": len(now.of(Stage.READY, Stage.STARTING, Stage.FAILING)),
        "readyReplicas": now.num_ready,
        "drainingReplicas": len(now.of(Stage.DRAINING)),
        "selector": f"{names.LABEL_LLMDEPLOYMENT}={name},{names.LABEL_COMPONENT}={names.ENGINE_COMPONENT}",
        "url": f"{settings.gateway_url.rstrip('/')}/{namespace}/{name}/v1",
        **adapters,
        **({"startup": startup} if startup else {}),
        "conditions": merge_conditions(before, conditions(now), generation=generation, time=time),
    }


def _startup(observed: Observed) -> dict[str, str] | None:
    """Seconds by stage of the replica that started last; None = none has."""
    for replica in reversed(observed.replicas):
        if (stages := start_stages(replica)) is not None:
            seconds = {str(stage): seconds_in_words(taken) for stage, taken in stages.items()}
            return {"pod": replica.name, **seconds, "total": seconds_in_words(sum(stages.values()))}
    return None


def conditions(now: Situation) -> list[Condition]:
    """All conditions, in the order of interest."""
    return [Condition(kind, *each(now)) for kind, each in CONDITIONS.items()]


def ready(now: Situation) -> Said:
    """True also at zero, where the next request starts a replica: as with Knative, asleep is not broken."""
    count, trouble = f"{now.num_ready}/{counted(now.num_desired, 'replica')} ready", now.trouble
    if now.obstacle is not None:
        still = f"{counted(now.num_ready, 'replica')} still serving as configured before; " if now.num_ready else ""
        return FALSE, now.obstacle.reason, still + now.obstacle.message
    if now.num_desired and now.num_ready >= now.num_desired:
        return TRUE, Reason.REPLICAS_READY, count
    if trouble is not None and trouble is now.last_failure:
        return FALSE, trouble.reason, f"scaled to zero, and the model could not be loaded: {trouble.message}"
    if trouble is not None:
        return FALSE, trouble.reason, f"{count}; {trouble.message}"
    if not now.num_desired:
        autoscaling = now.deployment.spec.autoscaling if now.deployment else None
        if autoscaling is None:
            return FALSE, Reason.SCALED_TO_ZERO, "scaled to zero: requests are answered once spec.replicas is above 0"
        if autoscaling.mode is ScalingMode.FAIRLEAD:
            return TRUE, Reason.SCALED_TO_ZERO, "scaled to zero: the next request starts a replica and waits for it"
        message = "scaled to zero: requests wait for as long as routing.coldStartTimeout says, until the external "
        return FALSE, Reason.SCALED_TO_ZERO, message + "autoscaler or a person raises spec.replicas"
    if starting := now.starting:
        return FALSE, starting[0].reason, f"{count}; {starting[0].sentence}"
    return FALSE, Reason.RECONCILING, f"{count}; {now.waiting_for or 'replicas are being created'}"


def progressing(now: Situation) -> Said:
    """True while something goes on without anybody's help."""
    starting, draining, trouble = now.starting, now.of(Stage.DRAINING), now.trouble
    leaving = "".join(f"; {pod.sentence}" for pod in draining if pod.message)
    if now.paused and now.is_rolling:
        # Before what goes on or goes wrong: it is the pods of before that do, and nothing will replace them.
        message = f"the rollout is paused, so pods stay as configured before; {now.paused} lets it go on"
        return FALSE, Reason.PAUSED, message
    if starting:
        return TRUE, starting[0].reason, starting[0].sentence + leaving
    if trouble is not None:
        return FALSE, trouble.reason, trouble.message + leaving
    if now.waiting_for:
        return TRUE, Reason.RECONCILING, now.waiting_for
    if draining:
        message = f"{counted(len(draining), 'replica')} draining: finishing the requests they have"
        return TRUE, Reason.SCALING, message + leaving
    if now.is_rolling:
        return TRUE, Reason.ROLLING_OUT, "the engine's Deployment is being brought to what is desired"
    if now.num_ready < now.num_desired:
        missing = counted(now.num_desired - now.num_ready, "replica")
        return TRUE, Reason.RECONCILING, f"{missing} still to be created"
    if now.paused:
        message = f"everything is as desired, but the rollout is paused, so changes will wait; {now.paused} ends that"
        return FALSE, Reason.PAUSED, message
    return FALSE, Reason.COMPLETE, "everything is as desired"


def model_available(now: Situation) -> Said:
    """True once an engine has loaded the model, False where one could not or the source does not exist."""
    if now.obstacle is not None and now.obstacle.reason in _NO_REPLICA_TRIED:
        return FALSE, now.obstacle.reason, now.obstacle.message
    failed = next((pod for pod in now.failing if pod.model_failed), None)
    if failed is not None:
        return FALSE, failed.reason, failed.sentence
    if now.num_ready:
        return TRUE, Reason.MODEL_LOADED, "the model is loaded and answers"
    if (failure := now.failure_before_sleep) is not None:
        return FALSE, failure.reason, failure.message
    if not now.num_desired and now.obstacle is None:
        return UNKNOWN, Reason.SCALED_TO_ZERO, "no engine runs that could load the model"
    return UNKNOWN, Reason.NOT_LOADED_YET, "no engine has loaded the model yet"


def fits(now: Situation) -> Said:
    """A replica that has loaded the model decides; else arithmetic, for models of the catalogue."""
    fit = now.fit
    if fit is not None and fit.status is TRUE:
        return TRUE, fit.reason, fit.message
    if now.num_ready and not now.is_rolling and now.obstacle is None:
        return TRUE, Reason.MODEL_LOADED, "a replica has loaded the model and has room for its cache"
    if fit is None:
        assert now.obstacle is not None, "what is understood is reckoned with"
        return UNKNOWN, now.obstacle.reason, now.obstacle.message
    return fit.status, fit.reason, fit.message


def scaling_active(now: Situation) -> Said:
    """True while Fairlead's autoscaler adjusts the count, if only upwards."""
    autoscaling = now.deployment.spec.autoscaling if now.deployment else None
    if autoscaling is None:
        message = "autoscaling is not asked for: spec.replicas stays as it is set"
        return FALSE, Reason.AUTOSCALING_NOT_CONFIGURED, message
    if autoscaling.mode is ScalingMode.EXTERNAL:
        message = "an external autoscaler may write spec.replicas through the scale subresource; Fairlead does not"
        return FALSE, Reason.EXTERNAL_AUTOSCALER, message
    if now.obstacle is not None and now.obstacle.reason in (Reason.INVALID_SPEC, Reason.NOT_PERMITTED):
        return FALSE, now.obstacle.reason, f"spec.replicas stays as it is: {now.obstacle.message}"
    if now.scaling is None:
        return UNKNOWN, Reason.SIGNALS_MISSING, "the autoscaler has not looked at the gateways yet"
    signals = now.scaling.get("signals")
    if signals is None:
        message = "no gateway says anything, so replicas stay as they are: check that a gateway is ready"
        return FALSE, Reason.SIGNALS_MISSING, message
    if missing := signals.get("missingGateways"):
        silent = f"{counted(missing, 'gateway')} {'says' if missing == 1 else 'say'} nothing"
        return TRUE, Reason.SIGNALS_MISSING, f"{silent}, so replicas may be added, but none are taken away"
    fewest, most = fewest_replicas(autoscaling), most_replicas(autoscaling)
    message = f"spec.replicas is adjusted to the load, between {fewest} and {most}"
    if autoscaling.schedules:
        message += f", with other bounds by schedule: {', '.join(each.name for each in autoscaling.schedules)}"
    return TRUE, Reason.SCALING_ACTIVE, message


def degraded(now: Situation) -> Said:
    """True where somebody has to act. Of hanging replicas the first is quoted, the others named; also while a hanging
    replica's /ready fails and the kubelet is about to restart it."""
    reasons = (Reason.REPLICA_HANGS, Reason.ENGINE_NOT_READY)
    hanging = [pod for pod in now.of(Stage.READY, Stage.STARTING) if pod.reason in reasons]
    problem = now.trouble
    if problem is None and hanging:
        also = f". So does {', '.join(pod.pod for pod in hanging[1:])}" if hanging[1:] else ""
        problem = Problem(hanging[0].reason, hanging[0].sentence + also)
    adapter = next((each for each in now.adapters or () if each.is_trouble), None)
    if problem is None and now.conflict is None and adapter is not None:
        problem = Problem(adapter.reason, f"adapter {adapter.name}: {adapter.message}")
    problem = problem or now.conflict
    if problem is None and now.tokenizer_problem:
        left = "gateways leave prompts to the engines to tokenise, and do not know what caches hold of them"
        problem = Problem(Reason.TOKENIZER_NOT_RUN, f"{left}: {now.tokenizer_problem}")
    if problem is None:
        message = " ".join(("Nothing is wrong.", *now.done_without)) if now.done_without else "nothing is wrong"
        return FALSE, Reason.AS_EXPECTED, message
    return TRUE, problem.reason, problem.message


CONDITIONS: Mapping[ConditionType, Callable[[Situation], Said]] = {
    ConditionType.READY: ready,
    ConditionType.PROGRESSING: progressing,
    ConditionType.MODEL_AVAILABLE: model_available,
    ConditionType.FITS: fits,
    ConditionType.SCALING_ACTIVE: scaling_active,
    ConditionType.DEGRADED: degraded,
}
"""In the order of interest."""


def _conflict(observed: Observed) -> Problem | None:
    if not observed.rivals:
        return None
    metadata, model = observed.body["metadata"], (observed.body.get("spec") or {}).get("model") or {}
    own, served_name = f"{metadata['namespace']}/{metadata['name']}", model.get("servedName") or metadata["name"]
    with_namespace = f"{metadata['namespace']}/{served_name}"
    lost = {claim.name: claim for claim in sorted(observed.rivals, key=lambda claim: claim.name)}
    listed = (observed.body.get("spec") or {}).get("adapters") or ()
    adapters = [str(each["servedName"]) for each in listed if each.get("servedName")]
    of_adapters = {*adapters, *(f"{metadata['namespace']}/{each}" for each in adapters)}
    names_wanted = (served_name, *(model.get("aliases") or ()), with_namespace, own)
    kept = [name for name in dict.fromkeys(names_wanted) if name not in lost]
    advice = []
    if served_name in lost or with_namespace in lost:
        advice.append(f"choose another model.servedName than {served_name!r}")
    if taken := [repr(name) for name in lost if name in of_adapters]:
        advice.append(f"choose another adapters[].servedName than {', '.join(taken)}")
    if aliases := [repr(name) for name in lost if name not in (served_name, with_namespace, *of_adapters)]:
        advice.append(f"take {', '.join(aliases)} out of model.aliases")
    losses = [
        f"requests for the model {name!r} go to {'the older' if claim.created else 'the'} "
        f"{names.KIND} {'/'.join(claim.key)}"
        for name, claim in lost.items()
    ]
    ways = ", ".join([*map(repr, kept), f"or the path /{own}/v1"])
    message = f"{'; '.join(losses)}. This one is reached by {ways}: {', and '.join(advice)}"
    return Problem(Reason.NAME_CONFLICT, message)
