"""Capabilities: which namespaces and kinds of child can be watched at this API server, and what is done without. Found
out at the start and at every resync; more often while a namespace is lost.

`look` asks the server; everything that follows from the answer is pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.kube.client import KubeClient
from fairlead.kube.resources import (
    CHILDREN,
    EVENTS,
    LLMDEPLOYMENTS,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    POD_MONITORS,
    PODS,
    Resource,
)
from fairlead.kube.rights import AccessReviews, Right, is_served, may_list, rights
from fairlead.operator_settings import OperatorSettings

CHILD_VERBS = ("get", "list", "watch", "create", "patch", "delete")
WATCH_VERBS = ("list", "watch")
WATCHED = (LLMDEPLOYMENTS, *CHILDREN, PODS)
"""What an operator cannot do without, in any namespace that it looks after."""


class MissingRights(Exception):
    """Without these nothing can be seen; the message names them."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What there is beyond the kinds that every cluster has."""

    kinds: tuple[Resource, ...] = ()
    """Optional kinds of child that are served, and that we may write. Some may be switched off: they are watched all
    the same, so that those made before are found and removed."""
    wanted: frozenset[str] = frozenset()
    """Those of them that are to be made, by `kind`."""
    done_without: tuple[str, ...] = ()
    """A sentence for each optional kind that the settings want and that cannot be had."""
    namespaces: tuple[str, ...] | None = None
    """Those of the settings' namespaces that can be watched; None = all there are, as the settings want."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """A sentence for each of the others."""
    unanswered: str | None = None
    """A sentence about rights that could not be asked for, and count as given; None = there is an answer to all."""

    @property
    def watched(self) -> tuple[tuple[Resource, ...], tuple[str, ...] | None]:
        """What is to be watched, and where: with another answer, watching begins anew."""
        return self.kinds, self.namespaces


BASIC = Capabilities()
"""Of any API server at all."""


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
    }
    kinds: list[Resource] = []
    done_without: list[str] = []
    for resource, is_wanted in wishes.items():
        if not await is_served(client, resource):
            obstacle = f"this API server does not serve {resource.api_version}"
        elif missing := await reviews.missing(rights(resource, CHILD_VERBS, namespaces)):
            obstacle = f"the operator may not {missing[0].sentence_part}"
        else:
            kinds.append(resource)
            continue
        if is_wanted:
            done_without.append(f"Done without {resource.kind}: {obstacle}.")
    wanted = frozenset(resource.kind for resource in kinds if wishes[resource])
    unanswered = reviews.refusal and f"Whether the operator lacks rights cannot be asked for: {reviews.refusal}."
    return Capabilities(tuple(kinds), wanted, tuple(done_without), namespaces, lost, unanswered)


async def check_rights(client: KubeClient, settings: OperatorSettings, namespaces: Sequence[str] | None) -> list[Right]:
    """The rights that are missing in these namespaces to write what `look` has found readable.

    Raises KubeError.
    """
    written = [right for each in CHILDREN for right in rights(each, ("get", "create", "patch", "delete"), namespaces)]
    written += rights(PODS, ("patch", "delete"), namespaces)
    written += rights(LLMDEPLOYMENTS, ("patch",), namespaces, "status")
    written += rights(LLMDEPLOYMENTS, ("patch",), namespaces, "scale")
    written += rights(EVENTS, ("create", "patch"), namespaces)
    written += rights(PERSISTENT_VOLUME_CLAIMS, ("get",), namespaces)
    written += rights(PODS, WATCH_VERBS, (settings.gateway_namespace,))
    return await AccessReviews(client).missing(written)


def in_words(missing: Sequence[Right]) -> str:
    """For a sentence that begins with whom they are missing to."""
    return ", to ".join(right.sentence_part for right in missing)


async def _lost(client: KubeClient, reviews: AccessReviews, namespaces: Sequence[str] | None) -> dict[str, str]:
    """A sentence for each namespace that cannot be watched. Raises MissingRights if that is all of them."""
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
    """The rights without which we cannot watch there; where a namespace was deleted, its Roles have gone with it. What
    cannot be asked for is tried."""
    places = None if namespace is None else (namespace,)
    missing = await reviews.missing(right for each in WATCHED for right in rights(each, WATCH_VERBS, places))
    if missing or reviews.refusal is None:
        return missing
    unlisted = [each for each in WATCHED if not await may_list(client, each, namespace)]
    return [right for each in unlisted for right in rights(each, ("list",), places)]
