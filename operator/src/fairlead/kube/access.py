"""What an API server serves, and what we may do there. Asked of the server itself, never guessed from its version.

Who calls it: the operator, at its start and now and then. Nobody needs a right for these questions.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.resources import ACCESS_REVIEWS, Resource

QUESTIONS_AT_ONCE = 8
"""Questions about rights that are on their way at the same time; API servers ration a client's requests."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """What may be done to one kind of object in one namespace."""

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
    """Whether the API has this kind in this version. Raises KubeError for any answer but yes and no."""
    path = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    try:
        document = await client.request("GET", path)
    except KubeError as e:
        if e.status == 404:
            return False
        raise
    return any(entry.get("name") == resource.plural for entry in document.get("resources") or [])


async def missing_rights(client: KubeClient, wanted: Iterable[Right]) -> list[Right]:
    """Those of the rights that we do not have, in their order. None are missing where the API knows no such question.

    Raises KubeError.
    """
    if not await is_served(client, ACCESS_REVIEWS):
        return []
    gate, asked = asyncio.Semaphore(QUESTIONS_AT_ONCE), list(wanted)

    async def holds(right: Right) -> bool:
        async with gate:
            return await _is_allowed(client, right)

    answers = await asyncio.gather(*(holds(right) for right in asked))
    return [right for right, held in zip(asked, answers, strict=True) if not held]


async def _is_allowed(client: KubeClient, right: Right) -> bool:
    attributes = {"verb": right.verb, "group": right.group, "resource": right.plural}
    attributes |= {"namespace": right.namespace} if right.namespace else {}
    attributes |= {"subresource": right.subresource} if right.subresource else {}
    review = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create(ACCESS_REVIEWS, review)
    return bool((answer.get("status") or {}).get("allowed"))
