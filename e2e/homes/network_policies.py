"""Whom a NetworkPolicy lets in, worked out from its rules as the API describes them. Pure.

Who calls it: scenarios, since not every network plug-in of a test cluster enforces policies.
"""

from collections.abc import Iterable
from typing import NamedTuple

from fairlead.api.names import LABEL_NAMESPACE_NAME
from fairlead_local.apiserver.selectors import from_object
from homes.kubectl import Json


class PodName(NamedTuple):
    """Which pod of a cluster."""

    namespace: str
    name: str


def name_of(pod: Json) -> PodName:
    """As pods are compared here."""
    return PodName(pod["metadata"]["namespace"], pod["metadata"]["name"])


def let_in(policy: Json, pods: Iterable[Json]) -> list[set[PodName]]:
    """Those of the pods that each peer of the policy's one ingress rule lets in, peer by peer.

    `policy`: the whole NetworkPolicy. Namespaces carry the label kubernetes.io/metadata.name, which servers before 1.21
    do not set, and no other. Raises ValueError where other addresses than pods' may come in too.
    """
    everyone = list(pods)
    rules = policy["spec"].get("ingress") or []
    if len(rules) != 1 or not rules[0].get("from"):
        raise ValueError(f"not one rule that names its peers: {rules}")
    return [
        {name_of(pod) for pod in everyone if _selects(peer, pod, policy["metadata"]["namespace"])}
        for peer in rules[0]["from"]
    ]


def _selects(peer: Json, pod: Json, own_namespace: str) -> bool:
    if "ipBlock" in peer or not peer:
        raise ValueError(f"a peer that is not said by labels: {peer}")
    namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels")
    if "namespaceSelector" in peer:
        in_place = from_object(peer["namespaceSelector"]).matches({LABEL_NAMESPACE_NAME: namespace})
    else:
        in_place = namespace == own_namespace
    return in_place and from_object(peer.get("podSelector")).matches(labels)
