"""Capabilities: watchable namespaces and kinds of child, and features of pods, at this API server. Found out at the
start and at every resync; more often while a namespace is lost.

The server is asked; its version proves nothing. Accounts may ask about their rights, unless somebody took that away. A
dry run of a Deployment with image volumes or sidecars tells whether they are kept: a server with the feature switched
off drops the field in silence, and pods would run without their model, or never finish starting.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import EngineType
from fairlead.api.pod_spec import pod_spec_of, sidecars
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.resources import (
    ACCESS_REVIEWS,
    CHILDREN,
    DEPLOYMENTS,
    EVENTS,
    LLMDEPLOYMENTS,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    POD_MONITORS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    Resource,
)
from fairlead.manifests.downloaders import has_adapter_downloader
from fairlead.operator_settings import OperatorSettings

logger = logging.getLogger(__name__)

CHILD_VERBS = ("get", "list", "watch", "create", "patch", "delete")
WATCH_VERBS = ("list", "watch")
WATCHED = (LLMDEPLOYMENTS, *CHILDREN, PODS)
"""Kinds that an operator must watch in all of its namespaces."""
QUESTIONS_AT_ONCE = 8
"""Questions about rights under way at once; API servers ration a client's requests."""
ANSWER_SECONDS = 10.0
"""How long an answer to one may take."""
ATTEMPTS = 3
"""Attempts at a question while the server fails or is away."""
PAUSE_SECONDS = 1.0
"""Between two of them."""


class MissingRights(Exception):
    """Without these nothing can be seen; the message names them."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities beyond the kinds that every cluster has."""

    kinds: tuple[Resource, ...] = ()
    """Optional kinds of child, served and writable. Kinds switched off are watched too, to remove earlier children."""
    wanted: frozenset[str] = frozenset()
    """Kinds of these to make, by `kind`."""
    done_without: tuple[str, ...] = ()
    """A sentence for each wanted kind that is not available."""
    no_devices: str = "this API server does not serve resource.k8s.io/v1"
    """Why replicas can have no claims for devices; empty = they can."""
    namespaces: tuple[str, ...] | None = None
    """Namespaces of the settings that can be watched; None = all, as the settings want."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """A sentence for each of the others."""
    unanswered: str | None = None
    """A sentence about rights without an answer, which count as given; None = all were answered."""

    @property
    def watched(self) -> tuple[tuple[Resource, ...], tuple[str, ...] | None]:
        """What is to be watched, and where: with another answer, watching begins anew."""
        return self.kinds, self.namespaces


BASIC = Capabilities()
"""Of any API server at all."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A verb on one kind of object in one namespace."""

    verb: str
    """As in a Role: get, list, watch, create, patch, delete."""
    group: str
    plural: str
    namespace: str
    """Empty = in all of them."""
    subresource: str = ""

    @property
    def sentence_part(self) -> str:
        """As people write it: `patch llmdeployments.fairlead.dev/scale in the namespace default`."""
        kind = f"{self.plural}.{self.group}" if self.group else self.plural
        kind = f"{kind}/{self.subresource}" if self.subresource else kind
        return f"{self.verb} {kind} in " + (f"the namespace {self.namespace}" if self.namespace else "all namespaces")


def rights(
    resource: Resource, verbs: Iterable[str], namespaces: Sequence[str] | None, subresource: str = ""
) -> list[Right]:
    """Each of the verbs in each of the namespaces; None = in all of them at once."""
    places = ("",) if namespaces is None else namespaces
    return [Right(verb, resource.group, resource.plural, place, subresource) for place in places for verb in verbs]


async def is_served(client: KubeClient, resource: Resource) -> bool:
    """Whether the API has this kind in this version. Raises KubeError for any other answer."""
    path = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    try:
        document = await client.request("GET", path)
    except KubeError as e:
        if e.status == 404:
            return False
        raise
    return any(entry.get("name") == resource.plural for entry in document.get("resources") or [])


class AccessReviews:
    """Asks the API server about our rights. Without an answer no right counts as missing, and `refusal` has the reason:
    hardened clusters refuse the question, others do not serve it."""

    def __init__(self, client: KubeClient) -> None:
        """Asks nothing yet. Questions are about the user of `client`."""
        self._client = client
        self.refusal: str | None = None
        """Why the last questions have no answer; None = all had one. Nothing more is asked then."""

    async def missing(self, wanted: Iterable[Right]) -> list[Right]:
        """The rights that we certainly lack, in order."""
        gate, asked = asyncio.Semaphore(QUESTIONS_AT_ONCE), list(wanted)

        async def lacks(right: Right) -> bool:
            async with gate:
                return self.refusal is None and not await self._is_allowed(right)

        answers = await asyncio.gather(*map(lacks, asked))
        return [right for right, is_missing in zip(asked, answers, strict=True) if is_missing]

    async def _is_allowed(self, right: Right) -> bool:
        """True also without an answer: a missing right then shows in use."""
        attributes = {"verb": right.verb, "group": right.group, "resource": right.plural}
        attributes |= {"namespace": right.namespace, "subresource": right.subresource}
        review = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
        }
        path, num_left = ACCESS_REVIEWS.path(), ATTEMPTS
        while True:
            try:
                answer = await self._client.request("POST", path, body=review, timeout=ANSWER_SECONDS)
                return bool((answer.get("status") or {}).get("allowed"))
            except KubeError as e:
                num_left -= 1
                if not e.may_pass or not num_left:
                    self.refusal = f"{ACCESS_REVIEWS.api_version} is not served" if e.status == 404 else str(e)
                    return True
            await asyncio.sleep(PAUSE_SECONDS)


async def may_list(client: KubeClient, resource: Resource, namespace: str | None) -> bool:
    """False where listing this kind is refused, tried with a list of one object; a missing kind refuses nothing.
    `namespace`: None = all. Raises KubeError where the API server fails."""
    try:
        await client.request("GET", resource.path(namespace), params={"limit": "1"})
    except KubeError as e:
        if e.status not in (403, 404):
            raise
        return e.status == 404
    return True


async def look(client: KubeClient, settings: OperatorSettings) -> Capabilities:
    """Asks the API server. Raises KubeError, and MissingRights where nothing can be watched at all."""
    reviews = AccessReviews(client)
    namespaces, lost = settings.watch_namespaces, await _lost(client, reviews, settings.watch_namespaces)
    if namespaces is not None:
        namespaces = tuple(namespace for namespace in namespaces if namespace not in lost)
    wishes = {
        NETWORK_POLICIES: settings.network_policies,
        POD_DISRUPTION_BUDGETS: settings.pod_disruption_budgets,
        POD_MONITORS: settings.pod_monitors,
        RESOURCE_CLAIM_TEMPLATES: True,
    }
    kinds: list[Resource] = []
    done_without: list[str] = []
    no_devices = ""
    for resource, is_wanted in wishes.items():
        if not await is_served(client, resource):
            obstacle = f"this API server does not serve {resource.api_version}"
        elif missing := await reviews.missing(rights(resource, CHILD_VERBS, namespaces)):
            obstacle = f"the operator may not {missing[0].sentence_part}"
        else:
            kinds.append(resource)
            continue
        if resource is RESOURCE_CLAIM_TEMPLATES:
            no_devices = obstacle  # told of those alone that ask for devices
        elif is_wanted:
            done_without.append(f"Done without {resource.kind}: {obstacle}.")
    wanted = frozenset(resource.kind for resource in kinds if wishes[resource])
    unanswered = reviews.refusal and f"Whether the operator lacks rights cannot be asked for: {reviews.refusal}."
    return Capabilities(tuple(kinds), wanted, tuple(done_without), no_devices, namespaces, lost, unanswered)


async def check_rights(client: KubeClient, settings: OperatorSettings, namespaces: Sequence[str] | None) -> list[Right]:
    """Missing rights to write in these namespaces. Raises KubeError."""
    written = [right for each in CHILDREN for right in rights(each, ("get", "create", "patch", "delete"), namespaces)]
    written += rights(PODS, ("patch", "delete"), namespaces)
    written += rights(LLMDEPLOYMENTS, ("patch",), namespaces, "status")
    written += rights(LLMDEPLOYMENTS, ("patch",), namespaces, "scale")
    written += rights(EVENTS, ("create", "patch"), namespaces)
    written += rights(PERSISTENT_VOLUME_CLAIMS, ("get",), namespaces)
    written += rights(PODS, WATCH_VERBS, (settings.gateway_namespace,))
    return await AccessReviews(client).missing(written)


def in_words(missing: Sequence[Right]) -> str:
    """For a sentence that begins with the account."""
    return ", to ".join(right.sentence_part for right in missing)


async def _lost(client: KubeClient, reviews: AccessReviews, namespaces: Sequence[str] | None) -> dict[str, str]:
    """A sentence for each unwatchable namespace. Raises MissingRights if all are."""
    places = [None] if namespaces is None else list(dict.fromkeys(namespaces))
    missing = {place: lacking for place in places if (lacking := await _missing(client, reviews, place))}
    if len(missing) == len(places):
        everything = [right for each in missing.values() for right in each]
        raise MissingRights(f"the operator's ServiceAccount lacks the right to {in_words(everything)}")
    return {
        place: f"the namespace {place} is left alone, because the operator may not {lacking[0].sentence_part}: create "
        "it again, and its Roles by `helm upgrade`, or take it out of watch.namespaces"
        for place, lacking in missing.items()
        if place is not None
    }


async def _missing(client: KubeClient, reviews: AccessReviews, namespace: str | None) -> list[Right]:
    """Missing rights to watch there; with a deleted namespace its Roles are gone. Without answers, listing is tried."""
    places = None if namespace is None else (namespace,)
    missing = await reviews.missing(right for each in WATCHED for right in rights(each, WATCH_VERBS, places))
    if missing or reviews.refusal is None:
        return missing
    unlisted = [each for each in WATCHED if not await may_list(client, each, namespace)]
    return [right for each in unlisted for right in rights(each, ("list",), places)]


ASK_AGAIN_SECONDS = 60.0
"""How long an answer counts."""
_IMAGE = "registry.invalid/none:1"
_CONTAINER = {"name": "none", "image": _IMAGE}


@dataclass(frozen=True, slots=True)
class PodFeature:
    """A feature of pods that not every API server keeps."""

    name: str
    """Part of the names of test Deployments."""
    pod: Mapping[str, Any]
    """The spec of one that has it."""
    is_kept: Callable[[Mapping[str, Any]], bool]
    """Whether what came back has it still."""
    field: str
    """Part of the field's name in a refusal."""


IMAGE_VOLUMES = PodFeature(
    name="image-volumes",
    pod={
        "containers": [{**_CONTAINER, "volumeMounts": [{"name": "image", "mountPath": "/image"}]}],
        "volumes": [{"name": "image", "image": {"reference": _IMAGE, "pullPolicy": "IfNotPresent"}}],
    },
    is_kept=lambda pod: any(volume.get("image") for volume in pod.get("volumes") or ()),
    field=".volumes[",
)
SIDECARS = PodFeature(
    name="sidecars",
    pod={"containers": [_CONTAINER], "initContainers": [{**_CONTAINER, "name": "side", "restartPolicy": "Always"}]},
    is_kept=lambda pod: bool(sidecars(pod)),
    field=".initContainers[",
)


class PodFeatures:
    """Asks when an LLMDeployment wants a feature, and remembers answers for a while: they hold for the whole
    cluster."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._client = client
        self._clock = clock
        self._answers: dict[str, tuple[bool, float]] = {}
        """(answer, time of the question) by the feature's name."""

    async def are_kept(self, feature: PodFeature, namespace: str) -> bool | None:
        """None = unknown, for example because a webhook refuses dry runs. Never raises a KubeError."""
        answer, asked = self._answers.get(feature.name, (None, 0.0))
        if answer is not None and self._clock() - asked < ASK_AGAIN_SECONDS:
            return answer
        self._answers.pop(feature.name, None)
        answer = await self._ask(feature, namespace)
        if answer is not None:
            self._answers[feature.name] = answer, self._clock()
        return answer

    async def _ask(self, feature: PodFeature, namespace: str) -> bool | None:
        path, params = DEPLOYMENTS.path(namespace), {"dryRun": "All"}
        try:
            made = await self._client.request("POST", path, params=params, body=_deployment(feature))
        except KubeError as e:
            logger.debug("whether there are %s cannot be asked for: %s", feature.name, e)
            return False if e.status == 422 and feature.field in e.message else None
        return feature.is_kept(pod_spec_of(made))


def _deployment(feature: PodFeature) -> dict[str, Any]:
    labels = {names.LABEL_NAME: f"fairlead-{feature.name}"}
    return {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {"generateName": f"fairlead-{feature.name}-"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": feature.pod},
        },
    }


def wants_image_volume(body: Mapping[str, Any]) -> bool:
    """Whether an LLMDeployment mounts its model as an image."""
    cache = ((body.get("spec") or {}).get("model") or {}).get("cache") or {}
    return cache.get("image") is True


def wants_sidecars(body: Mapping[str, Any], engine: Mapping[str, Any] | None) -> bool:
    """Whether an LLMDeployment's pods may have sidecars: a foreign server, or the adapter downloader. `engine`: its
    Deployment, if any."""
    spec = body.get("spec") or {}
    is_foreign = (spec.get("engine") or {}).get("type") not in (None, EngineType.FAIRLEAD)
    return is_foreign or bool(spec.get("adapters")) or has_adapter_downloader(engine)


def has_sidecars(engine: Mapping[str, Any] | None) -> bool:
    """Whether a Deployment's pods have sidecars, as the API server keeps it."""
    return bool(sidecars(pod_spec_of(engine)))
