"""Capabilities: which kinds of child can be had at this API server, and what is done without. Found out at the start
and at every resync.

`look` asks the server; everything that follows from the answer is pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.kube.access import Right, is_served, missing_rights, rights
from fairlead.kube.client import KubeClient
from fairlead.kube.resources import (
    CHILDREN,
    EVENTS,
    LLMDEPLOYMENTS,
    NETWORK_POLICIES,
    OPTIONAL_CHILDREN,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    POD_MONITORS,
    PODS,
    Resource,
)
from fairlead.settings import OperatorSettings

CHILD_VERBS = ("get", "list", "watch", "create", "patch", "delete")
WATCH_VERBS = ("list", "watch")


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


BASIC = Capabilities()
"""Of any API server at all."""


def is_wanted(resource: Resource, settings: OperatorSettings) -> bool:
    """Whether the settings ask for this optional kind of child."""
    wishes = {
        NETWORK_POLICIES.kind: settings.network_policies,
        POD_DISRUPTION_BUDGETS.kind: settings.pod_disruption_budgets,
        POD_MONITORS.kind: settings.pod_monitors,
    }
    return wishes[resource.kind]


async def look(client: KubeClient, settings: OperatorSettings) -> Capabilities:
    """Asks the API server. Raises KubeError."""
    kinds: list[Resource] = []
    done_without: list[str] = []
    for resource in OPTIONAL_CHILDREN:
        obstacle = await _obstacle(client, resource, settings.watch_namespaces)
        if not obstacle:
            kinds.append(resource)
        elif is_wanted(resource, settings):
            done_without.append(f"Done without {resource.kind}: {obstacle}.")
    wanted = frozenset(resource.kind for resource in kinds if is_wanted(resource, settings))
    return Capabilities(tuple(kinds), wanted, tuple(done_without))


async def check_rights(client: KubeClient, settings: OperatorSettings) -> list[Right]:
    """The rights that are missing, but for those without which nothing works: for them it raises MissingRights.

    Raises KubeError.
    """
    namespaces = settings.watch_namespaces
    watched = [right for each in (LLMDEPLOYMENTS, *CHILDREN, PODS) for right in rights(each, WATCH_VERBS, namespaces)]
    missing = await missing_rights(client, watched)
    if missing:
        raise MissingRights(f"the operator's ServiceAccount lacks the right to {in_words(missing)}")
    written = [right for each in CHILDREN for right in rights(each, ("get", "create", "patch", "delete"), namespaces)]
    written += rights(PODS, ("patch", "delete"), namespaces)
    written += rights(LLMDEPLOYMENTS, ("patch",), namespaces, "status")
    written += rights(LLMDEPLOYMENTS, ("patch",), namespaces, "scale")
    written += rights(EVENTS, ("create", "patch"), namespaces)
    written += rights(PERSISTENT_VOLUME_CLAIMS, ("get",), namespaces)
    written += rights(PODS, WATCH_VERBS, (settings.gateway_namespace,))
    return await missing_rights(client, written)


def in_words(missing: Sequence[Right]) -> str:
    """For a sentence that begins with whom they are missing to."""
    return ", to ".join(right.sentence_part for right in missing)


async def _obstacle(client: KubeClient, resource: Resource, namespaces: Sequence[str] | None) -> str:
    """Why objects of this kind cannot be made; empty = they can."""
    if not await is_served(client, resource):
        return f"this API server does not serve {resource.api_version}"
    missing = await missing_rights(client, rights(resource, CHILD_VERBS, namespaces))
    return f"the operator may not {missing[0].sentence_part}" if missing else ""
